"""A batch call: one step of many sequences.

Most sequences have a small step (`small_step`). `resize` takes small steps in the pass that validates all sequences, and takes them
back if a later one is wrong or is refused: one pass costs half of two. `commit` validates all first.
"""

from typing import Final, final

from librt.strings import read_i32_le
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from ..base.checks import MAX_COUNT, to_counts, to_int_within, to_list
from ..base.errors import LogicError
from ..reuse.token_packing import TOKEN_BYTES, has_digest, pack_tokens
from ..sequence.commit import commit_packed, commit_token
from ..sequence.disk_arrivals import wait_for_reads
from ..sequence.finish_plan import FinishPlan
from ..sequence.finish_question import FinishQuestion
from ..sequence.forked_blocks import validate_same_tokens
from ..sequence.page_arrivals import settle_arrivals
from ..sequence.planned_rules import require_valid, validate_others
from ..sequence.residency_window import require_no_window
from ..sequence.resize import try_resize
from ..sequence.room_question import RoomQuestion
from ..sequence.sequence_state import CLOSED, SequenceState
from ..sequence.shared_state import SharedState
from ..sequence.small_step import is_small_commit, is_small_resize, make_small_commit
from ..sequence.step_validation import validate_next_token, validate_resize
from ..storage.refusal import Refusal
from .kv_cache import KVCache


NO_TOKEN: Final = -1


@final
class BatchStep:
    """The sequences of one batch call, each listed once; ``number`` is that of the call, unique within the manager."""

    __slots__ = (
        "_shared", "_call", "_number", "_kv_caches", "_others", "_other_positions", "_num_checked", "_old_capacities", "_old_histories",
        "_name",
    )  # fmt: skip

    def __init__(self, shared: SharedState, call: str, number: i64, kv_caches: object, name: str = "kv_caches") -> None:
        self._shared: Final = shared
        self._call: Final = call
        self._number: Final = number
        self._name: Final = name
        """Name of the argument that lists the sequences."""
        self._kv_caches: Final[list[object]] = list(to_list(kv_caches, name))
        """A copy of the caller's list, which the caller's callbacks may change."""
        self._others: Final[list[SequenceState]] = []
        """Sequences whose step is not small, in order."""
        self._other_positions = vec[i64]()
        self._old_capacities = vec[i64]()
        self._old_histories = vec[i64]()
        """Empty if the histories stay."""
        self._num_checked: i64 = 0
        """How many sequences `resize` has validated; it keeps their old numbers."""

    def resize(self, capacities: object, history_lengths: object) -> int:
        """How many from the front succeeded."""
        new_capacities = to_counts(capacities, "one of capacities")
        has_histories = history_lengths is not None
        new_histories = to_counts(history_lengths, "one of history_lengths") if has_histories else vec[i64]()
        count: i64 = len(self._kv_caches)
        self._require_one_each(new_capacities, new_histories, has_histories)
        done: i64 = 0
        try:
            self._take_small_steps(new_capacities, new_histories)
            for index, other in enumerate(self._others):
                if other.sharing.planned is not None:
                    position = self._other_positions[index]
                    history = new_histories[position] if has_histories else other.history
                    validate_others(other, new_capacities[position], history, self._number, self._call)
            self._wait_for_reads()
            for index, other in enumerate(self._others):
                position = self._other_positions[index]
                self._record_small_steps(done, position)
                done = position + 1
                history = new_histories[position] if has_histories else other.history
                if not resize_in_batch(other, new_capacities[position], history):
                    return position
            self._record_small_steps(done, count)
            done = count
        finally:
            if done < count:
                self._take_back(done)
        return count

    def find_refusal(self, capacities: object, history_lengths: object) -> Refusal | None:
        """Why `resize` would stop; None if all of it would pass. Changes nothing."""
        new_capacities = to_counts(capacities, "one of capacities")
        has_histories = history_lengths is not None
        new_histories = to_counts(history_lengths, "one of history_lengths") if has_histories else vec[i64]()
        self._require_one_each(new_capacities, new_histories, has_histories)
        for position, item in enumerate(self._kv_caches):
            state = self._enlist(item, position)
            validate_resize(state, new_capacities[position], new_histories[position] if has_histories else state.history)
            require_no_window(state, self._call)
            self._set_aside(state, position)
        question = RoomQuestion(self._shared)
        for position, state in enumerate(self._others):
            history = new_histories[position] if has_histories else state.history
            refusal = question.find(state, new_capacities[position], history)
            if refusal is not None:
                return refusal
            question.take()
        return None

    def find_finish_order(self, remaining_tokens: object, max_step: object) -> FinishPlan:
        """Whether all can finish one after the other. Changes nothing."""
        remaining = to_counts(remaining_tokens, "one of remaining_tokens")
        count: i64 = len(self._kv_caches)
        if len(remaining) != count:
            raise ValueError(f"{self._call}: {self._name} has {count} sequences, remaining_tokens {len(remaining)} numbers")
        largest_step: i64 = MAX_COUNT
        if max_step is not None:
            largest_step = to_int_within(max_step, "max_step", 1, MAX_COUNT, "; None stands for any number")
        for position, item in enumerate(self._kv_caches):
            state = self._enlist(item, position)
            if state.status == CLOSED:
                raise LogicError(f"{self._call}: sequence {state.id} is closed")
            require_valid(state, self._call)
            require_no_window(state, self._call)
            if remaining[position] > state.shared.most_tokens - state.capacity:
                raise ValueError(
                    f"{self._call}: remaining_tokens[{position}] is {remaining[position]}, and sequence {state.id} has room for "
                    f"{state.capacity} tokens; a sequence has at most {state.shared.most_tokens}"
                )
            self._others.append(state)
        return FinishQuestion(self._shared, self._others, remaining, largest_step).find()

    def commit(self, tokens: object) -> None:
        """One token id each."""
        packed = pack_tokens(tokens, self._shared.tree.digests, False)
        count: i64 = len(self._kv_caches)
        num_tokens: i64 = len(packed) // TOKEN_BYTES
        if num_tokens != count:
            raise ValueError(f"{self._call}: kv_caches has {count} sequences, tokens {num_tokens} ids; it takes one for each")
        if has_digest(packed):
            raise TypeError(f"{self._call}: tokens has bytes, a digest, in it; commit() takes those")
        position: i64 = 0
        for item in self._kv_caches:
            state = self._enlist(item, position)
            if not is_small_commit(state):
                validate_next_token(state, self._call)
                if state.forked_end > state.num_published:
                    validate_shared_block(state, position, packed, self._others, self._other_positions, self._call)
                self._set_aside(state, position)
            position += 1
        self._wait_for_reads()
        done: i64 = 0
        for index, other in enumerate(self._others):
            position = self._other_positions[index]
            self._append_tokens(done, position, packed)
            commit_in_batch(other, packed, position)
            done = position + 1
        self._append_tokens(done, count, packed)

    # -- before anything changes --------------------------------------------------------------------------------------

    def _require_one_each(self, capacities: vec[i64], histories: vec[i64], has_histories: bool) -> None:
        count: i64 = len(self._kv_caches)
        if len(capacities) != count or (has_histories and len(histories) != count):
            raise ValueError(
                f"{self._call}: kv_caches has {count} sequences, capacities {len(capacities)} numbers"
                + (f", history_lengths {len(histories)}" if has_histories else "")
            )

    def _enlist(self, item: object, position: i64) -> SequenceState:
        if not isinstance(item, KVCache):
            raise TypeError(f"{self._call}: {self._name}[{position}] must be a KVCache, not {type(item).__name__}")
        state = item._state_for_batch()
        if state.shared is not self._shared:
            raise ValueError(f"{self._call}: {self._name}[{position}] is sequence {state.id} of another manager")
        if state.batch_number == self._number:
            raise ValueError(f"{self._call}: sequence {state.id} is listed twice")
        state.batch_number = self._number
        return state

    def _set_aside(self, state: SequenceState, position: i64) -> None:
        self._others.append(state)
        self._other_positions = append(self._other_positions, position)

    def _wait_for_reads(self) -> None:
        for other in self._others:
            if other.arrivals.awaits_reads:
                wait_for_reads(other)

    # -- the changes --------------------------------------------------------------------------------------------------

    def _state_at(self, position: i64) -> SequenceState:
        item = self._kv_caches[position]
        assert isinstance(item, KVCache), "a batch changed after it was checked"
        return item._state_for_batch()

    def _take_small_steps(self, capacities: vec[i64], histories: vec[i64]) -> None:
        """Set larger steps aside, once they are validated; after an exception the caller calls `_take_back`."""
        has_histories = len(histories) > 0
        old_capacities = vec[i64]([0] * len(capacities))
        old_histories = vec[i64]([0] * len(histories))
        self._old_capacities = old_capacities
        self._old_histories = old_histories
        position: i64 = 0
        for item in self._kv_caches:
            state = self._enlist(item, position)
            capacity = capacities[position]
            history = state.history
            old_capacities[position] = state.capacity
            if has_histories:
                old_histories[position] = history
                history = histories[position]
            self._num_checked = position + 1
            if is_small_resize(state, capacity, history):
                state.capacity = capacity
                state.history = history
            else:
                validate_resize(state, capacity, history)
                self._set_aside(state, position)
            position += 1

    def _take_back(self, begin: i64) -> None:
        """Restore the old numbers: from ``begin`` on no sequence has anything else that is new."""
        for position in range(begin, self._num_checked):
            state = self._state_at(position)
            state.capacity = self._old_capacities[position]
            if len(self._old_histories) > 0:
                state.history = self._old_histories[position]

    def _record_small_steps(self, begin: i64, end: i64) -> None:
        if not self._shared.guard.is_recording:
            return
        journal = self._shared.guard.journal
        for position in range(begin, end):
            state = self._state_at(position)
            if len(self._old_histories) == 0 or state.history == self._old_histories[position]:
                journal.grow(state.request.serial, state.capacity, state.history)
            else:
                journal.move(state.request.serial, state.capacity, state.history)

    def _append_tokens(self, begin: i64, end: i64, packed: bytes) -> None:
        journal = self._shared.guard.journal
        is_recording = self._shared.guard.is_recording
        for position in range(begin, end):
            state = self._state_at(position)
            token = token_at(packed, position)
            make_small_commit(state, token)
            if is_recording:
                journal.commit_one(state.request.serial, i64(token))


def resize_in_batch(state: SequenceState, capacity: i64, history: i64) -> bool:
    """A validated resize of a batch call that is not small, recorded."""
    if len(state.arrivals.points) > 0:
        settle_arrivals(state)
    old_history = state.history
    result = try_resize(state, capacity, history)
    state.shared.guard.journal.resize(state.request.serial, capacity, history, old_history, result)
    return result


def commit_in_batch(state: SequenceState, packed: bytes, position: i64) -> None:
    """A validated commit of the token at ``position``, recorded."""
    token = token_at(packed, position)
    if len(state.arrivals.points) > 0:
        settle_arrivals(state)
    if state.forked_end > state.num_published:
        commit_packed(state, piece_at(packed, position))
    else:
        commit_token(state, token)
    state.shared.guard.journal.commit_one(state.request.serial, i64(token))


def validate_shared_block(
    state: SequenceState, position: i64, packed: bytes, others: list[SequenceState], positions: vec[i64], call: str
) -> None:
    """Other owners of the block have the same token: committed before, or by this call, as one of ``others`` that commit theirs."""
    validate_same_tokens(state, piece_at(packed, position))
    ordinal = state.num_committed // state.shared.tokens_per_block
    token = token_at(packed, position)
    block = state.blocks[ordinal]
    for index, other in enumerate(others):
        # One that commits nothing may have no block there yet.
        is_same = other.num_committed == state.num_committed and ordinal < len(other.blocks) and other.blocks[ordinal] is block
        if is_same and token_at(packed, positions[index]) not in (token, NO_TOKEN):
            raise ValueError(
                f"{call}: sequences {other.id} and {state.id} share block {ordinal}, and there are different tokens "
                f"for the same bytes; a step that computes tokens of its own begins with a resize"
            )


def token_at(packed: bytes, position: i64) -> i32:
    return read_i32_le(packed, position * TOKEN_BYTES)


def piece_at(packed: bytes, position: i64) -> bytes:
    begin = position * TOKEN_BYTES
    return packed[begin : begin + TOKEN_BYTES]
