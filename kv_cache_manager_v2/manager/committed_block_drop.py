"""`CommittedBlockDrop`: a plan to drop the published end of a sequence later, when no request will reuse it.

    state      ways out
    PLANNED    drop() -> DONE, cancel() -> DONE; a handle that is forgotten is cancelled by the next call on its manager
    DONE       none
"""

from __future__ import annotations

from typing import Final, final

from rawref import invalidate

from ..base.errors import LogicError
from ..base.finalizers import report_failure
from ..base.handle import Handle
from ..journal.journal_format import CANCEL_DROP, DROP, PLAN_DROP
from ..reuse.block import Block
from ..sequence.call_guard import Abandoned
from ..sequence.sequence_state import SequenceState
from ..sequence.shared_state import SharedState


def plan_drop(state: SequenceState) -> CommittedBlockDrop | None:
    """A plan for the published end of a sequence that has stopped committing; None if nothing is published."""
    shared = state.shared
    blocks = _list_published_blocks(state)
    if len(blocks) == 0:
        return None
    is_partial = len(blocks) > state.num_published
    num_tokens = state.num_committed if is_partial else state.num_published * shared.tokens_per_block
    number = shared.claims.drop_plans.make(blocks, num_tokens)
    shared.guard.journal.record(PLAN_DROP, state.request.serial)
    return CommittedBlockDrop(shared, number)


def _list_published_blocks(state: SequenceState) -> list[Block]:
    """The path, and the partial block with the rest of the committed tokens if there is one of just those."""
    if state.tail.is_retired:
        return []
    blocks = state.blocks[: state.num_published]
    if state.tail.count > 0:
        last = state.shared.tree.find_child(state.path_end, state.tail.packed())
        if last is not None:
            blocks.append(last)
    return blocks


@final
class AbandonedPlan(Abandoned):
    __slots__ = ("_shared", "_number", "_drops")

    def __init__(self, shared: SharedState, number: int, drops: bool) -> None:
        self._shared: Final = shared
        self._number: Final = number
        self._drops: Final = drops

    def close_abandoned(self) -> None:
        if self._drops:
            drop_plan(self._shared, self._number)
        else:
            _cancel_plan(self._shared, self._number)


def drop_plan(shared: SharedState, number: int) -> int:
    """Carry out an open plan; how many pages were dropped."""
    if not shared.claims.drop_plans.is_open(number):
        return 0
    with shared.storage.changes:
        count = shared.claims.drop_plans.drop(number)
    shared.guard.journal.record(DROP, number)
    return count


def _cancel_plan(shared: SharedState, number: int) -> None:
    if shared.claims.drop_plans.is_open(number):
        shared.claims.drop_plans.cancel(number)
        shared.guard.journal.record(CANCEL_DROP, number)


@final
class CommittedBlockDrop(Handle):
    """Made by `KVCache.plan_committed_block_drop`. It outlives the sequence, and keeps no page from eviction."""

    __slots__ = ("_shared", "_number", "_is_done", "_drops_when_forgotten")

    def __init__(self, shared: SharedState, number: int) -> None:
        """Not for users."""
        self._number: Final = number
        self._is_done = False
        self._drops_when_forgotten = False
        self._shared: Final = shared

    def drop_when_forgotten(self) -> None:
        """Not for users: a handle that is forgotten is carried out, not cancelled, by the next call on its manager."""
        self._drops_when_forgotten = True

    def __del__(self) -> None:
        invalidate(self)
        # Compiled, `__new__` may have been refused before there was a plan, and only `getattr` notices.
        shared = getattr(self, "_shared", None)
        if not isinstance(shared, SharedState) or self._is_done:
            return
        try:
            if shared.claims.drop_plans.is_open(self._number):
                shared.guard.add_abandoned(AbandonedPlan(shared, self._number, self._drops_when_forgotten))
        except BaseException as error:
            report_failure(error, CommittedBlockDrop)

    @property
    def is_done(self) -> bool:
        """Whether `drop` was called."""
        return self._is_done

    def drop(self) -> int:
        """Drop, of the pages at the published end, those that no other plan and no open sequence needs; how many.

        These are the last block's pages, and of windowed layer groups the last window; what can only be reached through them
        goes with them. 0 once `clear_reusable_blocks` or `shutdown` dropped everything. `LogicError` the second time.
        """
        if self._is_done:
            raise LogicError("drop() of a plan that was dropped or cancelled before; each plan drops once")
        shared = self._shared
        count = 0
        if not shared.order.is_closed:
            with shared.guard:
                count = drop_plan(shared, self._number)
        self._is_done = True
        return count

    def cancel(self) -> None:
        """Everything stays. Twice is fine; after `drop` it does nothing."""
        if not self._shared.order.is_closed:
            with self._shared.guard:
                _cancel_plan(self._shared, self._number)
        self._is_done = True
