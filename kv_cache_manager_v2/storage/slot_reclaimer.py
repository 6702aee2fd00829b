"""The slot reclaimer frees slots: it offloads pages by a level, or drops them.

`RoomCount` has said before that the slots are to be had. Droppable pages go first, the least valuable of their level; held ones only
where no droppable page of the same or a lower priority is left. An offloaded page takes a slot of the next level, where other pages
may have to be offloaded for it in turn; on the last level droppable pages are dropped. What happens to the next victims of a level:

    case                                                                        outcome
    the level is the last one that takes pages                                  dropped, all at once
    its priority is below ``min_offload_priority``                              dropped
    it is less likely to be reused than the next level's floor says             dropped
    evict-first, and the levels below are full of pages of more value           dropped
    the next level has slots for them, after eviction there                     offloaded in one batch
    it has too few, and droppable pages are here                                the least valuable of these is dropped
    it has a few, and only held pages are here                                  as many as fit are offloaded
    it has none, and only held pages are here                                   they stay: fewer slots are free than asked for

Where all levels are LEARNED (`PageStorage.has_one_order`) and those below are full, the page of least value is dropped, wherever it lies
(`DropOrder`): one of this level is not written down then, and what a level below drops leaves a slot to the next victim of this one. Nor is
one written over a clean copy of another page if it would be the one to be dropped.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..base.errors import PageMoveError
from ..base.package_log import PackageLog
from ..device.stream_order import NO_POINT, StreamOrder
from ..events.removal_cause import CAPACITY
from ..stats.page_counters import PageCounters
from .decision_digest import VICTIM
from .drop_order import NO_LEVEL, DropOrder
from .move_batch import MoveBatch
from .page_mover import PageMover
from .page_owner import ANY_LEVEL
from .page_queues import defer, put_back, put_back_first, stands_first, take_out_victim
from .page_removal import drop_victims, drop_with_owner, find_page_below, place_page
from .page_rows import LOW_MASK, NO_PAGE
from .page_storage import GPU, PageStorage
from .victim_queue import NO_VICTIM

_logger: Final = PackageLog("kv_cache_manager_v2")

_DROP: Final = 0
_STOP: Final = -1
_LOOK_AGAIN: Final = -2

# A chosen victim is one number: its page id (`LOW_MASK`), and what there is to say of it.
_EVICT_FIRST: Final = 1 << 32
"""It was evict-first on its level, and is so on the next one."""
_HAS_COPY: Final = 1 << 33
"""The next level has a copy of its bytes already."""


@final
@mypyc_attr(native_class=True)
class SlotReclaimer:
    """``cause``: a `removal_cause`, why slots are freed. ``account``: counters of the sequence whose call it is, or None."""

    __slots__ = ("moves", "_storage", "_mover", "_order", "_min_offload_priority", "_drops", "_one")

    moves: Final[MoveBatch]
    """The batch of all that moves pages: there is one at a time."""
    _storage: Final[PageStorage]
    _mover: Final[PageMover]
    _order: Final[StreamOrder]
    _min_offload_priority: Final[i64]
    """Droppable pages of a lower priority are dropped rather than offloaded."""
    _drops: Final[DropOrder]
    _one: Final[vec[i64]]

    def __init__(self, storage: PageStorage, mover: PageMover, min_offload_priority: i64) -> None:
        self.moves = MoveBatch(storage, mover)
        self._storage = storage
        self._mover = mover
        self._order = storage.order
        self._min_offload_priority = min_offload_priority
        self._drops = DropOrder(storage)
        self._one = vec[i64]([NO_PAGE])

    def make_room(self, needed: vec[i64], account: PageCounters | None) -> None:
        """Make ``needed`` slots per pool group of level 0 free; `RoomCount` has said that they are to be had.

        `PageMoveError` if the device refuses a copy: fewer may be free than asked for, and nothing is lost.
        """
        for pool_group in range(self._storage.num_pool_groups):
            if self._storage.allocators[pool_group].num_free < needed[pool_group]:
                self.free_slots(GPU, pool_group, needed[pool_group], CAPACITY, account)
                assert self._storage.allocators[pool_group].num_free >= needed[pool_group], "no victim where one was counted"

    def make_room_or_drop(self, needed: vec[i64], account: PageCounters | None) -> None:
        """The same, for slots whose number `free` and droppable pages of level 0 cover: what cannot be moved is dropped."""
        storage = self._storage
        for pool_group in range(storage.num_pool_groups):
            allocator = storage.allocators[pool_group]
            if allocator.num_free < needed[pool_group]:
                try:
                    self.free_slots(GPU, pool_group, needed[pool_group], CAPACITY, account)
                except PageMoveError as error:
                    _logger.warning("%s; droppable pages of level 0 are dropped instead", str(error))
                while allocator.num_free < needed[pool_group]:
                    self._drop_first(pool_group, pool_group, CAPACITY, account)

    def free_slots(self, level: i64, pool_group: i64, wanted: i64, cause: i64, account: PageCounters | None) -> None:
        """Make up to ``wanted`` slots of a level free: as many as held pages in the way can be offloaded."""
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        if storage.has_one_order:
            self._free_in_order(level, pool_group, wanted, cause, account)
            return
        while True:
            missing = wanted - self._count_free_at(index)
            if missing <= 0:
                return
            count = self._find_case(level, pool_group, missing, cause, account)
            if count > 0:
                self._offload(level, pool_group, count, account)
            elif count == _DROP:
                self._drop_first(index, pool_group, cause, account)
            elif count == _STOP:
                return

    def _count_free_at(self, index: i64) -> i64:
        """Slots for which nothing need be evicted there. On a durable level copies of pages on warmer levels outlast the pages whose home
        is there, which are colder: another process needs the copies of a prefix to find what is behind it."""
        storage = self._storage
        allocator = storage.allocators[index]
        if storage.durable is not None and index // storage.num_pool_groups == storage.last_level:
            return allocator.num_free - allocator.num_aside
        return allocator.num_free

    def _find_case_without_lower(self, level: i64, pool_group: i64, missing: i64, cause: i64, account: PageCounters | None) -> i64:
        """Where no level below takes pages. Pages that came from a level below that is only read go back to the slots that they have
        there, which nothing else takes."""
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        if storage.queues[index].num_pages == 0:
            return _STOP
        if storage.durable is not None and storage.durable.is_read_only and level + 1 == storage.last_level:
            return 1 if self._has_good_copy(self._choose_victim(index), index + storage.num_pool_groups) else _DROP
        drop_victims(storage, level, pool_group, storage.allocators[index].num_free + missing, cause, account)
        return _LOOK_AGAIN

    def _find_case(self, level: i64, pool_group: i64, missing: i64, cause: i64, account: PageCounters | None) -> i64:
        """How many victims to offload in one batch, or `_DROP` the next one, `_STOP`, or `_LOOK_AGAIN`: the table above."""
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        below = index + storage.num_pool_groups
        queue = storage.queues[index]
        held = storage.held_queues[index]
        if level == storage.last_level or (level + 1 >= storage.closed.first and storage.closed.is_closed(level + 1)):
            return self._find_case_without_lower(level, pool_group, missing, cause, account)
        if self._drop_unwanted(level, pool_group, account):
            return _LOOK_AGAIN
        evictable = queue.num_pages + held.num_pages
        if missing > evictable:
            missing = evictable
        if missing == 0:
            return _STOP
        if queue.count_first() > 0:
            missing = self._bound_evict_first(level, pool_group, missing)
            if missing == 0:
                return _DROP
        # The levels below first: what is dropped there may take along pages of this one.
        if self._count_free_at(below) < missing:
            self.free_slots(level + 1, pool_group, missing, cause, account)
        room = storage.allocators[below].num_free
        if queue.num_pages + held.num_pages < evictable:
            return _LOOK_AGAIN
        if room >= missing:
            return missing
        if queue.num_pages > 0:
            return _DROP
        return room if room > 0 else _STOP

    def _drop_unwanted(self, level: i64, pool_group: i64, account: PageCounters | None) -> bool:
        """Drop the next victim if its priority is too low for it to be offloaded, or if it is too unlikely to be reused."""
        storage = self._storage
        least_chance = storage.least_chances[level + 1]
        if self._min_offload_priority == 0 and least_chance == 0.0:
            return False
        index = level * storage.num_pool_groups + pool_group
        if storage.queues[index].num_pages == 0:
            return False
        page = self._find_victim(index)
        if storage.rows.priority(page) >= self._min_offload_priority:
            if least_chance == 0.0 or storage.level_orders[pool_group].chance_of_reuse(page) >= least_chance:
                return False
            if find_page_below(storage, page, ANY_LEVEL) != NO_PAGE:
                # What was likelier to be reused is of no use without it.
                return False
        storage.digest.record(VICTIM, page)
        drop_with_owner(storage, page, pool_group, CAPACITY, account)
        return True

    def _bound_evict_first(self, level: i64, pool_group: i64, missing: i64) -> i64:
        """How many of the next ``missing`` victims may be offloaded in one batch; 0: not even one. Where all levels below are full,
        evict-first pages displace evict-first pages only, or pages of a lower priority."""
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        below = index + storage.num_pool_groups
        page = self._choose_victim(index)
        if not stands_first(storage, page, index):
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

    def _drop_first(self, index: i64, pool_group: i64, cause: i64, account: PageCounters | None) -> None:
        page = self._find_victim(index)
        storage = self._storage
        storage.digest.record(VICTIM, page)
        drop_with_owner(storage, page, pool_group, cause, account)

    def _find_victim(self, index: i64) -> i64:
        """The droppable page of least value. Of one path of the tree the leaf goes first: a page with others below it
        on its level takes its place behind one of them."""
        storage = self._storage
        queue = storage.queues[index]
        while True:
            page = queue.first()
            assert page != NO_VICTIM, "no victim where one was counted"
            below = find_page_below(storage, page, storage.rows.level(page))
            if below == NO_PAGE:
                return page
            defer(storage, index, page, below)

    def _choose_victim(self, index: i64) -> i64:
        """The next page to be offloaded; a held one only if it has a lower priority than every droppable one."""
        storage = self._storage
        held = storage.held_queues[index]
        if held.num_pages == 0:
            return self._find_victim(index)
        first_held = held.first()
        if storage.queues[index].num_pages == 0:
            return first_held
        page = self._find_victim(index)
        return first_held if storage.rows.priority(first_held) < storage.rows.priority(page) else page

    # -- one order over all levels ------------------------------------------------------------------------------------

    def _free_in_order(self, level: i64, pool_group: i64, wanted: i64, cause: i64, account: PageCounters | None) -> None:
        storage = self._storage
        allocator = storage.allocators[level * storage.num_pool_groups + pool_group]
        last = storage.closed.first - 1
        while allocator.num_free < wanted:
            missing = wanted - allocator.num_free
            if level >= last:
                if self._drops.find_level(level, level, pool_group) == NO_LEVEL:
                    return
                self._drop_least(level, pool_group, missing, cause, account)
                continue
            count = self._find_case_in_order(level, last, pool_group, missing, cause, account)
            if count > 0:
                self._offload(level, pool_group, count, account)
            elif count == _STOP:
                return

    def _find_case_in_order(
        self, level: i64, last: i64, pool_group: i64, missing: i64, cause: i64, account: PageCounters | None
    ) -> i64:
        """How many victims to offload in one batch, `_STOP`, or `_LOOK_AGAIN` after a drop."""
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        queue = storage.queues[index]
        held = storage.held_queues[index]
        if self._drop_unwanted(level, pool_group, account):
            return _LOOK_AGAIN
        evictable = queue.num_pages + held.num_pages
        if missing > evictable:
            missing = evictable
        if missing == 0:
            return _STOP
        page = self._choose_victim(index)
        is_held = storage.rows.num_holds(page) > 0
        missing = self._count_held(index, page, missing) if is_held else self._count_alike(index, page, missing)
        free = self._count_free(level + 1, last, pool_group)
        if not is_held and storage.copies.num_copies > 0 and not storage.copies.has_copy_at(page, index + storage.num_pool_groups):
            plain = self._count_plain(level + 1, last, pool_group)
            if 0 < plain < missing:
                missing = plain
            elif plain == 0 and self._drops.find_level(level, last, pool_group) == level:
                self._drop_least(level, pool_group, missing, cause, account)
                return _LOOK_AGAIN
        while free < missing:
            chosen = self._drops.find_level(level + 1 if is_held else level, last, pool_group)
            if chosen == NO_LEVEL or (chosen == level and free > 0):
                break
            if chosen == level:
                self._drop_least(level, pool_group, missing, cause, account)
                return _LOOK_AGAIN
            self._drop_least(chosen, pool_group, missing - free, cause, account)
            free = self._count_free(level + 1, last, pool_group)
            if queue.num_pages + held.num_pages < evictable:
                return _LOOK_AGAIN
        if missing > free:
            missing = free
        below = storage.allocators[index + storage.num_pool_groups]
        if below.num_free < missing:
            self._free_in_order(level + 1, pool_group, missing, cause, account)
            if queue.num_pages + held.num_pages < evictable:
                return _LOOK_AGAIN
            # A small level below, or one whose pages are on their way up, frees fewer; a page that goes with others frees more.
            if missing > below.num_free:
                missing = below.num_free
        if missing > 0:
            return missing
        if self._drops.find_level(level, level, pool_group) == NO_LEVEL:
            return _STOP
        self._drop_least(level, pool_group, 1, cause, account)
        return _LOOK_AGAIN

    def _count_free(self, level: i64, last: i64, pool_group: i64) -> i64:
        """Free slots from that level on."""
        storage = self._storage
        count: i64 = 0
        while level <= last:
            count += storage.allocators[level * storage.num_pool_groups + pool_group].num_free
            level += 1
        return count

    def _count_plain(self, level: i64, last: i64, pool_group: i64) -> i64:
        """Those of them that hold no clean copy."""
        storage = self._storage
        count = self._count_free(level, last, pool_group)
        while level <= last:
            count -= storage.allocators[level * storage.num_pool_groups + pool_group].num_aside
            level += 1
        return count

    def _count_alike(self, index: i64, page: i64, most: i64) -> i64:
        """The droppable victims from ``page`` on of equal value, up to ``most``: all have a copy on the next level, or none."""
        storage = self._storage
        copies = storage.copies
        order = storage.level_orders[index % storage.num_pool_groups]
        most = order.count_alike(page, most)
        if copies.num_copies == 0:
            return most
        below = index + storage.num_pool_groups
        has_copy = copies.has_copy_at(page, below)
        count: i64 = 1
        while count < most:
            page = order.following(page)
            if page == NO_VICTIM or copies.has_copy_at(page, below) != has_copy:
                break
            count += 1
        return count

    def _count_held(self, index: i64, page: i64, most: i64) -> i64:
        """The held pages, ``page`` first, that go before all droppable ones; as many as ``most``."""
        storage = self._storage
        held = storage.held_queues[index]
        if storage.queues[index].num_pages == 0:
            return most if most < held.num_pages else held.num_pages
        priority = storage.rows.priority(self._find_victim(index))
        count: i64 = 1
        while count < most:
            if held.list_following(page, self._one, 0, 1) == 0:
                break
            page = self._one[0]
            if storage.rows.priority(page) >= priority:
                break
            count += 1
        return count

    def _drop_least(self, level: i64, pool_group: i64, most: i64, cause: i64, account: PageCounters | None) -> None:
        """Drop the page that `DropOrder` has found there, with up to ``most`` of its level of equal value."""
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        allocator = storage.allocators[index]
        page = self._drops.victim
        count = storage.level_orders[pool_group].count_alike(page, most)
        if count > 1 and not self._drops.goes_alone:
            free = allocator.num_free
            drop_victims(storage, level, pool_group, free + count, cause, account)
            if allocator.num_free > free:
                return
        storage.digest.record(VICTIM, page)
        drop_with_owner(storage, page, pool_group, cause, account)

    # -- offloading a batch -------------------------------------------------------------------------------------------

    def _offload(self, level: i64, pool_group: i64, count: i64, account: PageCounters | None) -> None:
        """Offload ``count`` victims into free slots of the next level; those that have a copy there take its slot."""
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        moves = self.moves
        moves.begin(count)
        victims = self._take_victims(index, pool_group, count)
        num_copied: i64 = 0
        for victim in victims:
            if (victim & _HAS_COPY) != 0:
                num_copied += 1
        if num_copied > 0:
            try:
                self._move_to_copies(level, pool_group, victims)
            except BaseException:
                self._put_back(victims, pool_group, 0)
                raise
            self._queue_below(victims, pool_group, _HAS_COPY)
            if num_copied == count:
                return
        try:
            for victim in victims:
                if (victim & _HAS_COPY) == 0:
                    moves.add(victim & LOW_MASK, index + storage.num_pool_groups)
            point = moves.enqueue(pool_group, level, level + 1)
        except BaseException:
            try:
                moves.undo(level, pool_group, level + 1)
            finally:
                self._put_back(victims, pool_group, _HAS_COPY)
            raise
        storage.changes.begin()
        for position in range(count - num_copied):
            storage.num_evicted[index] += 1
            storage.digest.record(VICTIM, moves.pages[position])
            moves.settle(position, index, level + 1, pool_group, point, account)
        self._queue_below(victims, pool_group, 0)
        storage.changes.end()

    def _take_victims(self, index: i64, pool_group: i64, count: i64) -> vec[i64]:
        """The next victims, out of their queues: page ids, with `_EVICT_FIRST` and `_HAS_COPY`."""
        storage = self._storage
        # Before the first victim leaves its queue: what has no memory for the list has changed nothing.
        victims = vec[i64]([NO_PAGE] * count)
        num_taken: i64 = 0
        try:
            for position in range(count):
                page = self._choose_victim(index)
                victims[position] = page | _EVICT_FIRST if stands_first(storage, page, index) else page
                take_out_victim(storage, page, pool_group)
                num_taken += 1
                if storage.copies.num_copies > 0 and self._has_good_copy(page, index + storage.num_pool_groups):
                    victims[position] |= _HAS_COPY
        except MemoryError:
            self._put_back(victims[:num_taken], pool_group, 0)
            raise
        return victims

    def _queue_below(self, victims: vec[i64], pool_group: i64, kind: i64) -> None:
        """Queue the victims of a kind (`_HAS_COPY` or 0) on their new level. Evict-first ones are so again, in the same order."""
        for victim in victims:
            if (victim & ~LOW_MASK) == kind:
                put_back(self._storage, victim & LOW_MASK, pool_group)
        for position in range(len(victims) - 1, -1, -1):
            if (victims[position] & ~LOW_MASK) == kind + _EVICT_FIRST:
                put_back_first(self._storage, victims[position] & LOW_MASK, pool_group)

    def _put_back(self, victims: vec[i64], pool_group: i64, moved: i64) -> None:
        """The device refused: victims that have not ``moved`` (`_HAS_COPY`, or 0: none has) are the next ones again, in their order."""
        for position in range(len(victims) - 1, -1, -1):
            if (victims[position] & moved) == 0:
                put_back_first(self._storage, victims[position] & LOW_MASK, pool_group)

    def _has_good_copy(self, page: i64, index: i64) -> bool:
        storage = self._storage
        if not storage.copies.has_copy_at(page, index):
            return False
        if storage.reads.is_idle or int(page) not in storage.reads.lost:
            return True
        storage.copies.forget(page)
        return False

    def _move_to_copies(self, level: i64, pool_group: i64, victims: vec[i64]) -> None:
        """Victims that have a copy lie there from now on, and nothing is copied. The next user of their slots waits until the
        copies were made.

        What the device may refuse comes before the first change.
        """
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        ready = storage.allocators[index].ready
        timeline: i64 = -1
        mark: i64 = NO_POINT
        for victim in victims:
            page = victim & LOW_MASK
            if (victim & _HAS_COPY) != 0 and storage.copies.read_point(page) != NO_POINT:
                timeline = self._mover.timeline(level, level + 1)
                self._order.wait(timeline, ready[storage.rows.slot(page)])
        if timeline >= 0:
            # Behind all copies that were offloaded, and all that the slots wait for.
            mark = self._order.mark(timeline)
        storage.changes.begin()
        for victim in victims:
            if (victim & _HAS_COPY) == 0:
                continue
            page = victim & LOW_MASK
            slot = storage.rows.slot(page)
            point = ready[slot]
            was_written = storage.copies.read_point(page) != NO_POINT
            target = storage.copies.take(page)
            if was_written:
                point = mark
            else:
                # It was onboarded from there: what a disk may have failed to read is there still.
                storage.reads.forget_read(page, level + 1, target)
            storage.num_evicted[index] += 1
            storage.digest.record(VICTIM, page)
            place_page(storage, page, level + 1, target)
            storage.slots.free_slot(index, slot, point)
        storage.changes.end()
