"""Private copies of shared blocks: the sequence is going to write there, and neither published bytes nor a fork's may change.

add      copies of one sequence's or beam's blocks are enqueued; no sequence has them yet
finish   all are enqueued: later work on the stream may be ordered behind them
settle   in the change: the sequence takes its copies and releases the shared blocks

Where the device refuses a copy, `add` or `finish` raises its error and frees all: nothing has changed.
"""

from typing import Final, final

from mypy_extensions import i64

from ..base.ids import GPU_LEVEL, PRIORITY_DEFAULT
from ..reuse.block import Block
from ..stats.page_counters import PageCounters
from ..stats.usage_counters import ALLOCATED
from ..storage.page_bytes import copy_page
from .admission import note_copied
from .block_owners import release_owner
from .page_users import release_page
from .sequence_state import SequenceState
from .shared_state import SharedState


@final
class StagedCopies:
    """Copies for one sequence, or for several beams. A slot has been made free for each page that the copied blocks have."""

    __slots__ = ("_shared", "_account", "_copies", "_digest_mark", "_mark")

    def __init__(self, shared: SharedState, account: PageCounters | None) -> None:
        self._shared: Final = shared
        self._account: Final = account
        """Counters of the sequence whose call it is."""
        self._copies: Final[list[tuple[SequenceState, int, Block]]] = []
        """Of which sequence's block, by its ordinal, and the copy."""
        self._digest_mark: Final[i64] = shared.storage.digest.mark()
        """Mark of the decisions before the first copy."""
        self._mark: i64 = 0
        """Mark of the timeline after the copies."""

    def add(self, state: SequenceState, ordinals: list[int], priorities: list[int]) -> None:
        """``priorities``: for each block, one entry per life cycle; empty: the default."""
        first: i64 = 0
        try:
            for ordinal in ordinals:
                target = self._shared.tree.pool.take()
                self._copies.append((state, ordinal, target))
                _copy_pages(state, ordinal, target, priorities, first)
                first += self._shared.num_life_cycles
        except BaseException:
            self._free()
            raise

    def finish(self) -> None:
        if len(self._copies) == 0:
            return
        try:
            self._mark = self._shared.order.mark(self._copies[0][0].timeline)
        except BaseException:
            self._free()
            raise

    def _free(self) -> None:
        # The last slot taken is the first on the stack again: the next call takes the same ones.
        for state, _ordinal, target in self._copies[::-1]:
            free_copy(state, target)
        self._shared.storage.digest.roll_back(self._digest_mark)

    def settle(self, state: SequenceState) -> None:
        """Give the sequence its copies. If the device refuses, and the host cannot wait, it is left half done: call it in a change."""
        for one, ordinal, target in self._copies:
            if one is state:
                _take_copy(state, ordinal, target, self._mark, self._account)


def copy_shared_blocks(state: SequenceState, ordinals: list[int], priorities: list[int], account: PageCounters | None) -> None:
    """All steps in one. If a copy cannot be enqueued, nothing has changed and the device's error is raised."""
    staged = StagedCopies(state.shared, account)
    staged.add(state, ordinals, priorities)
    staged.finish()
    with state.shared.storage.changes:
        staged.settle(state)


def _copy_pages(state: SequenceState, ordinal: i64, target: Block, priorities: list[int], first: i64) -> None:
    storage = state.shared.storage
    for life_cycle in range(state.shared.num_life_cycles):
        if state.holds_page(life_cycle, ordinal):
            pool_group = storage.pool_group_of[life_cycle]
            page = target.first_page + life_cycle
            priority: i64 = PRIORITY_DEFAULT if len(priorities) == 0 else priorities[first + life_cycle]
            storage.make_locked_page(page, pool_group, priority, state.timeline)
            copy_page(storage, state.page_of(life_cycle, ordinal), page, pool_group, state.stream)


def _take_copy(state: SequenceState, ordinal: i64, target: Block, mark: i64, account: PageCounters | None) -> None:
    storage = state.shared.storage
    for life_cycle in range(state.shared.num_life_cycles):
        if state.holds_page(life_cycle, ordinal):
            state.tables[life_cycle].set(ordinal, int(storage.rows.slot(target.first_page + life_cycle)))
            if state.is_published(ordinal):
                priority = storage.rows.priority(target.first_page + life_cycle)
                note_copied(state, state.blocks[ordinal], life_cycle, priority)
            release_page(state, life_cycle, ordinal, mark)
            storage.counters.record_copied(GPU_LEVEL, GPU_LEVEL, storage.pool_group_of[life_cycle], 1, account)
            if state.request.counters is not None:
                state.request.counters.add_blocks(life_cycle, ALLOCATED, 1)
    release_owner(state.shared.tree, state.blocks[ordinal])
    state.blocks[ordinal] = target
    if ordinal == state.num_published:
        state.tail.is_published = False
        state.tail.copies_on_resume = False


def free_copy(state: SequenceState, target: Block) -> None:
    """The copies may be under way: their slots may be touched again when this stream is done with them."""
    storage = state.shared.storage
    with storage.changes:
        mark = state.shared.order.mark(state.timeline)
        # The last slot taken is the first on the stack again: the next call takes the same ones.
        for life_cycle in range(state.shared.num_life_cycles - 1, -1, -1):
            page = target.first_page + life_cycle
            if storage.rows.has_page(page):
                storage.free_unfinished_page(page, storage.pool_group_of[life_cycle], state.timeline, mark)
        state.shared.tree.pool.release(target)
