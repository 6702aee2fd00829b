"""`DecodeBatch`: the decode steps of running sequences, one call each, with their page tables.

    batch = DecodeBatch(manager, max_num_sequences=256, max_num_blocks=2048)
    blocks = batch.table.add_block_table(StridedPages(group))        # any outputs of a BatchPageTable
    batch.join(kv_cache); batch.leave(kv_cache)                      # after its prefill; before its close or suspend
    refused = batch.step(tokens)                                     # tokens[row]: the input of the last step, -1 for none
    kernel(..., blocks.rows, batch.table.seq_lens, ...)

A step does what ``commit([tokens[row]])`` and ``resize(history + num_inputs)`` would do, row after row, and updates the table. Most rows
only move numbers (`small_step`): those are taken in the pass that validates all rows, and taken back if a later one is wrong. A call
that raises before its first change has changed nothing; what raises midway (the device, a callback) has done the rows before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, SupportsIndex, final

from librt.strings import read_i32_le, write_i32_le
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from ..base.checks import to_count, to_instance
from ..base.errors import LogicError
from ..base.given import Given
from ..base.handle import Handle
from ..base.ids import DEFAULT_BEAM_INDEX
from ..manager.batch_step import NO_TOKEN, commit_in_batch, resize_in_batch, token_at, validate_shared_block
from ..manager.kv_cache import KVCache
from ..manager.kv_cache_manager import KVCacheManager
from ..reuse.token_packing import TOKEN_BYTES
from ..sequence.disk_arrivals import wait_for_reads
from ..sequence.sequence_state import CLOSED, SequenceState
from ..sequence.shared_state import SharedState
from ..sequence.step_validation import validate_next_token, validate_resize
from ..storage.refusal import Refusal
from .batch_page_table import BatchPageTable
from .batch_rows import BatchRows
from .step_tokens import pack_step_tokens

if TYPE_CHECKING:
    from ..reuse.token_forms import Tokens

_CALL: Final = "step"
_NOT_SMALL: Final = -1


@final
class DecodeBatch(Handle):
    """Sequences that decode together; see the module. Members are the rows of `table`, all of beam width 1.

    ``max_num_blocks``: of the longest member, in the manager's blocks.
    """

    __slots__ = (
        "table", "_manager", "_shared", "_rows", "_max_capacity", "_others", "_other_rows", "_num_checked", "_old_capacities",
        "_old_histories",
    )  # fmt: skip

    def __init__(self, manager: Given[KVCacheManager], max_num_sequences: SupportsIndex, max_num_blocks: SupportsIndex) -> None:
        self.table: Final[BatchPageTable] = BatchPageTable(manager, max_num_sequences, max_num_blocks)
        """Add its outputs before the first step, or later; `step` updates them all. Its `add` and `remove` are `join` and `leave`."""
        self._manager: Final[KVCacheManager] = to_instance(manager, KVCacheManager, "manager")
        self._shared: Final[SharedState] = self._manager._shared_for_batch()
        self._rows: Final[BatchRows] = self.table._rows_for_step()
        num_rows = to_count(max_num_sequences, "max_num_sequences")
        self._max_capacity: Final[i64] = to_count(max_num_blocks, "max_num_blocks") * self._shared.tokens_per_block
        self._others: list[SequenceState] = []
        """Members whose step is more than a few numbers, in the order of their rows."""
        self._other_rows = vec[i64]()
        self._num_checked: i64 = 0
        """How many rows of this step were validated."""
        self._old_capacities: Final = vec[i64]([0] * num_rows)
        """By row, before this step; `_NOT_SMALL` for those of ``_others``."""
        self._old_histories: Final = vec[i64]([0] * num_rows)

    def __len__(self) -> int:
        """Members; they are in rows 0, 1, ..."""
        return len(self._rows)

    def join(self, kv_cache: Given[KVCache]) -> int:
        """A sequence, whose prompt is committed, decodes from the next step on; returns its row, the last one.

        It may be suspended now, and must be active at `step`.

        `ValueError` if all rows are taken, or the sequence is a member already or of another manager; `LogicError` if it is closed or
        has beams.
        """
        joining = to_instance(kv_cache, KVCache, "kv_cache")
        if joining.beam_width != 1:
            raise LogicError(f"sequence {joining.id} has {joining.beam_width} beams; members of a DecodeBatch have one, see BatchPageTable")
        return self.table.add(joining, DEFAULT_BEAM_INDEX)

    def leave(self, kv_cache: Given[KVCache]) -> int:
        """A member, open or closed, leaves; returns its row, into which the last row's member has moved."""
        return self.table.remove(kv_cache, DEFAULT_BEAM_INDEX)

    def step(self, tokens: Tokens | None = None, num_inputs: SupportsIndex = 1) -> list[tuple[KVCache, Refusal]]:
        """One step of all members: commit what the last one computed, allocate slots for this one, update the table.

        ``tokens``: for each row the token id whose keys and values the last step has written, or -1 where there is none (a member that
        has joined since); None: -1 for all. Any sequence of ints, or array of one dimension: int32 is read as it is. ``num_inputs``: how
        many tokens the step computes of each member, behind its history.

        Does what, row after row, ``commit([token])`` and ``resize(max(capacity, history_length + num_inputs))`` do, decides the same and is
        recorded so. Members that there is no room for have left the batch (as by `leave`, the last row first), with their token committed;
        they are returned with the reason, in the order of their rows.

        `ValueError`, `TypeError` or `LogicError` as for these calls, or if the step does not fit into an output; then nothing has changed.
        """
        shared = self._shared
        with shared.guard:
            self._manager._require_open()
            inputs = to_count(num_inputs, "num_inputs")
            if inputs == 0:
                raise ValueError("num_inputs is 0; a step computes at least one token of each member")
            states = self._rows.states
            packed = pack_step_tokens(tokens, len(states))
            refused: list[int] = []
            refusals: list[Refusal] = []
            self._rows.is_stepping = True
            try:
                self._run(states, packed, inputs, refused, refusals)
            finally:
                self._rows.is_stepping = False
                self._others = []
                self._other_rows = vec[i64]()
            left = self._take_out(states, refused, refusals) if len(refused) > 0 else []
            self.table._write_step()
            return left

    # -- inside -------------------------------------------------------------------------------------------------------

    def _run(self, states: list[SequenceState], packed: bytes, num_inputs: i64, refused: list[int], refusals: list[Refusal]) -> None:
        count: i64 = len(states)
        done: i64 = 0
        self._num_checked = 0
        try:
            self._take_small_steps(states, packed, num_inputs)
            self.table._validate_outputs()
            for other in self._others:
                if other.arrivals.awaits_reads:
                    wait_for_reads(other)
            histories = self._rows.histories
            for index, other in enumerate(self._others):
                row = self._other_rows[index]
                self._record_small_steps(states, packed, done, row)
                done = row + 1
                if len(packed) > 0 and token_at(packed, row) >= 0:
                    commit_in_batch(other, packed, row)
                capacity = other.history + num_inputs
                if capacity < other.capacity:
                    capacity = other.capacity
                if not resize_in_batch(other, capacity, other.history):
                    refusal = self._shared.storage.last_refusal
                    assert refusal is not None, "a resize was refused without a reason"
                    refused.append(int(row))
                    refusals.append(refusal)
                histories[row] = other.history
            self._record_small_steps(states, packed, done, count)
            done = count
        finally:
            if done < count:
                self._take_back(states, packed, done)

    def _take_small_steps(self, states: list[SequenceState], packed: bytes, num_inputs: i64) -> None:
        """Validate all rows. Set those aside whose step is not small; after an exception the caller calls `_take_back`."""
        has_tokens = len(packed) > 0
        size = self._shared.tokens_per_block
        histories = self._rows.histories
        inputs = self._rows.num_inputs
        old_capacities = self._old_capacities
        old_histories = self._old_histories
        row: i64 = 0
        for state in states:
            token: i32 = NO_TOKEN
            if has_tokens:
                token = read_i32_le(packed, row * TOKEN_BYTES)
            old_history = state.history
            old_capacity = state.capacity
            history = old_history
            tokens = state.tokens
            may_be_small = True
            if token >= 0:
                # What `is_small_commit` asks and the bound below does not imply.
                num_committed = state.num_committed + 1
                num_published = state.num_published
                may_be_small = (
                    num_committed <= old_capacity
                    and num_committed < (num_published + 1) * size
                    and state.forked_end <= num_published
                    and tokens is not None
                )
                if history < num_committed:
                    history = num_committed
            elif token < NO_TOKEN:
                raise ValueError(f"{_CALL}: tokens[{row}] is {token}; ids are 0 <= id < 2**31, -1 says that there is none")
            capacity = history + num_inputs
            if capacity < old_capacity:
                capacity = old_capacity
            bound = state.next_slow_capacity
            if may_be_small and bound - size <= capacity < bound and history < state.next_window_move and capacity <= self._max_capacity:
                old_capacities[row] = old_capacity
                old_histories[row] = old_history
                if token >= 0 and tokens is not None:
                    write_i32_le(tokens, token)
                    state.num_committed += 1
                state.history = history
                state.capacity = capacity
            else:
                old_capacities[row] = _NOT_SMALL
                self._set_aside(state, row, packed, token, capacity, history)
            histories[row] = history
            inputs[row] = num_inputs
            row += 1
            self._num_checked = row

    def _set_aside(self, state: SequenceState, row: i64, packed: bytes, token: i32, capacity: i64, history: i64) -> None:
        if state.status == CLOSED:
            raise LogicError(f"sequence {state.id} in row {row} is closed; take it out of the batch with leave()")
        if token >= 0:
            validate_next_token(state, _CALL)
            if state.forked_end > state.num_published:
                validate_shared_block(state, row, packed, self._others, self._other_rows, _CALL)
        elif state.has_beams:
            raise LogicError(f"sequence {state.id}: {_CALL}() with {len(state.sharing.beams) + 1} beams; members of a DecodeBatch have one")
        validate_resize(state, capacity, history)
        if capacity > self._max_capacity:
            raise ValueError(
                f"sequence {state.id}: with num_inputs {capacity - history} it needs room for {capacity} tokens; the batch has room for "
                f"{self._max_capacity} of each member: make it with a larger max_num_blocks"
            )
        self._others.append(state)
        self._other_rows = append(self._other_rows, row)

    def _take_back(self, states: list[SequenceState], packed: bytes, begin: i64) -> None:
        """Undo the small steps from row ``begin`` on."""
        for row in range(begin, self._num_checked):
            if self._old_capacities[row] != _NOT_SMALL:
                state = states[row]
                if len(packed) > 0 and token_at(packed, row) >= 0:
                    state.tail.take_back()
                    state.num_committed -= 1
                state.capacity = self._old_capacities[row]
                state.history = self._old_histories[row]

    def _record_small_steps(self, states: list[SequenceState], packed: bytes, begin: i64, end: i64) -> None:
        if not self._shared.guard.is_recording:
            return
        journal = self._shared.guard.journal
        for row in range(begin, end):
            if self._old_capacities[row] != _NOT_SMALL:
                state = states[row]
                if len(packed) > 0:
                    token = token_at(packed, row)
                    if token >= 0:
                        journal.commit_one(state.request.serial, i64(token))
                journal.grow(state.request.serial, state.capacity, state.history)

    def _take_out(self, states: list[SequenceState], refused: list[int], refusals: list[Refusal]) -> list[tuple[KVCache, Refusal]]:
        """Members without room leave the batch."""
        handles: dict[int, KVCache] = {}
        for kv_cache in self._manager.open_kv_caches:
            handles[kv_cache._state_for_batch().request.serial] = kv_cache
        left = [(handles[states[row].request.serial], refusal) for row, refusal in zip(refused, refusals, strict=True)]
        for row in reversed(refused):
            self.table._remove_row(row)
        rows = self._rows
        for row, state in enumerate(rows.states):
            rows.histories[row] = state.history
        return left
