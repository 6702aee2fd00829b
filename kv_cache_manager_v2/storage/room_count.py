"""Room counts: free slots, and those of pages that may be evicted.

Changes nothing but the note of a refusal; `SlotReclaimer` then makes the room that was counted here, so that a caller can refuse before it
has changed anything. Held pages are never dropped, so what is below must have room for them:

    slots asked for <= free + droppable + held, on level 0
    of these, held pages that must be offloaded <= free + droppable on all lower levels together

Pool groups do not share slots, so each is looked at by itself. A refusal is noted in `PageStorage.last_refusal`.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from .page_storage import GPU, PageStorage
from .refusal import Refusal


def list_slots_per_level(storage: PageStorage) -> list[tuple[int, ...]]:
    """By life cycle, the slots of its pool group on each level."""
    num_pool_groups = int(storage.num_pool_groups)
    found: list[tuple[int, ...]] = []
    for life_cycle in range(int(storage.rows.num_life_cycles)):
        # The allocators of a level follow those of the level above it.
        allocators = storage.allocators[int(storage.pool_group_of[life_cycle]) :: num_pool_groups]
        found.append(tuple([int(allocator.num_slots) for allocator in allocators]))
    return found


def announce_slots(storage: PageStorage) -> None:
    """Pool groups have another number of slots than before."""
    if storage.sink is not None:
        storage.sink.on_levels_resized(list_slots_per_level(storage))


@final
class RoomCount:
    __slots__ = ("_storage", "_nothing")

    def __init__(self, storage: PageStorage) -> None:
        self._storage: Final = storage
        self._nothing: Final = vec[i64]([0] * storage.num_pool_groups)

    def find_refusal(self, needed: vec[i64]) -> bool:
        """Whether ``needed`` slots of level 0 per pool group are not to be had; notes why."""
        if self._storage.closed.has_disks:
            self._storage.closed.look()
        return self.find_onboard_refusal(needed, self._nothing, self._nothing, self._nothing)

    def find_onboard_refusal(self, needed: vec[i64], num_here: vec[i64], num_below: vec[i64], num_freed: vec[i64]) -> bool:
        """The same for a call that also brings ``num_below`` held pages up from lower levels, which frees ``num_freed`` slots
        that others can go to; the caller has looked at the disks.

        ``num_here``: held pages on level 0 that the call itself needs, so that they cannot be evicted.
        """
        storage = self._storage
        for pool_group in range(storage.num_pool_groups):
            asked = needed[pool_group] + num_below[pool_group]
            free = storage.allocators[pool_group].num_free
            if asked > free:
                droppable = storage.queues[pool_group].num_pages
                held = storage.held_queues[pool_group].num_pages - num_here[pool_group]
                if asked > free + droppable + held:
                    storage.refuse(self._describe_refusal(pool_group, asked, free, droppable + held), asked)
                    return True
                being_offloaded = asked - free - droppable
                if being_offloaded > 0:
                    room = self.count_room_below(GPU, pool_group) + num_freed[pool_group]
                    if being_offloaded > room:
                        storage.refuse(self._describe_full_levels(pool_group, being_offloaded, room), asked)
                        return True
        return False

    def count_room_below(self, level: i64, pool_group: i64) -> i64:
        """Held pages that the levels below ``level`` can take, as far as none is closed: free slots and those of droppable pages."""
        storage = self._storage
        room: i64 = 0
        begin = (level + 1) * storage.num_pool_groups + pool_group
        for index in range(begin, storage.closed.first * storage.num_pool_groups, storage.num_pool_groups):
            room += storage.allocators[index].num_free + storage.queues[index].num_pages
        return room

    def has_room(self, pool_group: i64, count: i64) -> bool:
        """Whether ``count`` slots of level 0 are to be had now."""
        return self.has_room_at(GPU, pool_group, count, 0)

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

    def describe(self, pool_group: i64, free: i64, evictable: i64) -> str:
        """Who has the slots of level 0. Held pages that are evictable have one in which they can be offloaded."""
        num_slots = self._storage.allocators[pool_group].num_slots
        locked = self._storage.num_locked[pool_group]
        return (
            f"of {num_slots} there {free} are free, {evictable} evictable, {locked} locked by active sequences and "
            f"{num_slots - free - evictable - locked} held by suspended ones"
        )

    def _describe_refusal(self, pool_group: i64, asked: i64, free: i64, evictable: i64) -> Refusal:
        # Without a lower level, a suspended sequence keeps its slots.
        way_out = f"{'Close' if self._storage.last_level == 0 else 'Suspend or close'} other sequences, or enlarge the GPU tier's quota"
        if asked > self._storage.allocators[pool_group].num_slots:
            way_out = "They would not fit into the empty level either: enlarge the GPU tier's quota"
        text = f"level 0, pool group {pool_group}: {asked} slots asked for; {self.describe(pool_group, free, evictable)}. {way_out}"
        return Refusal(0, int(pool_group), int(asked), int(free), int(evictable), text)

    def _describe_full_levels(self, pool_group: i64, being_offloaded: i64, room: i64) -> Refusal:
        storage = self._storage
        level = int(storage.last_level)
        closed = int(storage.closed.first)
        below = storage.allocators[storage.num_pool_groups + pool_group : closed * storage.num_pool_groups : storage.num_pool_groups]
        num_slots = sum([int(allocator.num_slots) for allocator in below])
        text = (
            f"levels 1 to {level}, pool group {pool_group}: {being_offloaded} held pages would have to leave level 0; of {num_slots} slots "
            f"below it {room} can take them and {num_slots - room} have pages that suspended sequences hold. Close sequences, or enlarge "
            "the quota of a lower tier"
        )
        if closed <= level:
            text += f". Level {closed} takes no pages: {storage.closed.reason(closed)}"
        return Refusal(level, int(pool_group), int(being_offloaded), int(room), 0, text)
