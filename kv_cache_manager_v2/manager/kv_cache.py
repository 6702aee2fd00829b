"""`KVCache`: the handle that an engine holds for one sequence.

    status      guaranteed                                            ways out
    SUSPENDED   holds its pages, wherever they are; every base        resume() -> ACTIVE, close() -> CLOSED
                page index is bad
    ACTIVE      every needed page is on level 0 and stays there       suspend() -> SUSPENDED, close() -> CLOSED
    CLOSED      holds nothing                                         none

This module validates and guards; what the calls do is in `sequence`. Every call checks its arguments before anything changes.
One caller at a time per manager.
"""

from __future__ import annotations

import logging
import warnings
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, SupportsIndex, final

import rawref
from mypy_extensions import i64, mypyc_attr

from ..base.checks import to_count, to_int, validate_index_mode
from ..base.errors import LogicError, OutOfPagesError
from ..base.ids import DEFAULT_BEAM_INDEX, PageIndexMode, TokenIdExt
from ..layout.scratch_desc import ScratchDesc
from ..reuse.reuse_scope import ReuseScope
from ..reuse.token_packing import TOKEN_BYTES, has_digest, pack_tokens, unpack_tokens
from ..sequence import commit as commit_steps
from ..sequence import residency
from ..sequence.call_guard import Abandoned
from ..sequence.index_buffer import to_index_buffer
from ..sequence.page_table import PageTable
from ..sequence.resize import try_resize
from ..sequence.sequence_state import ACTIVE, CLOSED, SUSPENDED, SequenceState
from ..sequence.step_validation import validate_resize, would_have_scratch
from ..sequence.stream_handle import stream_handle
from .open_sequences import OpenSequences

if TYPE_CHECKING:
    from ..reuse.token_packing import Tokens
    from .kv_cache_manager import KVCacheManager

_logger = logging.getLogger("kv_cache_manager_v2")
_MAX_TOKEN_ID: Final = 2**31 - 1


class SequenceStatus(Enum):
    """See the table at the top of this module."""

    SUSPENDED = "suspended"
    ACTIVE = "active"
    CLOSED = "closed"


def close_and_remove(state: SequenceState, open_sequences: OpenSequences) -> None:
    residency.close(state)
    open_sequences.remove(state)
    if state.shared.journal is not None:
        state.shared.journal.close(state.serial, state.shared.storage.digest.value)


@final
@mypyc_attr(native_class=True)
class AbandonedSequence(Abandoned):
    """The state of a sequence whose handle was dropped without `close`."""

    __slots__ = ("_state", "_open_sequences")

    _state: Final[SequenceState]
    _open_sequences: Final[OpenSequences]

    def __init__(self, state: SequenceState, open_sequences: OpenSequences) -> None:
        self._state = state
        self._open_sequences = open_sequences

    def close_abandoned(self) -> None:
        if self._state.status != CLOSED:
            commit_steps.stop_committing(self._state, True)
            close_and_remove(self._state, self._open_sequences)


@final
@mypyc_attr(native_class=True)
class KVCache:
    """One sequence. Made by `KVCacheManager.create_kv_cache`, suspended; see the module for its states.

    A context manager; leaving it closes. A handle that is dropped without `close` warns (`ResourceWarning`), and the next
    call on the manager closes the sequence.
    """

    __slots__ = ("__rawref__", "_state", "_manager", "_open_sequences")

    Status: ClassVar[type[SequenceStatus]] = SequenceStatus

    __rawref__: object
    _state: Final[SequenceState]
    _manager: Final[KVCacheManager]
    _open_sequences: Final[OpenSequences]

    def __init__(self, state: SequenceState, manager: KVCacheManager, open_sequences: OpenSequences) -> None:
        """Not for users: `KVCacheManager.create_kv_cache` makes sequences."""
        self._state = state
        self._manager = manager
        self._open_sequences = open_sequences
        open_sequences.add(state, self)

    def __del__(self) -> None:
        rawref.invalidate(self)
        state = self._state
        if state.status != CLOSED:
            state.shared.guard.add_abandoned(AbandonedSequence(state, self._open_sequences))
            warnings.warn(
                f"sequence {state.id} was dropped without close(); the next call on its manager closes it",
                ResourceWarning,
                stacklevel=2,
            )

    def __enter__(self) -> KVCache:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception:
            _logger.exception("closing sequence %s after an error failed", self._state.id)

    def __repr__(self) -> str:
        state = self._state
        return (
            f"<KVCache {state.id} {self.status.value}: capacity {state.capacity}, history {state.history}, committed "
            f"{state.num_committed}>"
        )

    # -- states -------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> SequenceStatus:
        status = self._state.status
        if status == ACTIVE:
            return SequenceStatus.ACTIVE
        return SequenceStatus.SUSPENDED if status == SUSPENDED else SequenceStatus.CLOSED

    @property
    def is_active(self) -> bool:
        return self._state.status == ACTIVE

    def resume(self, cuda_stream: object = None) -> bool:
        """Bring every needed page to level 0 and lock it, in order with ``cuda_stream`` from here on.

        ``cuda_stream``: an int handle, or an object with ``__cuda_stream__``; None: the stream of the last time, at first the
        device's default stream. A partially matched last block is copied into a page of the sequence's own. False, and
        nothing has changed, if there is no room or other sequences use more than `max_util_for_resume`
        (`KVCacheManager.last_refusal` says which). `LogicError` unless SUSPENDED.
        """
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._require(SUSPENDED, "resume")
            stream = state.stream if cuda_stream is None else stream_handle(cuda_stream)
            journal = state.shared.journal
            if journal is None:
                return residency.try_resume(state, stream)
            journal.begin()
            result = residency.try_resume(state, stream)
            journal.resume(state.serial, stream, result, state.shared.storage.digest.value)
            return result
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def suspend(self) -> None:
        """Unlock all pages; they stay held. Moves nothing and never fails for lack of room. `LogicError` unless ACTIVE."""
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._require(ACTIVE, "suspend")
            residency.suspend(state)
            if state.shared.journal is not None:
                state.shared.journal.suspend(state.serial, state.shared.storage.digest.value)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def close(self) -> None:
        """Give everything back; committed pages become droppable, the tail of the sequence first in line for eviction.

        A partial last block that is committed is published first, as by `stop_committing`. Twice is fine.
        """
        state = self._state
        if state.status == CLOSED:
            return
        guard = state.shared.guard
        guard.enter()
        try:
            commit_steps.stop_committing(state, True)
            close_and_remove(state, self._open_sequences)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    # -- room ---------------------------------------------------------------------------------------------------------

    def resize(self, capacity: SupportsIndex | None = None, history_length: SupportsIndex | None = None) -> bool:
        """Make room for ``capacity`` tokens, of which the first ``history_length`` are history; None keeps.

        One go, all or nothing: pages that the window has passed are given back and the new ones taken together. False, and
        nothing has changed, if there is no room (`KVCacheManager.last_refusal`). `ValueError` if the history would shrink,
        the capacity would fall under it, or a page index buffer is too small; `LogicError` unless ACTIVE.

        Where scratch reuse is on, a call that changes the capacity needs
        ``old capacity - max_rewind_len <= history_length <= old capacity``, unless ``history_length == capacity`` (no inputs).
        """
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            new_capacity = state.capacity if capacity is None else to_count(capacity, "capacity")
            new_history = state.history if history_length is None else to_count(history_length, "history_length")
            validate_resize(state, new_capacity, new_history)
            journal = state.shared.journal
            if journal is None:
                return try_resize(state, new_capacity, new_history)
            journal.begin()
            result = try_resize(state, new_capacity, new_history)
            journal.resize(state.serial, new_capacity, new_history, result, state.shared.storage.digest.value)
            return result
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    @property
    def capacity(self) -> int:
        """Tokens there is room for. Setting it is `resize(capacity=...)` with `OutOfPagesError` for False.

        With `swa_scratch_reuse` configured, setting it is a `ValueError`: a step must say where its inputs begin.
        """
        return self._state.capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        if self._state.shared.scratch_is_configured:
            raise ValueError(
                "with swa_scratch_reuse a step must say where its inputs begin: use resize(capacity, history_length)"
            )
        if not self.resize(capacity, None):
            raise OutOfPagesError(self._refusal_text())

    @property
    def history_length(self) -> int:
        """Tokens before the next step's inputs. Setting it is `resize(history_length=...)`."""
        return self._state.history

    @history_length.setter
    def history_length(self, history_length: int) -> None:
        if not self.resize(None, history_length):
            raise OutOfPagesError(self._refusal_text())

    # -- tokens -------------------------------------------------------------------------------------------------------

    def commit(self, accepted_input_tokens: Tokens) -> None:
        """The tokens are final, and all writes of theirs are enqueued on the sequence's stream.

        Blocks that become full are published at once. If another sequence has published the same block already, ours is given
        up in favour of theirs: base page indices may change. History moves up to the committed count by itself.
        `ValueError` if there is no capacity for them or a token is out of range; `LogicError` unless ACTIVE, or after
        `stop_committing`.
        """
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._require(ACTIVE, "commit")
            if not state.is_committing:
                raise LogicError(f"sequence {state.id}: commit() after stop_committing()")
            if isinstance(accepted_input_tokens, list) and len(accepted_input_tokens) == 1:
                token: object = accepted_input_tokens[0]
                if isinstance(token, int) and 0 <= token <= _MAX_TOKEN_ID and state.num_committed < state.capacity:
                    commit_steps.commit_token(state, token)
                    if state.shared.journal is not None:
                        state.shared.journal.commit_one(state.serial, token, state.shared.storage.digest.value)
                    return
            self._commit_any(accepted_input_tokens)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def _commit_any(self, tokens: Tokens) -> None:
        state = self._state
        tree = state.shared.tree
        num_tokens = len(tokens)
        if state.num_committed + num_tokens > state.capacity:
            raise ValueError(
                f"sequence {state.id}: {num_tokens} tokens after {state.num_committed} committed ones exceed the capacity of "
                f"{state.capacity}; resize() first"
            )
        packed = pack_tokens(tokens, tree.digests, True)
        if state.num_committed + len(packed) // TOKEN_BYTES > state.capacity:
            tree.digests.release(memoryview(packed).cast("i"))
            raise ValueError(f"sequence {state.id}: there are more tokens than their len(), {num_tokens}")
        if len(tree.digests) > 0:
            tree.has_digests = True
        commit_steps.commit_packed(state, packed)
        journal = state.shared.journal
        if journal is not None:
            mixed = unpack_tokens(packed, tree.digests) if has_digest(packed) else None
            journal.commit(state.serial, mixed, packed, state.shared.storage.digest.value)

    @property
    def num_committed_tokens(self) -> int:
        return self._state.num_committed

    @property
    def committed_tokens(self) -> list[TokenIdExt]:
        """All committed tokens, from the first one on; a new list. `LogicError` once closed."""
        state = self._state
        self._require_open("committed_tokens")
        keys: list[bytes] = [state.tail.packed()]
        block = state.path_end
        while block.parent is not None:
            keys.append(block.key)
            block = block.parent
        keys.reverse()
        return unpack_tokens(b"".join(keys), state.shared.tree.digests)

    def stop_committing(self) -> None:
        """What follows is never reused; the partial last block is published now. Twice is fine. `LogicError` once closed."""
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._require_open("stop_committing")
            commit_steps.stop_committing(state, False)
            if state.shared.journal is not None:
                state.shared.journal.stop_committing(state.serial, state.shared.storage.digest.value)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    # -- what kernels need --------------------------------------------------------------------------------------------

    def get_base_page_indices(self, layer_group_id: SupportsIndex, beam_id: SupportsIndex = DEFAULT_BEAM_INDEX) -> memoryview:
        """Read-only int32 view, one entry per block: the slot of its page, or `BAD_PAGE_INDEX`.

        Valid until the next call that changes the sequence. All bad while SUSPENDED. `LogicError` once closed.
        """
        return self._table(layer_group_id, beam_id).view()

    def set_base_page_index_buf(
        self, beam_id: SupportsIndex, layer_group_id: SupportsIndex, buf: object
    ) -> None:
        """From now on the library writes the base page indices into the caller's writable int32 buffer as well.

        The rest of the buffer is filled with -1. None takes it back. A `resize` that needs more blocks than the buffer has
        entries is a `ValueError` before anything changes.
        """
        guard = self._state.shared.guard
        guard.enter()
        try:
            table = self._table(layer_group_id, beam_id)
            table.set_buffer(None if buf is None else to_index_buffer(buf, int(self._state.num_blocks)))
        finally:
            guard.leave()

    def get_aggregated_page_indices(
        self, layer_group_id: SupportsIndex, beam_id: SupportsIndex = DEFAULT_BEAM_INDEX, valid_only: bool = False
    ) -> list[int]:
        """Slot ids of the blocks in order, for transfers; without the bad ones if ``valid_only``. `LogicError` unless ACTIVE."""
        table = self._table(layer_group_id, beam_id)
        self._require(ACTIVE, "get_aggregated_page_indices")
        slots: list[int] = table.view().tolist()
        return [slot for slot in slots if slot >= 0] if valid_only else slots

    def supports_index_mode(self, mode: PageIndexMode) -> bool:
        """PER_LAYER always; SHARED unless the sequence has scratch blocks."""
        validate_index_mode(mode)
        return mode is PageIndexMode.PER_LAYER or not self.has_scratch_slots

    @property
    def has_scratch_slots(self) -> bool:
        """Whether some input blocks of the present step have scratch slots instead of pages."""
        return self._state.scratch.num_blocks > 0

    def get_scratch_desc(self, layer_group_id: SupportsIndex) -> ScratchDesc | None:
        """The group's scratch blocks and the slots they share, valid until the next resize; false when empty.

        None if the sequence does not reuse scratch memory. `LogicError` unless ACTIVE.
        """
        group = self._group(layer_group_id)
        self._require(ACTIVE, "get_scratch_desc")
        scratch = self._state.scratch
        if not scratch.is_enabled:
            return None
        return ScratchDesc(scratch.range_of(group), scratch.slots[group])

    @property
    def enable_swa_scratch_reuse(self) -> bool:
        """Whether steps of this sequence use scratch slots. May be switched while it makes no difference.

        Setting it is a `ValueError` if the manager is not configured for scratch reuse, or if the present step has scratch
        blocks, or would have them if it were on; `LogicError` once closed.
        """
        return self._state.scratch.is_enabled

    @enable_swa_scratch_reuse.setter
    def enable_swa_scratch_reuse(self, enable: bool) -> None:
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._set_scratch_reuse(enable)
        finally:
            guard.leave()

    def _set_scratch_reuse(self, enable: bool) -> None:
        state = self._state
        self._require_open("enable_swa_scratch_reuse")
        if not isinstance(enable, bool):
            raise TypeError(f"enable_swa_scratch_reuse must be a bool, not {type(enable).__name__}")
        if enable == state.scratch.is_enabled:
            return
        if enable and not state.shared.scratch_is_configured:
            raise ValueError("the manager was made without swa_scratch_reuse; set it in KVCacheManagerConfig")
        if would_have_scratch(state):
            raise ValueError(
                f"sequence {state.id}: with a history of {state.history} and a capacity of {state.capacity} scratch reuse makes "
                f"a difference; switch it before the resize that begins a long step, or after its history has moved up"
            )
        state.scratch.is_enabled = enable
        if state.shared.journal is not None:
            state.shared.journal.enable_scratch(state.serial, enable, state.shared.storage.digest.value)

    # -- facts --------------------------------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        return self._state.num_blocks

    @property
    def tokens_per_block(self) -> int:
        return self._state.shared.tokens_per_block

    @property
    def id(self) -> int:
        return self._state.id

    @property
    def manager(self) -> KVCacheManager:
        return self._manager

    @property
    def reuse_scope(self) -> ReuseScope:
        return self._state.scope

    @property
    def cuda_stream(self) -> int:
        """The stream that the sequence is in order with. Setting it while ACTIVE makes the new stream wait for the old."""
        return self._state.stream

    @cuda_stream.setter
    def cuda_stream(self, cuda_stream: int) -> None:
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._require_open("cuda_stream")
            if not isinstance(cuda_stream, int):
                raise TypeError(f"cuda_stream must be an int handle, not {type(cuda_stream).__name__}")
            stream = stream_handle(cuda_stream)
            residency.change_stream(state, stream)
            if state.shared.journal is not None:
                state.shared.journal.change_stream(state.serial, stream, state.shared.storage.digest.value)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    @property
    def beam_width(self) -> int:
        return 1

    # -- inside -------------------------------------------------------------------------------------------------------

    def _table(self, layer_group_id: SupportsIndex, beam_id: SupportsIndex) -> PageTable:
        group = self._group(layer_group_id)
        beam = to_int(beam_id, "beam_id")
        if beam != DEFAULT_BEAM_INDEX:
            raise ValueError(f"beam_id is {beam}; the beam width is {self.beam_width}")
        return self._state.tables[group]

    def _group(self, layer_group_id: SupportsIndex) -> int:
        self._require_open("looking at a layer group")
        group = to_int(layer_group_id, "layer_group_id")
        num_groups = len(self._state.tables)
        if not 0 <= group < num_groups:
            raise ValueError(f"layer_group_id is {group}; there are {num_groups} layer groups")
        return group

    def _require(self, status: i64, call: str) -> None:
        if self._state.status != status:
            wanted = "ACTIVE" if status == ACTIVE else "SUSPENDED"
            raise LogicError(f"sequence {self._state.id}: {call} needs a sequence that is {wanted}, this one is {self.status.name}")

    def _require_open(self, call: str) -> None:
        self._state.shared.guard.require_sound()
        if self._state.status == CLOSED:
            raise LogicError(f"sequence {self._state.id}: {call} after close()")

    def _refusal_text(self) -> str:
        refusal = self._state.shared.storage.last_refusal
        return refusal.text if refusal is not None else "no room"

    def _state_for_batch(self) -> SequenceState:
        return self._state

