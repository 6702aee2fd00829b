"""Making room: whether slots are to be had, and which pages have to go, down a level or out of the cache.

Asked in two steps, `find_refusal` (changes nothing) and `make_room`, so that a caller can refuse before it has changed
anything. Droppable pages go first, each the least valuable of its level; held ones only where no droppable page of the same
or a lower priority is left. A page that has to go goes down one level, where it may push others down in turn; on the last level
droppable pages are dropped. Held pages are never dropped, so what is below must have room for them:

    slots asked for <= free + droppable + held, on level 0
    of these, held pages that must go down <= free + droppable on all lower levels together

Pool groups do not share slots, so each is looked at by itself.
"""

import logging
from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from ..base.errors import PageMoveError
from ..base.ids import CacheTier
from ..device.stream_order import NO_POINT, StreamOrder
from ..events.removal_cause import CAPACITY
from .decision_digest import REFUSAL, VICTIM
from .page_mover import PageMover
from .page_rows import NO_PAGE
from .page_storage import PageStorage
from .refusal import Refusal
from .victim_queue import NO_VICTIM

_TOP: Final = 0
_logger = logging.getLogger("kv_cache_manager_v2")


@final
@mypyc_attr(native_class=True)
class RoomMaker:
    __slots__ = (
        "drop_cause", "min_offload_priority", "sources", "targets", "pages", "_storage", "_mover", "_order", "_nothing",
    )  # fmt: skip

    drop_cause: i64
    """Why room is made: the `removal_cause` of what is dropped for it."""
    _storage: Final[PageStorage]
    _mover: Final[PageMover]
    _order: Final[StreamOrder]
    _nothing: Final[vec[i64]]
    sources: vec[i64]  # kept from call to call: source and target slots and pages of a move
    targets: vec[i64]
    pages: vec[i64]
    min_offload_priority: i64
    """Droppable pages of a lower priority are dropped rather than moved down."""

    def __init__(self, storage: PageStorage, mover: PageMover) -> None:
        self.drop_cause = CAPACITY
        self._storage = storage
        self._mover = mover
        self._order = storage.order
        self._nothing = vec[i64]([0] * storage.num_pool_groups)
        self.sources = vec[i64]()
        self.targets = vec[i64]()
        self.pages = vec[i64]()
        self.min_offload_priority = 0

    # -- is there room ------------------------------------------------------------------------------------------------

    def find_refusal(self, needed: vec[i64], given_back: vec[i64]) -> bool:
        """Whether ``needed`` slots of level 0 per pool group, after ``given_back`` ones, are not to be had; notes why."""
        if self._storage.closed.has_disks:
            self._storage.closed.look()
        return self.find_onboard_refusal(needed, given_back, self._nothing, self._nothing, self._nothing)

    def find_onboard_refusal(
        self, needed: vec[i64], given_back: vec[i64], num_here: vec[i64], num_below: vec[i64], num_freed: vec[i64]
    ) -> bool:
        """The same for a call that also brings ``num_below`` held pages up from lower levels, which frees ``num_freed`` slots
        that others can go to; the caller has looked at the disks.

        ``num_here``: held pages on level 0 that the call itself needs, so that they cannot make room.
        """
        storage = self._storage
        pool_group: i64 = 0
        while pool_group < storage.num_pool_groups:
            asked = needed[pool_group] + num_below[pool_group] - given_back[pool_group]
            free = storage.allocators[pool_group].num_free
            if asked > free:
                droppable = storage.queues[pool_group].num_pages
                held = storage.held_queues[pool_group].num_pages - num_here[pool_group]
                if asked > free + droppable + held:
                    storage.digest.note(REFUSAL, asked)
                    storage.last_refusal = self._describe_refusal(pool_group, asked, free, droppable + held)
                    return True
                going_down = asked - free - droppable
                if going_down > 0:
                    room = self.count_room_below(_TOP, pool_group) + num_freed[pool_group]
                    if going_down > room:
                        storage.digest.note(REFUSAL, asked)
                        storage.last_refusal = self._describe_full_levels(pool_group, going_down, room)
                        return True
            pool_group += 1
        return False

    def count_room_below(self, level: i64, pool_group: i64) -> i64:
        """Held pages that the levels below ``level`` can take, as far as none is closed: free slots and those of droppable pages."""
        storage = self._storage
        room: i64 = 0
        index = (level + 1) * storage.num_pool_groups + pool_group
        end = storage.closed.first * storage.num_pool_groups
        while index < end:
            room += storage.allocators[index].num_free + storage.queues[index].num_pages
            index += storage.num_pool_groups
        return room

    def has_room(self, pool_group: i64, count: i64) -> bool:
        """Whether ``count`` slots of level 0 are to be had now."""
        return self.has_room_at(_TOP, pool_group, count, 0)

    def has_room_at(self, level: i64, pool_group: i64, count: i64, num_kept: i64) -> bool:
        """Whether ``count`` slots of a level are to be had now, if ``num_kept`` of its held pages must stay there."""
        storage = self._storage
        if level >= storage.closed.first and storage.closed.is_closed(level):
            return count == 0
        index = level * storage.num_pool_groups + pool_group
        missing = count - storage.allocators[index].num_free - storage.queues[index].num_pages
        if missing <= 0:
            return True
        if missing > storage.held_queues[index].num_pages - num_kept:
            return False
        return missing <= self.count_room_below(level, pool_group)

    def _describe_refusal(self, pool_group: i64, asked: i64, free: i64, evictable: i64) -> Refusal:
        storage = self._storage
        text = (
            f"level 0, pool group {pool_group}: {asked} slots asked for, {free} free and {evictable} evictable of "
            f"{storage.allocators[pool_group].num_slots}; {storage.num_locked[pool_group]} are locked by active sequences. "
            f"Suspend or close sequences, or enlarge the GPU tier's quota"
        )
        return Refusal(0, int(pool_group), int(asked), int(free), int(evictable), text)

    def _describe_full_levels(self, pool_group: i64, going_down: i64, room: i64) -> Refusal:
        storage = self._storage
        level = int(storage.last_level)
        num_slots: i64 = 0
        index = storage.num_pool_groups + pool_group
        while index < len(storage.allocators):
            num_slots += storage.allocators[index].num_slots
            index += storage.num_pool_groups
        text = (
            f"levels 1 to {level}, pool group {pool_group}: {going_down} held pages would have to leave level 0, and there is "
            f"room for {room} in the {num_slots} slots below it. Close sequences, or enlarge the quota of a lower tier"
        )
        closed = int(storage.closed.first)
        if closed <= level:
            text += f". Level {closed} takes no pages since a write failed: {storage.closed.reason(closed)}"
        return Refusal(level, int(pool_group), int(going_down), int(room), 0, text)

    # -- making room --------------------------------------------------------------------------------------------------

    def make_room(self, needed: vec[i64]) -> None:
        """Make ``needed`` slots per pool group of level 0 free; `find_refusal` has said that they are to be had.

        `PageMoveError` if the device refuses a copy: fewer may be free than asked for, and nothing is lost.
        """
        pool_group: i64 = 0
        while pool_group < self._storage.num_pool_groups:
            if self._storage.allocators[pool_group].num_free < needed[pool_group]:
                self.free_slots(_TOP, pool_group, needed[pool_group])
                assert self._storage.allocators[pool_group].num_free >= needed[pool_group], "no victim where one was counted"
            pool_group += 1

    def make_room_surely(self, needed: vec[i64]) -> None:
        """The same, for slots whose number `free` and droppable pages of level 0 cover: what cannot be moved is dropped."""
        storage = self._storage
        pool_group: i64 = 0
        while pool_group < storage.num_pool_groups:
            allocator = storage.allocators[pool_group]
            if allocator.num_free < needed[pool_group]:
                try:
                    self.free_slots(_TOP, pool_group, needed[pool_group])
                except PageMoveError as error:
                    _logger.warning("%s; droppable pages of level 0 are dropped instead", str(error))
                while allocator.num_free < needed[pool_group]:
                    self._drop_first(pool_group, pool_group)
            pool_group += 1

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
            if self.min_offload_priority > 0 and self._drop_unworthy(index, pool_group):
                continue
            missing = wanted - allocator.num_free
            evictable = queue.num_pages + held.num_pages
            if missing > evictable:
                missing = evictable
            if missing == 0:
                return
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
            self._move_down(level, pool_group, missing)

    def _drop_unworthy(self, index: i64, pool_group: i64) -> bool:
        """Drop the next victim if it is not worth moving down."""
        storage = self._storage
        if storage.queues[index].num_pages == 0:
            return False
        page = self._find_victim(index)
        if storage.rows.priority(page) >= self.min_offload_priority:
            return False
        storage.digest.note(VICTIM, page)
        storage.drop_with_owner(page, pool_group, CAPACITY)
        return True

    def _drop_first(self, index: i64, pool_group: i64) -> None:
        page = self._find_victim(index)
        storage = self._storage
        storage.digest.note(VICTIM, page)
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

    def _move_down(self, level: i64, pool_group: i64, count: i64) -> None:
        """Move ``count`` victims into free slots of the next level; those that have a copy there go to it."""
        storage = self._storage
        index = level * storage.num_pool_groups + pool_group
        self.begin_moves()
        chosen = vec[i64]()
        to_copy = vec[i64]()
        to_write = vec[i64]()
        position: i64 = 0
        while position < count:
            page = self._choose_victim(index)
            storage.take_out_victim(page, pool_group)
            chosen = append(chosen, page)
            if storage.copies.num_copies > 0 and self._has_good_copy(page, index + storage.num_pool_groups):
                to_copy = append(to_copy, page)
            else:
                to_write = append(to_write, page)
            position += 1
        if len(to_copy) > 0:
            try:
                self._go_to_copies(level, pool_group, to_copy)
            except BaseException:
                self._put_all_back(chosen, pool_group, count)
                raise
            count = len(to_write)
            if count == 0:
                return
        try:
            for page in to_write:
                self.add_move(page, index + storage.num_pool_groups)
            point = self._mover.move(pool_group, level, self.sources, level + 1, self.targets, count)
            if storage.pool_groups[index].tier == CacheTier.DISK:
                storage.reads.note(point, level, storage.pool_groups[index], self.pages, self.sources, count)
        except BaseException:
            try:
                self.undo_moves(level, pool_group, level + 1)
            finally:
                self._put_all_back(to_write, pool_group, count)
            raise
        position = 0
        while position < count:
            page = self.pages[position]
            storage.num_evicted[index] += 1
            storage.digest.note(VICTIM, page)
            self.settle_move(position, index, level + 1, pool_group, point)
            storage.put_back(page, pool_group)
            position += 1

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
        for page in pages:
            slot = storage.rows.slot(page)
            point = ready[slot]
            if storage.copies.read_point(page) != NO_POINT:
                point = mark
            else:
                # It came up from there: what a disk may have failed to read is there still.
                storage.reads.forget(page)
            target = storage.copies.take(page)
            storage.num_evicted[index] += 1
            storage.digest.note(VICTIM, page)
            storage.place_page(page, level + 1, target)
            storage.free_slot(index, slot, point)
            storage.put_back(page, pool_group)

    # -- moves, also for `Onboarding` ---------------------------------------------------------------------------------

    def begin_moves(self) -> None:
        self.sources = self.sources[:0]
        self.targets = self.targets[:0]
        self.pages = self.pages[:0]

    def add_move(self, page: i64, target_index: i64) -> None:
        """Take a slot for a page that is in no queue; the target level has one free."""
        storage = self._storage
        if storage.allocators[target_index].num_aside > 0:
            storage.copies.make_plain_slot(target_index)
        slot = storage.allocators[target_index].allocate()
        self.pages = append(self.pages, page)
        self.sources = append(self.sources, storage.rows.slot(page))
        self.targets = append(self.targets, slot)

    def settle_move(self, position: i64, source_index: i64, level: i64, pool_group: i64, point: i64) -> None:
        """The copy is enqueued: the page has the new slot, and both may be touched after ``point``."""
        storage = self._storage
        target = self.targets[position]
        source_level = source_index // storage.num_pool_groups
        storage.counters.note_copied(source_level, level, pool_group, 1)
        storage.place_page(self.pages[position], level, target)
        storage.allocators[level * storage.num_pool_groups + pool_group].ready[target] = point
        source = self.sources[position]
        if level < source_level and storage.is_published(self.pages[position]):
            # What it leaves behind serves when it has to go down again.
            storage.allocators[source_index].ready[source] = point
            storage.copies.keep(self.pages[position], source_index, source, NO_POINT)
        else:
            storage.free_slot(source_index, source, point)

    def undo_moves(self, source_level: i64, pool_group: i64, target_level: i64) -> None:
        """The device refused: some copies may be under way, into slots that nobody has; the pages stay where they are.

        They are in no queue, as before. An assertion fails where the device refuses an event for these copies too: then nobody can
        wait for them, and the manager is broken.
        """
        try:
            self._undo_moves(source_level, pool_group, target_level)
        except Exception as error:
            raise describe_lost_copies(error) from error

    def _undo_moves(self, source_level: i64, pool_group: i64, target_level: i64) -> None:
        storage = self._storage
        # Without a timeline there was no copy either: the device refused its first event.
        has_copies = self._mover.has_timeline(source_level, target_level)
        timeline = self._mover.timeline(source_level, target_level) if has_copies else 0
        point = self._order.mark(timeline) if has_copies else NO_POINT
        sources = storage.allocators[source_level * storage.num_pool_groups + pool_group].ready
        targets = storage.allocators[target_level * storage.num_pool_groups + pool_group]
        # The last slot taken is the first on the stack again: the next call takes the same ones.
        position: i64 = len(self.targets) - 1
        while position >= 0:
            source = self.sources[position]
            target = self.targets[position]
            ready = targets.ready[target]
            if has_copies:
                sources[source] = self._order.advance(sources[source], timeline, point)
                ready = self._order.advance(ready, timeline, point)
            targets.free(target, ready)
            position -= 1


def describe_lost_copies(error: Exception) -> AssertionError:
    """What breaks the manager when a copy was refused, and the event after those that were not is refused as well."""
    return AssertionError(f"the device may still run copies of a move that it refused, and gave no event to wait for: {error!r}")
