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
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, SupportsIndex, final

import rawref
from mypy_extensions import mypyc_attr

from ..base.checks import MAX_COUNT, to_bool, to_count, to_int
from ..base.errors import LogicError, OutOfPagesError
from ..base.given import Given
from ..base.finalizers import report_failure, warn_of_leak
from ..base.ids import GPU_LEVEL
from ..sequence import commit as commit_steps
from ..sequence import page_arrivals, prefetching, residency
from ..sequence.call_guard import Abandoned
from ..sequence.fork import try_fork
from ..sequence.resize import try_resize
from ..sequence.sequence_state import ACTIVE, CLOSED, SUSPENDED, SequenceState
from ..sequence.small_step import try_small_resize
from ..sequence.step_validation import validate_fork, validate_resize
from ..sequence.stream_handle import to_stream
from ..sequence.usage_recorder import record_close, record_fork
from .open_sequences import OpenSequences
from .sequence_beams import SequenceBeams
from .sequence_queries import SequenceStatus

if TYPE_CHECKING:
    from .kv_cache_manager import KVCacheManager

_logger = logging.getLogger("kv_cache_manager_v2")


def close_and_remove(state: SequenceState, open_sequences: OpenSequences) -> None:
    record_close(state)
    residency.close(state)
    open_sequences.remove(state)
    if state.shared.journal is not None:
        state.shared.journal.close(state.serial)


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
            if len(self._state.arrivals) > 0:
                page_arrivals.settle_arrivals(self._state)
            residency.close_beams(self._state, 1)
            commit_steps.stop_committing(self._state, True)
            close_and_remove(self._state, self._open_sequences)


@final
@mypyc_attr(native_class=True)
class KVCache(SequenceBeams):
    """One sequence. Made by `KVCacheManager.create_kv_cache`, suspended; see the module for its states.

    A context manager; leaving it closes. A handle that is dropped without `close` warns (`ResourceWarning`), and the next
    call on the manager closes the sequence.
    """

    __slots__ = ("__rawref__", "_manager", "_open_sequences")

    Status: ClassVar[type[SequenceStatus]] = SequenceStatus

    __rawref__: object
    _manager: Final[KVCacheManager]
    _open_sequences: Final[OpenSequences]

    def __init__(self, state: SequenceState, manager: KVCacheManager, open_sequences: OpenSequences) -> None:
        """Not for users: `KVCacheManager.create_kv_cache` makes sequences."""
        super().__init__(state)
        self._manager = manager
        self._open_sequences = open_sequences
        open_sequences.add(state, self)

    def __del__(self) -> None:
        rawref.invalidate(self)
        # Compiled, `__new__` may have been refused before there was a state, and only `getattr` notices.
        state = getattr(self, "_state", None)
        if not isinstance(state, SequenceState) or state.status == CLOSED or state.shared.guard.is_foreign:
            return
        try:
            state.shared.guard.add_abandoned(AbandonedSequence(state, self._open_sequences))
            warn_of_leak(f"sequence {state.id} was dropped without close(); the next call on its manager closes it")
        except BaseException as error:
            report_failure(error, KVCache)

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

    def resume(self, cuda_stream: object = None, wait: Given[bool] = True) -> bool:
        """Bring every needed page to level 0 and lock it, in order with ``cuda_stream`` from here on.

        ``cuda_stream``: an int handle, or an object with ``__cuda_stream__``; None: the stream of the last time, at first the
        device's default stream. A partially matched last block is copied into a page of the sequence's own. False, and
        nothing has changed, if there is no room or other sequences use more than `max_util_for_resume`
        (`KVCacheManager.last_refusal` says which). `LogicError` unless SUSPENDED.

        ``wait``: the stream waits for pages that come up from lower levels, and this call for what a disk reads. Without it
        neither waits: give the sequence work once `ready` is true (`resize` makes the stream wait for the rest, and itself waits
        for what a disk reads). `PageMoveError` or `StorageIOError` if pages cannot be brought up; the sequence is suspended as
        before. Where it says that pages are lost, close it; else it may be resumed again.
        """
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._require(SUSPENDED, "resume")
            stream = state.stream if cuda_stream is None else to_stream(cuda_stream, state.shared.device)
            waits = to_bool(wait, "wait")
            journal = state.shared.journal
            if journal is None:
                return residency.try_resume(state, stream, waits)
            journal.begin()
            result = residency.try_resume(state, stream, waits)
            journal.resume(state.serial, stream, result)
            return result
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    @property
    def ready(self) -> bool:
        """Whether the pages of an ACTIVE sequence that `resume(wait=False)` did not wait for have all landed.

        True at once where nothing had to come up from a lower level. `StorageIOError` if a disk could not read one: the
        sequence cannot go on then, close it; nobody else finds that page any more. `LogicError` unless ACTIVE.
        """
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._require(ACTIVE, "ready")
            return page_arrivals.are_pages_here(state)
        finally:
            guard.leave()

    def prefetch(self, target_level: SupportsIndex = GPU_LEVEL) -> bool:
        """Bring the pages of a SUSPENDED sequence up to a level, so that `resume` finds them nearer; moves none down from above.

        A hint: False, and nothing has changed, if there is no room for all of them. Waits for nothing. `ValueError` for a level
        that does not exist, `LogicError` unless SUSPENDED, `PageMoveError` if the device refuses.
        """
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._require(SUSPENDED, "prefetch")
            level = to_int(target_level, "target_level")
            num_levels = int(state.shared.storage.num_levels)
            if not 0 <= level < num_levels:
                raise ValueError(f"target_level is {level}; there are {num_levels} cache levels")
            result = prefetching.try_prefetch(state, level)
            journal = state.shared.journal
            if journal is not None:
                journal.prefetch(state.serial, level, result)
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
            if state.counters is not None:
                state.counters.record_suspended()
            if state.shared.journal is not None:
                state.shared.journal.suspend(state.serial)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def close(self) -> None:
        """Give everything back; committed pages become droppable, the tail of the sequence first in line for eviction.

        A partial last block that is committed is published first, as by `stop_committing`. Twice is fine. In a forked process it
        does nothing: what there is to give back is the parent's.
        """
        state = self._state
        guard = state.shared.guard
        if state.status == CLOSED or guard.is_foreign:
            return
        guard.enter()
        try:
            if len(state.arrivals) > 0:
                page_arrivals.settle_arrivals(state)
            if state.has_beams:
                # First: a last block that beams share is then beam 0's alone, and can be published.
                guard.begin_change()
                residency.close_beams(state, 1)
                commit_steps.stop_committing(state, True)
                guard.end_change()
            else:
                commit_steps.stop_committing(state, True)
            close_and_remove(state, self._open_sequences)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def fork(self, id: SupportsIndex | None = None) -> KVCache:
        """A new sequence that is what this one is: same scope, tokens, history, capacity, stream, and ACTIVE if this one is.

        Takes no slot, but for recurrent state, which is copied: all blocks are shared, those that are not committed too. The
        first `resize` whose step writes into a shared block is the write: whoever calls it gets a copy of that block (False if
        there is no room for it), the last owner none. So every step begins with a `resize`, even one that changes no number;
        and with a history that has moved up (by `commit`, or by `resize`) at most one block per layer group is copied, whatever
        the length. Both may be closed in any order. ``id``: as in `KVCacheManager.create_kv_cache`.

        `LogicError` once closed, while some layer group's history is in scratch slots, or SUSPENDED with recurrent state;
        `OutOfPagesError` if there is no slot for a copy of the recurrent state. Then nothing has changed.
        """
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._require_open("fork")
            serial = self._open_sequences.next_serial
            sequence_id = serial if id is None else to_int(id, "id")
            validate_fork(state)
            if state.has_beams:
                raise LogicError(f"sequence {state.id}: fork() with {len(state.beams) + 1} beams; set beam_width to 1 first")
            if len(state.state_blocks) > 0 and len(state.arrivals) > 0:
                # The copy of the recurrent state reads it on the sequence's stream.
                page_arrivals.await_arrivals(state)
            child = SequenceState(
                state.shared, serial, sequence_id, state.scope, state.stream, state.priority_callback
            )
            if not try_fork(state, child):
                raise OutOfPagesError(self._refusal_text())
            record_fork(child)
            kv_cache = KVCache(child, self._manager, self._open_sequences)
            if state.shared.journal is not None:
                state.shared.journal.fork(state.serial)
            return kv_cache
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    # -- room ---------------------------------------------------------------------------------------------------------

    def resize(self, capacity: SupportsIndex | None = None, history_length: SupportsIndex | None = None) -> bool:
        """Make room for ``capacity`` tokens, of which the first ``history_length`` are history; None keeps.

        One go, all or nothing: pages that the window has passed are given back and the new ones taken together. False, and
        nothing has changed, if there is no room (`KVCacheManager.last_refusal`). `ValueError` if the history would shrink,
        the capacity would fall under it, or a page index buffer is too small; `LogicError` unless ACTIVE, or if more tokens of
        recurrent state would be taken back than there are `state_checkpoints`.

        It costs what changes: the blocks that begin and end, also those that a window never reads (as by ``resize(n, n)`` where
        another machine has computed the text). They get no pages, but a `commit` puts their text into the tree.

        Where scratch reuse is on, a call that changes the capacity needs
        ``old capacity - max_rewind_len <= history_length <= old capacity``, unless ``history_length == capacity`` (no inputs).
        """
        state = self._state
        if (
            history_length is None
            and isinstance(capacity, int)
            and 1 < capacity <= MAX_COUNT  # True passes for 1, and `to_count` tells it apart
            and try_small_resize(state, capacity)
        ):
            return True
        guard = state.shared.guard
        guard.enter()
        try:
            new_capacity = state.capacity if capacity is None else to_count(capacity, "capacity")
            new_history = state.history if history_length is None else to_count(history_length, "history_length")
            validate_resize(state, new_capacity, new_history)
            if len(state.arrivals) > 0:
                page_arrivals.await_arrivals(state)
            journal = state.shared.journal
            if journal is None:
                return try_resize(state, new_capacity, new_history)
            journal.begin()
            old_history = state.history
            result = try_resize(state, new_capacity, new_history)
            journal.resize(state.serial, new_capacity, new_history, old_history, result)
            return result
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    @property
    def capacity(self) -> int:
        """Tokens there is room for. Setting it is `resize(capacity=...)` with `OutOfPagesError` for False.

        Where the sequence uses scratch slots, setting it is a `ValueError`: a step must say where its inputs begin.
        """
        return self._state.capacity

    @capacity.setter
    def capacity(self, capacity: Given[int]) -> None:
        if self._state.scratch.is_enabled:
            raise ValueError(
                "capacity: with scratch slots a step must say where its inputs begin: use resize(capacity, history_length), or set "
                "enable_swa_scratch_reuse to False"
            )
        if not self.resize(to_int(capacity, "capacity"), None):
            raise OutOfPagesError(self._refusal_text())

    @property
    def history_length(self) -> int:
        """Tokens before the next step's inputs. Setting it is `resize(history_length=...)`."""
        return self._state.history

    @history_length.setter
    def history_length(self, history_length: Given[int]) -> None:
        if not self.resize(None, to_int(history_length, "history_length")):
            raise OutOfPagesError(self._refusal_text())

    # -- the rest -----------------------------------------------------------------------------------------------------

    @property
    def manager(self) -> KVCacheManager:
        """The manager that made it."""
        return self._manager

    @property
    def cuda_stream(self) -> int:
        """The stream that the sequence is in order with. Setting it while ACTIVE makes the new stream wait for the old."""
        return self._state.stream

    @cuda_stream.setter
    def cuda_stream(self, cuda_stream: Given[int]) -> None:
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._require_open("cuda_stream")
            stream = to_stream(to_int(cuda_stream, "cuda_stream"), state.shared.device)
            residency.change_stream(state, stream)
            if state.shared.journal is not None:
                state.shared.journal.change_stream(state.serial, stream)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _refusal_text(self) -> str:
        refusal = self._state.shared.storage.last_refusal
        return refusal.text if refusal is not None else "no room"

    def _state_for_batch(self) -> SequenceState:
        return self._state

