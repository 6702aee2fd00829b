"""The pool resizer gives a pool group another number of slots: which pages are evicted, and where those at the end move.

Slots lie side by side, so a level shrinks at its end: pages there move to free slots further in front, in stream order, locked
ones too. Surplus pages are evicted before, as always when slots are reclaimed.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..device.stream_order import NO_POINT
from ..events.removal_cause import SHRUNK
from .page_mover import PageMover
from .page_rows import LOW_MASK, PLACE, ROW_WORDS
from .page_storage import PageStorage
from .room_count import RoomCount
from .slot_reclaimer import SlotReclaimer

NOT_MOVED: Final = -1


@final
class PoolResizer:
    __slots__ = ("_storage", "_count", "_room", "_mover", "limit", "moved_to")

    def __init__(self, storage: PageStorage, count: RoomCount, room: SlotReclaimer, mover: PageMover) -> None:
        self._storage: Final = storage
        self._count: Final = count
        self._room: Final = room
        self._mover: Final = mover
        self.limit: i64 = 0
        """The limit of the latest `relocate`: the first slot behind the new end."""
        self.moved_to = vec[i64]()
        """By slot from ``limit`` on: where its page moved, or NOT_MOVED."""

    def count_must_stay(self, level: i64, pool_group: i64) -> i64:
        """Slots that the level cannot do without: those of pages that may neither be dropped nor be offloaded for want of room."""
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        held = storage.held_queues[index].num_pages
        fixed = storage.allocators[index].num_used - storage.queues[index].num_pages - held
        room = self._count.count_room_below(level, pool_group)
        return fixed + held - room if held > room else fixed

    def evacuate(self, level: i64, pool_group: i64, num_slots: i64) -> None:
        """Have at most ``num_slots`` slots in use. `PageMoveError` if the device refuses; nothing is lost."""
        index = level * self._storage.num_pool_groups + pool_group
        allocator = self._storage.allocators[index]
        if allocator.num_used > num_slots:
            self._room.free_slots(level, pool_group, allocator.num_slots - num_slots, SHRUNK, None)
            assert allocator.num_used <= num_slots, "a level shrinks below what must stay"

    def relocate(self, level: i64, pool_group: i64, num_slots: i64) -> i64:
        """Move what lies behind the first ``num_slots`` slots in front of that end; returns the point after the copies.

        The allocator hands out nothing behind the end any more, and counts what moved as gone from there. If the device
        refuses (`PageMoveError`), all is as before. What reads or writes the pages now is the caller's to wait for.
        """
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        allocator = storage.allocators[index]
        limit = allocator.first_slot + num_slots
        pages = self._collect(level, pool_group, limit)
        count: i64 = len(pages)
        moves = self._room.moves
        moves.begin(count)
        if count > 0:
            # A device that has no stream says so before anything changes.
            self._mover.timeline(level, level)
        # All memory that this takes is taken by now, but for the copies' own.
        allocator.begin_shrink(num_slots)
        if count == 0:
            return NO_POINT
        try:
            for page in pages:
                moves.add(page, index)
            point = moves.enqueue(pool_group, level, level)
        except BaseException:
            moves.undo(level, pool_group, level)
            allocator.cancel_shrink()
            raise
        words = storage.rows.words
        for position in range(count):
            target = moves.targets[position]
            source = moves.sources[position]
            words[pages[position] * ROW_WORDS + PLACE] = (words[pages[position] * ROW_WORDS + PLACE] & ~LOW_MASK) | target
            allocator.ready[target] = point
            allocator.ready[source] = point
            self.moved_to[source - limit] = target
        allocator.retire(count)
        storage.counters.record_copied(level, level, pool_group, count)
        return point

    def _collect(self, level: i64, pool_group: i64, limit: i64) -> vec[i64]:
        """The pages behind that limit."""
        storage = self._storage
        rows = storage.rows
        pages = vec[i64]()
        for page in range(rows.first_page_of_blocks, rows.num_rows):
            if (
                storage.pool_group_of_page(page) == pool_group
                and rows.has_page(page)
                and rows.level(page) == level
                and rows.slot(page) >= limit
            ):
                pages = append(pages, page)
        allocator = storage.allocators[level * storage.num_pool_groups + pool_group]
        self.limit = limit
        self.moved_to = vec[i64]([NOT_MOVED] * (allocator.first_slot + allocator.num_slots - limit))
        return pages
