"""Early copies: published pages are copied down before they are evicted, and stay where they are (`write_policy="through"`).

A page on level 0 gets a clean copy on level 1, so that evicting on level 0 later costs nothing. For its slot, and where no free one
is left, the least valuable droppable page of level 1 goes, as it would when the page itself was offloaded; never another page's
copy. Where there is none to go, or the device refuses, the page has no copy and is written when it goes. A page that is still on its
way from a disk is copied after its read, in stream order: what is written never depends on whether a read is done.

A durable level gets a copy of every published page in the same way, from whatever level above it the page lies on: so what another
process needs of a prefix is there before what comes behind it. A request to a disk costs as much for one page as for many: pages are put
off until there are `MOST_PUT_OFF`, or until no sequence is active.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.package_log import PackageLog
from ..events.removal_cause import CAPACITY
from .page_rows import NO_PAGE, PLACE, ROW_WORDS, WordColumn, level_of_place, priority_of_place
from .page_storage import PageStorage
from .slot_reclaimer import SlotReclaimer

MOST_PUT_OFF: Final = 64
"""Pages that wait for others."""

_logger: Final = PackageLog("kv_cache_manager_v2")


@final
class EarlyCopies:
    __slots__ = ("_storage", "_room", "_min_offload_priority", "_target", "_put_off", "_is_put_off")

    def __init__(self, storage: PageStorage, room: SlotReclaimer, min_offload_priority: i64) -> None:
        self._storage: Final = storage
        self._room: Final = room
        self._min_offload_priority: Final = min_offload_priority
        """Pages of a lower priority are not copied: they would be dropped rather than offloaded."""
        is_durable = storage.durable is not None and not storage.durable.is_read_only
        # One that is only read is level 1 too, where copies are made early.
        self._target: Final[i64] = storage.durable.index if storage.durable is not None else 1
        """The level that gets the copies."""
        self._put_off = vec[i64]()
        """Pages to be copied, in the order in which they were published; since then a row may have become another page's."""
        self._is_put_off: Final[WordColumn] = storage.rows.add_words(0) if is_durable else WordColumn(0)
        """By page: 1 for those. Has entries where the target is durable."""

    def offload_copies(self, pages: vec[i64]) -> None:
        """Copy those of the published pages that lie above the level of copies and have none; never fails for want of room."""
        if self._storage.closed.has_disks:
            self._storage.closed.look()
            if self._storage.closed.is_closed(self._target):
                return
        num_begun = self._storage.changes.num_begun
        for pool_group in range(self._storage.num_pool_groups):
            for level in range(self._target):
                wanted = self._choose(pages, level, pool_group)
                if len(wanted) > 0:
                    try:
                        self._write_group(wanted, level, pool_group)
                    except AssertionError:
                        raise
                    except Exception as error:
                        if self._storage.changes.num_begun > num_begun:
                            raise  # in the middle of a change: the manager is broken, and this is why
                        _logger.warning("%s; these pages are written when they have to go", str(error))

    def put_off_block(self, first_page: i64, num_life_cycles: i64) -> None:
        """`offload_copies` of a block, later: with `offload_if_many`."""
        words = self._storage.rows.words
        copies = self._storage.copies
        is_put_off = self._is_put_off.words
        for page in range(first_page, first_page + num_life_cycles):
            if not copies.has_copy(page) and is_put_off[page] == 0:
                place = words[page * ROW_WORDS + PLACE]
                if place != NO_PAGE and level_of_place(place) < self._target:
                    grown = append(self._put_off, page)
                    # Both or, interrupted, neither.
                    self._put_off = grown
                    is_put_off[page] = 1

    def offload_if_many(self) -> None:
        if len(self._put_off) >= MOST_PUT_OFF:
            self.offload_put_off()

    def offload_if_idle(self) -> None:
        """Where no page is in use, there may be no call for a long time."""
        if len(self._put_off) > 0:
            for num_locked in self._storage.num_locked:
                if num_locked > 0:
                    return
            self.offload_put_off()

    def offload_put_off(self) -> None:
        """Copy now what was put off."""
        owner = self._storage.owner()
        rows = self._storage.rows
        is_put_off = self._is_put_off.words
        pages = vec[i64](capacity=len(self._put_off))
        for page in self._put_off:
            if rows.has_page(page) and owner.is_published(page):
                pages = append(pages, page)
        with self._storage.changes:
            for page in self._put_off:
                is_put_off[page] = 0
            # Empty first: reclaiming slots may drop pages, and a copy that is refused is not tried again.
            self._put_off = vec[i64]()
        self.offload_copies(pages)

    def _choose(self, pages: vec[i64], level: i64, pool_group: i64) -> vec[i64]:
        storage = self._storage
        words = storage.rows.words
        none_is_lost = storage.reads.is_idle
        is_only_group = storage.num_pool_groups == 1
        chosen = vec[i64](capacity=len(pages))
        for page in pages:
            place = words[page * ROW_WORDS + PLACE]
            if (
                place != NO_PAGE
                and level_of_place(place) == level
                and (is_only_group or storage.pool_group_of_page(page) == pool_group)
                and priority_of_place(place) >= self._min_offload_priority
                and not storage.copies.has_copy(page)
                and (none_is_lost or int(page) not in storage.reads.lost)
            ):
                chosen = append(chosen, page)
        return chosen

    def _write_group(self, wanted: vec[i64], level: i64, pool_group: i64) -> None:
        storage = self._storage
        index = self._target * storage.num_pool_groups + pool_group
        allocator = storage.allocators[index]
        count: i64 = len(wanted)
        missing = count - (allocator.num_free - allocator.num_aside)
        if missing > 0:
            droppable = storage.queues[index].num_pages
            if missing > droppable:
                missing = droppable
            if missing > 0:
                self._room.free_slots(self._target, pool_group, allocator.num_free + missing, CAPACITY, None)
                # What went may have taken along pages of level 0.
                wanted = self._choose(wanted, level, pool_group)
        count = len(wanted)
        if count > allocator.num_free - allocator.num_aside:
            count = allocator.num_free - allocator.num_aside
        if count <= 0:
            return
        moves = self._room.moves
        moves.begin()
        try:
            moves.add_all(wanted[:count], index)
            point = moves.enqueue(pool_group, level, self._target)
        except BaseException:
            moves.undo(level, pool_group, self._target)
            raise
        with storage.changes:
            storage.counters.record_copied(level, self._target, pool_group, count)
            ready = allocator.ready
            for slot in moves.targets:
                ready[slot] = point
            storage.copies.keep_all(moves.pages, index, moves.targets, point)
