"""The slot reclaimer frees slots: it offloads pages by a level, or drops them.

`RoomCount` has said before that the slots are to be had. Droppable pages go first, the least valuable of their level; held ones only
where no droppable page of the same or a lower priority is left. The next victims of a level that are of equal value go together; what
happens to them, by the first case that holds:

    case                                                                        outcome
    no level below takes pages, nor has a read-only cache folder theirs         dropped; held ones stay
    they are droppable, and their priority is below ``min_offload_priority``    dropped
    they are less likely to be reused than ``min_reuse_probability`` says       dropped
    they have copies of their bytes on the next level                           they take the slots of these
    every free slot below holds another page's copy, and they are of the        dropped
    least value from here down
    fewer slots than wanted are free below, and the page of least value         that one is dropped, and its slot is free
    (`DropOrder`) lies there
    the levels below have free slots                                            offloaded, as many as there are
    the page of least value is one of them                                      dropped
    they are held, and nothing below can be dropped                             they stay: fewer slots are free than asked for

A free slot further down serves too: the next level then offloads as many of its own victims first, in the same way.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

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
from .page_queues import put_back, stands_first, take_out_victim
from .page_removal import drop_victims, drop_with_owner, find_page_below, find_victim, place_page
from .page_rows import LOW_MASK, NO_PAGE
from .page_storage import GPU, PageStorage
from .victim_queue import VictimQueue

_logger: Final = PackageLog("kv_cache_manager_v2")

_DROP: Final = 0
_STOP: Final = -1
_LOOK_AGAIN: Final = -2
_NO_COPIES: Final = -1
_MOST_LISTED: Final = 8
"""Victims that are looked up in line at once."""

# A chosen victim is one number: its page id (`LOW_MASK`), and what there is to say of it.
_EVICT_FIRST: Final = 1 << 32
"""It was evict-first on its level, and is so on the next one."""
_HAS_COPY: Final = 1 << 33
"""The next level has a copy of its bytes already."""


@final
class SlotReclaimer:
    """``cause``: a `removal_cause`, why slots are freed. ``account``: counters of the sequence whose call it is, or None."""

    __slots__ = ("moves", "_storage", "_mover", "_order", "_min_offload_priority", "_drops", "_line")

    def __init__(self, storage: PageStorage, mover: PageMover, min_offload_priority: i64) -> None:
        self.moves: Final = MoveBatch(storage, mover)
        """The batch of all that moves pages: there is one at a time."""
        self._storage: Final = storage
        self._mover: Final = mover
        self._order: Final[StreamOrder] = storage.order
        self._min_offload_priority: Final = min_offload_priority
        """Droppable pages of a lower priority are dropped rather than offloaded."""
        self._drops: Final = DropOrder(storage)
        self._line: Final = vec[i64]([NO_PAGE] * _MOST_LISTED)
        """Room for victims that are listed."""

    def make_room(self, needed: vec[i64], account: PageCounters | None) -> None:
        """Make ``needed`` slots per pool group of level 0 free; `RoomCount` has said that they are to be had.

        `PageMoveError` if the device refuses a copy: fewer may be free than asked for, and nothing is lost.
        """
        for pool_group in range(self._storage.num_pool_groups):
            if self._storage.allocators[pool_group].num_free < needed[pool_group]:
                self.free_slots(GPU, pool_group, needed[pool_group], CAPACITY, account)
                assert self._storage.allocators[pool_group].num_free >= needed[pool_group], "no victim where one was counted"

    def make_room_or_drop(self, needed: vec[i64], account: PageCounters | None) -> None:
        """The same, where free slots and droppable pages of level 0 are enough, as the caller knows: what cannot be moved is dropped."""
        storage = self._storage
        for pool_group in range(storage.num_pool_groups):
            allocator = storage.allocators[pool_group]
            if allocator.num_free < needed[pool_group]:
                try:
                    self.free_slots(GPU, pool_group, needed[pool_group], CAPACITY, account)
                except PageMoveError as error:
                    _logger.warning("%s; droppable pages of level 0 are dropped instead", str(error))
                while allocator.num_free < needed[pool_group]:
                    self._drops.find_level(GPU, GPU, pool_group)
                    self._drop_least(pool_group, 1, CAPACITY, account)

    def free_slots(self, level: i64, pool_group: i64, wanted: i64, cause: i64, account: PageCounters | None) -> None:
        """Free slots of a level until there are ``wanted``: fewer where held pages are in the way and cannot be offloaded."""
        while True:
            missing = wanted - self._count_free(level, level, pool_group)
            if missing <= 0:
                return
            count = self._find_case(level, pool_group, missing, cause, account)
            if count > 0:
                self._offload(level, pool_group, count, account)
            elif count == _STOP:
                return

    def _count_free(self, level: i64, last: i64, pool_group: i64, is_plain: bool = False) -> i64:
        """Free slots of these levels; plain ones hold no clean copy. On a durable level slots with clean copies do not count: another
        process finds later blocks of a path only through them, so pages that lie there alone go first."""
        storage = self._storage
        count: i64 = 0
        while level <= last:
            allocator = storage.allocators[level * storage.num_pool_groups + pool_group]
            count += allocator.num_free
            if is_plain or (storage.durable is not None and level == storage.last_level):
                count -= allocator.num_aside
            level += 1
        return count

    def _find_last(self, level: i64) -> i64:
        """The level, from ``level`` on, below which none takes pages."""
        storage = self._storage
        while level < storage.last_level and (level + 1 < storage.closed.first or not storage.closed.is_closed(level + 1)):
            level += 1
        return level

    def _find_case(self, level: i64, pool_group: i64, missing: i64, cause: i64, account: PageCounters | None) -> i64:
        """How many victims to offload in one batch, `_STOP`, or `_LOOK_AGAIN` after a drop: the table above."""
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        last = self._find_last(level)
        if level < last:
            count = self._make_room_below(level, last, pool_group, missing, cause, account)
            if count != _DROP:
                return count
            missing = 1
        elif storage.durable is not None and storage.durable.is_read_only and level + 1 == storage.last_level:
            # Pages that came from there go back to the slots that they have there, which nothing else takes.
            if storage.queues[index].num_pages > 0 and self._has_good_copy(self._choose_victim(index), index + storage.num_pool_groups):
                return 1
            missing = 1
        if self._drops.find_level(level, level, pool_group) == NO_LEVEL:
            return _STOP
        self._drop_least(pool_group, missing, cause, account)
        return _LOOK_AGAIN

    def _make_room_below(self, level: i64, last: i64, pool_group: i64, missing: i64, cause: i64, account: PageCounters | None) -> i64:
        """`_find_case` where a level below takes pages, of which some may be evicted for them; `_DROP` where it has no slot for any."""
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        below = index + storage.num_pool_groups
        queue = storage.queues[index]
        held = storage.held_queues[index]
        if self._drop_unwanted(level, pool_group, cause, account):
            return _LOOK_AGAIN
        evictable = queue.num_pages + held.num_pages
        if missing > evictable:
            missing = evictable
        if missing == 0:
            return _STOP
        page = self._choose_victim(index)
        is_held = storage.rows.num_holds(page) > 0
        has_copies = storage.copies.num_copies > 0
        missing = self._count_alike(held if is_held else queue, page, missing, below if has_copies else _NO_COPIES)
        if has_copies and self._has_good_copy(page, below):
            return missing
        free = self._count_free(level + 1, last, pool_group)
        if has_copies and not is_held:
            plain = self._count_free(level + 1, last, pool_group, True)
            if 0 < plain < missing:
                missing = plain
            elif plain == 0 and self._drops.find_level(level, last, pool_group) == level:
                self._drop_least(pool_group, missing, cause, account)
                return _LOOK_AGAIN
        while free < missing:
            chosen = self._drops.find_level(level + 1 if is_held else level, last, pool_group)
            if chosen == NO_LEVEL or (chosen == level and free > 0):
                break
            alike = self._count_alike(
                storage.queues[chosen * storage.num_pool_groups + pool_group], self._drops.victim, missing - free, _NO_COPIES
            )
            self._drop_least(pool_group, alike, cause, account)
            if queue.num_pages + held.num_pages < evictable:
                return _LOOK_AGAIN
            free = self._count_free(level + 1, last, pool_group)
        if not is_held and missing > free:
            missing = free
        allocator = storage.allocators[below]
        if allocator.num_free < missing:
            # What is dropped there may take along pages of this level; held pages there may stay.
            self.free_slots(level + 1, pool_group, missing, cause, account)
            if queue.num_pages + held.num_pages < evictable:
                return _LOOK_AGAIN
            if missing > allocator.num_free:
                missing = allocator.num_free
        return missing if missing > 0 else _DROP

    def _drop_unwanted(self, level: i64, pool_group: i64, cause: i64, account: PageCounters | None) -> bool:
        """Drop the next victim if its priority is too low for it to be offloaded, or if it is too unlikely to be reused."""
        storage = self._storage
        least_chance = storage.least_chances[level + 1]
        if self._min_offload_priority == 0 and least_chance == 0.0:
            return False
        index = level * storage.num_pool_groups + pool_group
        if storage.queues[index].num_pages == 0:
            return False
        page = find_victim(storage, index, False)
        if storage.rows.priority(page) >= self._min_offload_priority:
            if least_chance == 0.0 or storage.level_orders[pool_group].chance_of_reuse(page) >= least_chance:
                return False
            if find_page_below(storage, page, ANY_LEVEL) != NO_PAGE:
                # What was likelier to be reused is of no use without it.
                return False
        storage.digest.record(VICTIM, page)
        drop_with_owner(storage, page, pool_group, cause, account)
        return True

    def _choose_victim(self, index: i64) -> i64:
        """The next page to be offloaded; a held one only if it has a lower priority than every droppable one."""
        storage = self._storage
        held = storage.held_queues[index]
        if held.num_pages == 0:
            return find_victim(storage, index, False)
        first_held = held.first()
        if storage.queues[index].num_pages == 0:
            return first_held
        page = find_victim(storage, index, False)
        return first_held if storage.rows.priority(first_held) < storage.rows.priority(page) else page

    def _count_alike(self, queue: VictimQueue, page: i64, most: i64, below: i64) -> i64:
        """The victims of a queue from ``page`` on of equal value, up to ``most``; at ``below`` all have a copy, or none."""
        line = self._line
        has_copy = below != _NO_COPIES and self._has_good_copy(page, below)
        count: i64 = 1
        while count < most:
            wanted = most - count
            if wanted > _MOST_LISTED:
                wanted = _MOST_LISTED
            num_listed = queue.list_following(page, line, 0, wanted)
            for position in range(num_listed):
                page = line[position]
                if below != _NO_COPIES and self._has_good_copy(page, below) != has_copy:
                    return count
                count += 1
            if num_listed < wanted:
                break
        return count

    def _drop_least(self, pool_group: i64, most: i64, cause: i64, account: PageCounters | None) -> None:
        """Drop the page that `DropOrder` has found, with up to ``most`` of its level in all."""
        storage = self._storage
        page = self._drops.victim
        level = storage.rows.level(page)
        allocator = storage.allocators[level * storage.num_pool_groups + pool_group]
        if most > 1 and not self._drops.goes_alone:
            free = allocator.num_free
            drop_victims(storage, level, pool_group, free + most, cause, account)
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
        with storage.changes:
            for position in range(count - num_copied):
                storage.num_evicted[index] += 1
                storage.digest.record(VICTIM, moves.pages[position])
                moves.settle(position, index, level + 1, pool_group, point, account)
            self._queue_below(victims, pool_group, 0)

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
                put_back(self._storage, victims[position] & LOW_MASK, pool_group, True)

    def _put_back(self, victims: vec[i64], pool_group: i64, moved: i64) -> None:
        """The device refused: victims that have not ``moved`` (`_HAS_COPY`, or 0: none has) are the next ones again, in their order."""
        for position in range(len(victims) - 1, -1, -1):
            if (victims[position] & moved) == 0:
                put_back(self._storage, victims[position] & LOW_MASK, pool_group, True)

    def _has_good_copy(self, page: i64, index: i64) -> bool:
        """Whether the page has a copy there; one whose read has failed is forgotten."""
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
        with storage.changes:
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
