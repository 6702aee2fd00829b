"""Giving a cache level another number of slots while sequences are open: their tables follow the pages that move.

    1. memory for the pool groups that grow; none is taken from anybody yet
    2. what a shrinking pool group has too many pages of goes down or, droppable on the last level, goes
    3. pages and scratch slots behind the new end move in front of it; active sequences wait for that, and it for them
    4. the host waits until nobody touches what is behind the end; the memory there is given back

Where the device refuses something, what was done so far is undone as far as slots go: every pool group has its old number of slots.
"""

from collections.abc import Sequence

from librt.vecs import append, vec
from mypy_extensions import i64

from ..device.stream_order import NO_POINT
from ..storage.page_bytes import clear_slots
from ..storage.pool_resizer import PoolResizer
from ..storage.slots_per_level import announce_slots
from .beams import list_beams
from .sequence_state import NO_TIMELINE, SequenceState
from .shared_state import SharedState


def find_leased_beyond(shared: SharedState, pool_group: i64, num_slots: i64) -> int | None:
    """The number of a lease that has a slot of level 0 behind that end; leased slots cannot move."""
    storage = shared.storage
    limit = storage.allocators[pool_group].first_slot + num_slots
    for lease in shared.leases.open_leases():
        life_cycle: i64 = 0
        while life_cycle < shared.num_life_cycles:
            if storage.pool_group_of[life_cycle] == pool_group:
                for slot in lease.slots[life_cycle]:
                    if slot >= limit:
                        return lease.number
            life_cycle += 1
    return None


def resize_level(
    shared: SharedState, sequences: Sequence[SequenceState], level: i64, counts: Sequence[int]
) -> None:
    """``counts``: slots by pool group; the caller has made sure that all that must stay fits.

    `OutOfMemoryError`, `PageMoveError` or what the device said of an event: no pool group has another number of slots than before.
    """
    storage = shared.storage
    first = level * storage.num_pool_groups
    old_counts = [int(storage.allocators[first + index].num_slots) for index in range(storage.num_pool_groups)]
    grown: list[int] = []
    shrunk: list[int] = []
    states = [beam for state in sequences for beam in list_beams(state)]
    resizer = PoolResizer(storage, shared.room_count, shared.room, shared.mover)
    points = vec[i64]()
    shared.guard.begin_change()
    try:
        for pool_group, count in enumerate(counts):
            if count > old_counts[pool_group]:
                storage.pool_groups[first + pool_group].resize_memory(count)
                grown.append(pool_group)
        for pool_group, count in enumerate(counts):
            if count < old_counts[pool_group]:
                # Not before there was memory for the others: a resize that is refused for want of it changes nothing.
                storage.copies.forget_all(pool_group)
                resizer.evacuate(level, pool_group, count)
        for pool_group, count in enumerate(counts):
            if count < old_counts[pool_group]:
                points = _shrink_group(shared, states, resizer, level, pool_group, count, points)
                shrunk.append(pool_group)
    except AssertionError:
        raise
    except Exception:
        for pool_group in shrunk:
            storage.allocators[first + pool_group].grow(old_counts[pool_group] - counts[pool_group])
        for pool_group in grown:
            storage.pool_groups[first + pool_group].resize_memory(old_counts[pool_group])
        shared.guard.end_change()
        raise
    for pool_group in shrunk:
        _wait_for_end(shared, first + pool_group, points)
        storage.pool_groups[first + pool_group].resize_memory(counts[pool_group])
        storage.allocators[first + pool_group].end_shrink()
        storage.queues[first + pool_group].set_capacity(counts[pool_group])
    for pool_group in grown:
        storage.allocators[first + pool_group].grow(counts[pool_group] - old_counts[pool_group])
        storage.queues[first + pool_group].set_capacity(counts[pool_group])
        if level == 0:
            clear_slots(storage, pool_group, old_counts[pool_group], counts[pool_group])
    announce_slots(storage)
    shared.guard.end_change()


def _shrink_group(
    shared: SharedState,
    states: Sequence[SequenceState],
    resizer: PoolResizer,
    level: i64,
    pool_group: i64,
    count: i64,
    points: vec[i64],
) -> vec[i64]:
    """Returns ``points`` and those after which nobody touches what lies behind the new end any more."""
    order = shared.order
    if level == 0:
        # Active sequences use their pages on streams of their own: the copies wait for these, and they for the copies.
        timeline = shared.mover.timeline(0, 0)
        for state in states:
            if state.timeline != NO_TIMELINE:
                mark = order.mark(state.timeline)
                order.wait(timeline, mark)
                points = append(points, mark)
    # Active sequences have to hear of each page that moves: what is refused while they do, or while they wait, stays half done.
    shared.guard.begin_change()
    try:
        point = resizer.relocate(level, pool_group, count)
    except BaseException:
        if level == 0:
            # Some copies may be under way: they read pages that active sequences are going to write.
            mark = order.mark(shared.mover.timeline(0, 0))
            for state in states:
                if state.timeline != NO_TIMELINE:
                    order.wait(state.timeline, mark)
        shared.guard.end_change()
        raise
    if point != NO_POINT:
        points = append(points, point)
    if level == 0:
        moved: dict[int, int] = {}
        position: i64 = 0
        while position < len(resizer.pages):
            moved[int(resizer.sources[position])] = int(resizer.targets[position])
            position += 1
        for state in states:
            if state.timeline != NO_TIMELINE:
                order.wait(state.timeline, point)
                _follow(state, pool_group, moved)
                _move_scratch_slots(state, pool_group, count)
    shared.guard.end_change()
    return points


def _follow(state: SequenceState, pool_group: i64, moved: dict[int, int]) -> None:
    """Base page indices of slots that moved."""
    if len(moved) == 0:
        return
    life_cycle: i64 = 0
    while life_cycle < state.shared.num_life_cycles:
        if state.shared.storage.pool_group_of[life_cycle] == pool_group:
            table = state.tables[life_cycle]
            ordinal: i64 = 0
            while ordinal < table.num_blocks:
                slot = moved.get(int(table.entries[ordinal]))
                if slot is not None:
                    table.set(ordinal, slot)
                ordinal += 1
        life_cycle += 1


def _move_scratch_slots(state: SequenceState, pool_group: i64, count: i64) -> None:
    """Scratch slots hold nothing between two steps: another slot serves as well."""
    shared = state.shared
    storage = shared.storage
    allocator = storage.allocators[pool_group]
    limit = allocator.first_slot + count
    life_cycle: i64 = 0
    while life_cycle < shared.num_life_cycles:
        if storage.pool_group_of[life_cycle] == pool_group:
            slots = state.scratch.slots[life_cycle]
            position = 0
            while position < len(slots):
                if slots[position] >= limit:
                    slots[position] = int(storage.take_scratch_slot(pool_group, state.timeline))
                    storage.num_locked[pool_group] -= 1
                    allocator.retire(1)
                position += 1
        life_cycle += 1


def _wait_for_end(shared: SharedState, index: i64, points: vec[i64]) -> None:
    """The host waits for whatever may still touch slots behind the end: once in a while is often enough for a resize."""
    allocator = shared.storage.allocators[index]
    for point in points:
        shared.storage.reads.wait(point)
    slot = allocator.first_slot + allocator.num_slots
    last = NO_POINT
    while slot < len(allocator.ready):
        point = allocator.ready[slot]
        if point != last:
            shared.storage.reads.wait(point)
            last = point
        slot += 1
