"""Retention records: when the time of a retained page is over, and how much of it was asked for after the fact.

Time is that of a *clock*: `now_us`, which only `advance_clock` moves, or the pages that requests released in a pool group, where the
policy says how long (`LevelOrder.expect_return`). Pages are looked up again when their time is over: one that was evicted meanwhile, or
whose block has other tokens by now, is passed over.
"""

import heapq
from typing import Final, final

from mypy_extensions import i64

from ..base.ids import PRIORITY_DEFAULT
from ..reuse.block import Block
from ..reuse.block_tokens import own_tokens
from ..reuse.radix_tree import RadixTree
from ..storage.page_storage import PageStorage
from .retention_plan import FOR_EVER, RetentionPlan

NO_CLOCK: Final = -1
"""The clock of a pin that lasts until it is released."""
SECONDS: Final = 0
"""The clock of durations, in microseconds; those of the pool groups follow."""
_SPARE_ENTRIES: Final = 64


@final
class NotedBlock:
    """A published block of which something was noted; ``priority``: what its pages have, or are to have."""

    __slots__ = ("block", "tokens", "priority")

    def __init__(self, block: Block, block_bytes: i64, priority: int) -> None:
        self.block: Final = block
        self.tokens: Final[bytes] = own_tokens(block, block_bytes)
        """The block is still that one while these are its own."""
        self.priority: Final = priority

    def is_there(self) -> bool:
        return self.block.parent is not None and self.block.tokens is self.tokens


@final
class RetentionRecords:
    __slots__ = ("now_us", "num_expected", "_storage", "_tree", "_ends", "_timed", "_next_number", "_pins", "_max_pinned")

    def __init__(self, storage: PageStorage, tree: RadixTree, max_pinned_blocks: int) -> None:
        self.now_us: i64 = 0
        self.num_expected: i64 = 0
        """Ends by the clocks of pool groups that have not come."""
        self._storage: Final = storage
        self._tree: Final = tree
        self._ends: Final[list[list[tuple[int, int, NotedBlock]]]] = [[] for _ in range(storage.num_pool_groups + 1)]
        """By clock: a heap of (time, running number, the block) of ends that have not come. Those that are not in `_timed` are void: a
        later call has given the block another priority, and the end of this time changes nothing."""
        self._timed: Final[dict[int, NotedBlock]] = {}
        """By first page."""
        self._next_number = 0
        self._pins: Final[dict[int, NotedBlock]] = {}
        """Blocks that `pin` has raised, by first page, the oldest first."""
        self._max_pinned: Final = max_pinned_blocks

    # -- durations ----------------------------------------------------------------------------------------------------

    def record_published(self, plan: RetentionPlan, block: Block, ordinal: int) -> None:
        """The block of a sequence with durations has joined the tree."""
        priority, duration = plan.find(ordinal)
        if duration != FOR_EVER:
            self._limit(NotedBlock(block, self._tree.block_bytes, priority), SECONDS, int(self.now_us) + duration)

    def _limit(self, entry: NotedBlock, clock: int, end: int) -> None:
        self._timed[int(entry.block.first_page)] = entry
        heapq.heappush(self._ends[clock], (end, self._next_number, entry))
        self._next_number += 1
        if clock != SECONDS:
            self.num_expected += 1
        if sum([len(ends) for ends in self._ends]) > _SPARE_ENTRIES + 2 * len(self._timed):
            self._forget_void()

    def _forget_void(self) -> None:
        """Most ends are void: what is retained again and again must not cost more and more."""
        for clock, ends in enumerate(self._ends):
            kept = [item for item in ends if self._timed.get(int(item[2].block.first_page)) is item[2]]
            if clock != SECONDS:
                self.num_expected -= len(ends) - len(kept)
            heapq.heapify(kept)
            self._ends[clock] = kept

    def advance(self, microseconds: i64) -> None:
        """Time passes: pages whose time is over get the default priority again."""
        self.now_us += microseconds
        self._end(SECONDS, self.now_us)

    def end_expected(self) -> None:
        """Requests have released pages: the same by the clocks of the pool groups."""
        for pool_group in range(self._storage.num_pool_groups):
            self.num_expected -= self._end(1 + pool_group, self._storage.level_orders[pool_group].clock)

    def _end(self, clock: int, now: i64) -> int:
        """All whose end by the clock has come; how many these are."""
        num_ended = 0
        ends = self._ends[clock]
        while len(ends) > 0 and ends[0][0] <= now:
            num_ended += 1
            entry = heapq.heappop(ends)[2]
            key = int(entry.block.first_page)
            if self._timed.get(key) is not entry:
                continue
            del self._timed[key]
            if self._pins.get(key) is entry:
                del self._pins[key]
            if entry.is_there():
                self._set_priority(entry.block, PRIORITY_DEFAULT, entry.priority)
        return num_ended

    # -- after the fact -----------------------------------------------------------------------------------------------

    def pin(self, block: Block, priority: int, clock: int, end: int) -> bool:
        """Raise the priority of a published block's pages until ``end`` by the clock; False if as many blocks as may be are pinned."""
        key = int(block.first_page)
        known = self._pins.get(key)
        if known is None or not known.is_there():
            if len(self._pins) >= self._max_pinned:
                for old in [page for page, entry in self._pins.items() if not entry.is_there()]:
                    del self._pins[old]
                if len(self._pins) >= self._max_pinned:
                    return False
        self.release(block, priority)
        pin = NotedBlock(block, self._tree.block_bytes, priority)
        self._pins[key] = pin
        if clock != NO_CLOCK:
            self._limit(pin, clock, end)
        return True

    def release(self, block: Block, priority: int) -> None:
        """The block's pages have that priority from now on, whatever raised them before."""
        key = int(block.first_page)
        self._pins.pop(key, None)
        self._timed.pop(key, None)
        self._set_priority(block, priority, -1)

    def _set_priority(self, block: Block, priority: int, only_from: int) -> None:
        """``only_from``: only where the priority is that one; -1: wherever it is another."""
        storage = self._storage
        for life_cycle in range(storage.rows.num_life_cycles):
            page = block.first_page + life_cycle
            if storage.rows.has_page(page):
                present = int(storage.rows.priority(page))
                if present != priority and (only_from < 0 or present == only_from):
                    storage.set_priority(page, storage.pool_group_of[life_cycle], priority)
