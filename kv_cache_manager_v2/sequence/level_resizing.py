"""A resize of a cache level while sequences are open: their tables follow the pages that move.

    1. memory for the pool groups that grow; none is taken from another group yet
    2. what a shrinking pool group has too many pages of is offloaded or, droppable on the last level, dropped
    3. pages and scratch slots behind the new end move in front of it; active sequences wait for that, and it for them
    4. the host waits until no stream touches what is behind the end
    5. the arrays of the new sizes are allocated
    6. the memory behind the end is freed
    7. the counts change; that takes no memory and asks the device for nothing

Where a step is refused, by the device or for want of memory, what was done so far is undone as far as slots go: every pool group has its
old number of slots. Pages that have moved stay where they are, and their sequences know.
"""

from collections.abc import Sequence
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.package_log import PackageLog
from ..device.stream_order import NO_POINT
from ..storage.page_bytes import clear_slots
from ..storage.pool_resizer import NOT_MOVED, PoolResizer
from ..storage.room_count import announce_slots
from .beams import list_beams
from .sequence_state import NO_TIMELINE, SequenceState
from .shared_state import SharedState

_logger: Final = PackageLog("kv_cache_manager_v2")


def find_leased_beyond(shared: SharedState, pool_group: i64, num_slots: i64) -> int | None:
    """The number of a lease that has a slot of level 0 behind that end; leased slots cannot move."""
    storage = shared.storage
    limit = storage.allocators[pool_group].first_slot + num_slots
    for lease in shared.claims.leases.open_leases():
        for life_cycle in range(shared.num_life_cycles):
            if storage.pool_group_of[life_cycle] == pool_group:
                for slot in lease.slots[life_cycle]:
                    if slot >= limit:
                        return lease.number
    return None


def resize_level(shared: SharedState, sequences: Sequence[SequenceState], level: i64, counts: Sequence[int]) -> None:
    """``counts``: slots by pool group; the caller has made sure that all that must stay fits.

    `OutOfMemoryError`, `MemoryError`, `PageMoveError` or what the device said: no pool group has another number of slots than before.
    """
    change = _LevelChange(shared, sequences, level, counts)
    shared.guard.begin_change()
    try:
        change.prepare()
    except AssertionError:
        raise
    except Exception:
        change.undo()
        shared.guard.end_change()
        raise
    change.settle()
    shared.guard.end_change()


@final
class _LevelChange:
    """One `resize_level`: `prepare`, then `settle` or `undo`."""

    __slots__ = (
        "_shared", "_active", "_level", "_first", "_counts", "_old_counts", "_shrunk", "_num_remapped", "_resizer", "_points", "_num_points"
    )  # fmt: skip

    def __init__(self, shared: SharedState, sequences: Sequence[SequenceState], level: i64, counts: Sequence[int]) -> None:
        storage = shared.storage
        self._shared: Final = shared
        states = [] if level > 0 else [beam for state in sequences for beam in list_beams(state)]
        self._active: Final[list[SequenceState]] = [state for state in states if state.timeline != NO_TIMELINE]
        """Those that use pages of the level, on streams of their own."""
        self._level: Final = level
        self._first: Final[i64] = level * storage.num_pool_groups
        """The level's first pool group among those of all levels."""
        self._counts: Final = counts
        self._old_counts: Final[list[int]] = [int(storage.allocators[self._first + index].num_slots) for index in range(len(counts))]
        self._shrunk: Final[list[int]] = []
        """Pool groups that hand out nothing behind their new end any more."""
        self._num_remapped = 0
        """Pool groups, from the first on, whose memory may be that of another number of slots than the old one."""
        self._resizer: Final = PoolResizer(storage, shared.traffic.room_count, shared.traffic.reclaimer, shared.traffic.mover)
        # Of each pool group: a mark of each sequence, and the point after the copies.
        self._points = vec[i64]([NO_POINT] * (len(counts) * (len(self._active) + 1)))
        """After the first ``_num_points`` no stream touches what lies behind the new ends."""
        self._num_points: i64 = 0

    def _record_point(self, point: i64) -> None:
        self._points[self._num_points] = point
        self._num_points += 1

    # -- all that may be refused --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        storage = self._shared.storage
        for pool_group, count in enumerate(self._counts):
            if count > self._old_counts[pool_group]:
                self._resize_memory(pool_group, count)
                if self._level == 0:
                    clear_slots(storage, pool_group, self._old_counts[pool_group], count)
        for pool_group, count in enumerate(self._counts):
            if count < self._old_counts[pool_group]:
                # Not before there was memory for the others: a resize that is refused for want of it changes nothing.
                storage.copies.forget_all(pool_group)
                self._resizer.evacuate(self._level, pool_group, count)
        for pool_group, count in enumerate(self._counts):
            if count < self._old_counts[pool_group]:
                self._shrink_group(pool_group, count)
        for pool_group in self._shrunk:
            self._wait_for_end(storage.allocators[self._first + pool_group].first_slot + self._counts[pool_group], pool_group)
        for pool_group, count in enumerate(self._counts):
            if count != self._old_counts[pool_group]:
                storage.allocators[self._first + pool_group].reserve(count)
                storage.queues[self._first + pool_group].reserve_capacity(count)
        for pool_group in self._shrunk:
            self._resize_memory(pool_group, self._counts[pool_group])

    def _resize_memory(self, pool_group: int, count: int) -> None:
        self._num_remapped = max(self._num_remapped, pool_group + 1)
        self._shared.storage.pool_groups[self._first + pool_group].resize_memory(count)

    def _shrink_group(self, pool_group: int, count: int) -> None:
        shared = self._shared
        order = shared.order
        level = self._level
        resizer = self._resizer
        # The copies wait for active sequences, and they for the copies.
        for state in self._active:
            mark = order.mark(state.timeline)
            order.wait(shared.traffic.mover.timeline(0, 0), mark)
            self._record_point(mark)
        # Active sequences have to hear of each page that moves: what is refused while they do, or while they wait, stays half done.
        shared.guard.begin_change()
        try:
            point = resizer.relocate(level, pool_group, count)
        except BaseException:
            if len(self._active) > 0:
                # Some copies may be under way: they read pages that active sequences are going to write.
                mark = order.mark(shared.traffic.mover.timeline(0, 0))
                for state in self._active:
                    order.wait(state.timeline, mark)
            shared.guard.end_change()
            raise
        if point != NO_POINT:
            self._record_point(point)
        for state in self._active:
            order.wait(state.timeline, point)
            _follow(state, pool_group, resizer)
            _move_scratch_slots(state, pool_group, count)
        self._shrunk.append(pool_group)
        shared.guard.end_change()

    def _wait_for_end(self, end: i64, pool_group: int) -> None:
        """The host waits for whatever may still touch slots behind the end: once in a while is often enough for a resize."""
        reads = self._shared.storage.reads
        for position in range(self._num_points):
            reads.wait(self._points[position])
        ready = self._shared.storage.allocators[self._first + pool_group].ready
        last = NO_POINT
        for slot in range(end, len(ready)):
            point = ready[slot]
            if point != last:
                reads.wait(point)
                last = point

    # -- how it ends --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        storage = self._shared.storage
        for pool_group in self._shrunk:
            storage.allocators[self._first + pool_group].end_shrink()
            storage.queues[self._first + pool_group].set_capacity(self._counts[pool_group])
        for pool_group, count in enumerate(self._counts):
            if count > self._old_counts[pool_group]:
                storage.allocators[self._first + pool_group].grow(count - self._old_counts[pool_group])
                storage.queues[self._first + pool_group].set_capacity(count)
        self._shared.tree.reserve()
        announce_slots(storage)

    def undo(self) -> None:
        """Slots behind the new end, which are free, are handed out again. Memory that was freed already is asked for once more."""
        storage = self._shared.storage
        for pool_group in range(self._num_remapped):
            memory = storage.pool_groups[self._first + pool_group]
            count = self._old_counts[pool_group]
            try:
                memory.resize_memory(count)
            except Exception as error:
                if self._counts[pool_group] < count:
                    raise
                _logger.warning("level %d keeps memory that it does not use: %s", int(self._level), str(error))
        for pool_group in self._shrunk:
            storage.allocators[self._first + pool_group].undo_shrink(self._old_counts[pool_group] - self._counts[pool_group])


def _follow(state: SequenceState, pool_group: i64, resizer: PoolResizer) -> None:
    """Base page indices of slots that moved."""
    limit = resizer.limit
    moved_to = resizer.moved_to
    for life_cycle in range(state.shared.num_life_cycles):
        if state.shared.storage.pool_group_of[life_cycle] == pool_group:
            table = state.tables[life_cycle]
            for ordinal in range(table.num_blocks):
                slot = i64(table.entries[ordinal])
                if slot >= limit and moved_to[slot - limit] != NOT_MOVED:
                    table.set(ordinal, moved_to[slot - limit])


def _move_scratch_slots(state: SequenceState, pool_group: i64, count: i64) -> None:
    """Scratch slots hold nothing between two steps: another slot serves as well."""
    shared = state.shared
    storage = shared.storage
    allocator = storage.allocators[pool_group]
    limit = allocator.first_slot + count
    for life_cycle in range(shared.num_life_cycles):
        if storage.pool_group_of[life_cycle] == pool_group:
            slots = state.scratch.slots[life_cycle]
            position: i64
            for position in range(len(slots)):
                if slots[position] >= limit:
                    slots[position] = int(storage.slots.take_scratch_slot(pool_group, state.timeline))
                    storage.num_locked[pool_group] -= 1
                    allocator.retire(1)
