"""Making room: which pages have to go, down a level or out of the cache.

`RoomCount` has said before that the slots are to be had. Droppable pages go first, each the least valuable of its level; held
ones only where no droppable page of the same or a lower priority is left. A page that has to go goes down one level, where it
may push others down in turn; on the last level droppable pages are dropped.
"""

import logging
from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from ..base.errors import PageMoveError
from ..base.growing_arrays import reserve_words
from ..device.stream_order import NO_POINT, StreamOrder
from ..events.removal_cause import CAPACITY
from .decision_digest import VICTIM
from .move_batch import MoveBatch
from .page_mover import PageMover
from .page_rows import NO_PAGE
from .page_storage import GPU, PageStorage
from .victim_queue import NO_VICTIM

_logger = logging.getLogger("kv_cache_manager_v2")


@final
@mypyc_attr(native_class=True)
class SlotReclaimer:
    __slots__ = ("drop_cause", "min_offload_priority", "moves", "_storage", "_mover", "_order")

    drop_cause: i64
    """Why room is made: the `removal_cause` of what is dropped for it."""
    min_offload_priority: i64
    """Droppable pages of a lower priority are dropped rather than moved down."""
    moves: Final[MoveBatch]
    """Of whoever moves pages: there is one batch at a time."""
    _storage: Final[PageStorage]
    _mover: Final[PageMover]
    _order: Final[StreamOrder]

    def __init__(self, storage: PageStorage, mover: PageMover) -> None:
        self.drop_cause = CAPACITY
        self.min_offload_priority = 0
        self.moves = MoveBatch(storage, mover)
        self._storage = storage
        self._mover = mover
        self._order = storage.order

    def make_room(self, needed: vec[i64]) -> None:
        """Make ``needed`` slots per pool group of level 0 free; `RoomCount` has said that they are to be had.

        `PageMoveError` if the device refuses a copy: fewer may be free than asked for, and nothing is lost.
        """
        for pool_group in range(self._storage.num_pool_groups):
            if self._storage.allocators[pool_group].num_free < needed[pool_group]:
                self.free_slots(GPU, pool_group, needed[pool_group])
                assert self._storage.allocators[pool_group].num_free >= needed[pool_group], "no victim where one was counted"

    def make_room_or_drop(self, needed: vec[i64]) -> None:
        """The same, for slots whose number `free` and droppable pages of level 0 cover: what cannot be moved is dropped."""
        storage = self._storage
        for pool_group in range(storage.num_pool_groups):
            allocator = storage.allocators[pool_group]
            if allocator.num_free < needed[pool_group]:
                try:
                    self.free_slots(GPU, pool_group, needed[pool_group])
                except PageMoveError as error:
                    _logger.warning("%s; droppable pages of level 0 are dropped instead", str(error))
                while allocator.num_free < needed[pool_group]:
                    self._drop_first(pool_group, pool_group)

    def free_slots(self, level: i64, pool_group: i64, wanted: i64) -> None:
        """Make up to ``wanted`` slots of a level free: as many as held pages in the way can go down."""
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        allocator = storage.allocators[index]
        queue = storage.queues[index]
        if level == storage.last_level or (level + 1 >= storage.closed.first and storage.closed.is_closed(level + 1)):
            if allocator.num_free < wanted and queue.num_pages > 0:
                storage.drop_victims(level, pool_group, wanted, self.drop_cause)
            return
        below = index + storage.num_pool_groups
        held = storage.held_queues[index]
        while allocator.num_free < wanted:
            if self.min_offload_priority > 0 and self._drop_below_min_priority(index, pool_group):
                continue
            missing = wanted - allocator.num_free
            evictable = queue.num_pages + held.num_pages
            if missing > evictable:
                missing = evictable
            if missing == 0:
                return
            if queue.count_first() > 0:
                missing = self._bound_out_of_window(level, pool_group, missing)
                if missing == 0:
                    self._drop_first(index, pool_group)
                    continue
            # The levels below first: what is dropped there may take along pages of this one.
            if storage.allocators[below].num_free < missing:
                self.free_slots(level + 1, pool_group, missing)
            room = storage.allocators[below].num_free
            num_queued = queue.num_pages + held.num_pages
            if num_queued < evictable:
                continue
            if room < missing:
                # All below is needed: the least valuable of what is droppable here goes for good.
                if queue.num_pages > 0:
                    self._drop_first(index, pool_group)
                    continue
                if room == 0:
                    return
                missing = room
            self._offload_or_drop(level, pool_group, missing)

    def _drop_below_min_priority(self, index: i64, pool_group: i64) -> bool:
        """Drop the next victim if it is not worth moving down."""
        storage = self._storage
        if storage.queues[index].num_pages == 0:
            return False
        page = self._find_victim(index)
        if storage.rows.priority(page) >= self.min_offload_priority:
            return False
        storage.digest.record(VICTIM, page)
        storage.drop_with_owner(page, pool_group, CAPACITY)
        return True

    def _bound_out_of_window(self, level: i64, pool_group: i64, missing: i64) -> i64:
        """How many of so many victims go down together. Those that go before all others here are worth less than what is below: where all
        is full there, they go in place of what goes first there too, and no further; 0: not even one."""
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        below = index + storage.num_pool_groups
        page = self._choose_victim(index)
        if not storage.stands_first(page, index):
            return missing
        num_first = storage.queues[index].count_first()
        if missing > num_first:
            missing = num_first
        for other in range(below + storage.num_pool_groups, len(storage.allocators), storage.num_pool_groups):
            if storage.allocators[other].num_free > 0:
                return missing
        room = storage.allocators[below].num_free + storage.queues[below].count_first()
        if room >= missing:
            return missing
        if room == 0:
            victim = storage.queues[below].first()
            if victim == NO_VICTIM or storage.rows.priority(victim) < storage.rows.priority(page):
                return missing
        return room

    def _drop_first(self, index: i64, pool_group: i64) -> None:
        page = self._find_victim(index)
        storage = self._storage
        storage.digest.record(VICTIM, page)
        storage.drop_with_owner(page, pool_group, self.drop_cause)

    def _find_victim(self, index: i64) -> i64:
        """The droppable page of least value. On one path of the tree the far end goes first: a page with others below it
        on its level takes its place behind one of them."""
        storage = self._storage
        queue = storage.queues[index]
        while True:
            page = queue.first()
            assert page != NO_VICTIM, "no victim where one was counted"
            below = storage.find_page_below(page)
            if below == NO_PAGE:
                return page
            storage.defer(index, page, below)

    def _choose_victim(self, index: i64) -> i64:
        """The next page to go down; a held one only if it has a lower priority than every droppable one."""
        storage = self._storage
        held = storage.held_queues[index]
        if held.num_pages == 0:
            return self._find_victim(index)
        first_held = held.first()
        if storage.queues[index].num_pages == 0:
            return first_held
        page = self._find_victim(index)
        return first_held if storage.rows.priority(first_held) < storage.rows.priority(page) else page

    def _offload_or_drop(self, level: i64, pool_group: i64, count: i64) -> None:
        """Move ``count`` victims into free slots of the next level; those that have a copy there go to it."""
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        moves = self.moves
        moves.begin(count)
        # Before the first victim leaves its queue: what has no memory for its lists has changed nothing.
        chosen = vec[i64]([NO_PAGE] * count)
        to_copy = reserve_words(vec[i64](), count)
        first_to_copy = vec[i64]()
        first_to_write = vec[i64]()
        to_write = reserve_words(vec[i64](), count)
        num_chosen: i64 = 0
        try:
            while num_chosen < count:
                page = self._choose_victim(index)
                is_first = storage.stands_first(page, index)
                storage.take_out_victim(page, pool_group)
                chosen[num_chosen] = page
                num_chosen += 1
                if storage.copies.num_copies > 0 and self._has_good_copy(page, index + storage.num_pool_groups):
                    to_copy = append(to_copy, page)
                    if is_first:
                        first_to_copy = append(first_to_copy, page)
                else:
                    to_write = append(to_write, page)
                    if is_first:
                        first_to_write = append(first_to_write, page)
        except MemoryError:
            self._put_all_back(chosen, pool_group, num_chosen)
            raise
        if len(to_copy) > 0:
            try:
                self._go_to_copies(level, pool_group, to_copy)
            except BaseException:
                self._put_all_back(chosen, pool_group, count)
                raise
            count = len(to_write)
            self._put_below(to_copy, first_to_copy, pool_group)
            if count == 0:
                return
        try:
            for page in to_write:
                moves.add(page, index + storage.num_pool_groups)
            point = moves.enqueue(pool_group, level, level + 1)
        except BaseException:
            try:
                moves.undo(level, pool_group, level + 1)
            finally:
                self._put_all_back(to_write, pool_group, count)
            raise
        storage.changes.begin()
        for position in range(count):
            page = moves.pages[position]
            storage.num_evicted[index] += 1
            storage.digest.record(VICTIM, page)
            moves.settle(position, index, level + 1, pool_group, point)
        self._put_below(to_write, first_to_write, pool_group)
        storage.changes.end()

    def _put_below(self, pages: vec[i64], first_pages: vec[i64], pool_group: i64) -> None:
        """Into their queues on the level they have come to. What stood before all others does so again, in the same order."""
        num_first: i64 = 0
        for page in pages:
            if num_first < len(first_pages) and first_pages[num_first] == page:
                num_first += 1
            else:
                self._storage.put_back(page, pool_group)
        while num_first > 0:
            num_first -= 1
            self._storage.put_back_first(first_pages[num_first], pool_group)

    def _put_all_back(self, pages: vec[i64], pool_group: i64, count: i64) -> None:
        """The device refused: victims are next in line again, in the order in which they were chosen."""
        while count > 0:
            count -= 1
            self._storage.put_back_first(pages[count], pool_group)

    def _has_good_copy(self, page: i64, index: i64) -> bool:
        storage = self._storage
        if not storage.copies.has_copy_at(page, index):
            return False
        if storage.reads.is_idle or int(page) not in storage.reads.lost:
            return True
        storage.copies.forget(page)
        return False

    def _go_to_copies(self, level: i64, pool_group: i64, pages: vec[i64]) -> None:
        """Nothing is moved: the pages lie where their copies are. Whoever takes their slots waits until the copies were made.

        What the device may refuse comes before the first change.
        """
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        ready = storage.allocators[index].ready
        timeline: i64 = -1
        mark: i64 = NO_POINT
        for page in pages:
            if storage.copies.read_point(page) != NO_POINT:
                timeline = self._mover.timeline(level, level + 1)
                self._order.wait(timeline, ready[storage.rows.slot(page)])
        if timeline >= 0:
            # Behind all copies that were written down, and all that the slots wait for.
            mark = self._order.mark(timeline)
        storage.changes.begin()
        for page in pages:
            slot = storage.rows.slot(page)
            point = ready[slot]
            was_written = storage.copies.read_point(page) != NO_POINT
            target = storage.copies.take(page)
            if was_written:
                point = mark
            else:
                # It came up from there: what a disk may have failed to read is there still.
                storage.reads.forget_read(page, level + 1, target)
            storage.num_evicted[index] += 1
            storage.digest.record(VICTIM, page)
            storage.place_page(page, level + 1, target)
            storage.free_slot(index, slot, point)
        storage.changes.end()
