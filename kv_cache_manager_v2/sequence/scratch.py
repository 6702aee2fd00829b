"""Scratch slots of one sequence: input blocks of a step that are stale right after it get no pages of their own.

Per life cycle a range of block ordinals and the slots that they share; the slots' sub-pages hold many blocks of the one layer
that runs and are overwritten by the next layer (`PageIndexConverter` knows how). Conservation: while the sequence is ACTIVE,
the number of slots of life cycle ``g`` is ``compute_num_scratch_slots(g, length of its range)``; while SUSPENDED it has none.

The range is set by the `resize` that begins a step. It stays until the history has passed all of it, by a commit or a `resize`, or
until the next `resize` that changes the capacity, by when its blocks are stale.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.ranges import HalfOpenRange
from ..layout.windows import compute_scratch_beg, compute_scratch_end
from .shared_state import UNBOUNDED, SharedState


@final
class Scratch:
    __slots__ = ("shared", "begins", "ends", "slots", "is_enabled", "is_new", "num_blocks")

    def __init__(self, shared: SharedState) -> None:
        self.shared: Final = shared
        self.begins = vec[i64]([0] * shared.num_life_cycles)
        self.ends = vec[i64]([0] * shared.num_life_cycles)
        self.slots: Final[list[list[int]]] = [[] for _ in shared.life_cycles]
        self.is_enabled: bool = shared.windows.has_scratch
        self.is_new = False
        """Switched on since the step began: it has pages for all its blocks, so the next one may begin anywhere in it."""
        self.num_blocks: i64 = 0
        """Scratch blocks in all life cycles together."""

    def contains(self, life_cycle: i64, ordinal: i64) -> bool:
        return self.begins[life_cycle] <= ordinal < self.ends[life_cycle]

    def is_out_of(self, life_cycle: i64, window_begin: i64) -> bool:
        """Whether the life cycle has scratch blocks, all of them before the window."""
        return self.num_blocks > 0 and self.begins[life_cycle] < self.ends[life_cycle] <= window_begin

    def range_of(self, life_cycle: int) -> HalfOpenRange:
        return HalfOpenRange(self.begins[life_cycle], self.ends[life_cycle])

    def compute_begin(self, life_cycle: i64, history: i64, capacity: i64) -> i64:
        shared = self.shared
        cycle = shared.life_cycles[life_cycle]
        return compute_scratch_beg(history, capacity, cycle, shared.tokens_per_block, shared.windows.max_rewind_len)

    def compute_end(self, life_cycle: i64, history: i64, capacity: i64) -> i64:
        """The range's end for a step from ``history`` to ``capacity``; its beginning if there is none."""
        shared = self.shared
        if not self.is_enabled or shared.windows.sizes[life_cycle] == UNBOUNDED:
            return self.compute_begin(life_cycle, history, capacity)
        cycle = shared.life_cycles[life_cycle]
        return compute_scratch_end(history, capacity, cycle, shared.tokens_per_block, shared.windows.max_rewind_len)

    def count_slots(self, life_cycle: i64, num_blocks: i64) -> i64:
        """Slots that ``num_blocks`` scratch blocks of the life cycle share."""
        if num_blocks <= 0:
            return 0
        return self.shared.storage.layout.compute_num_scratch_slots(int(life_cycle), int(num_blocks))

    def set_range(self, life_cycle: i64, begin: i64, end: i64) -> None:
        self.num_blocks += (end - begin) - (self.ends[life_cycle] - self.begins[life_cycle])
        self.begins[life_cycle] = begin
        self.ends[life_cycle] = end

    def release(self, life_cycle: i64, kept: i64, mark: i64) -> None:
        """Free all slots but the first ``kept``; they may be touched after ``mark``."""
        storage = self.shared.storage
        pool_group = storage.pool_group_of[life_cycle]
        slots = self.slots[life_cycle]
        while len(slots) > kept:
            storage.slots.free_scratch_slot(pool_group, slots.pop(), mark)

    def take(self, timeline: i64) -> None:
        """Allocate what the ranges need; room has been made."""
        storage = self.shared.storage
        for life_cycle, slots in enumerate(self.slots):
            wanted = self.count_slots(life_cycle, self.ends[life_cycle] - self.begins[life_cycle])
            while len(slots) < wanted:
                slots.append(int(storage.slots.take_scratch_slot(storage.pool_group_of[life_cycle], timeline)))

    def advance_ready(self, timeline: i64, mark: i64) -> None:
        """The next user of the slots waits for ``mark``, a fresh mark of ``timeline``, too."""
        storage = self.shared.storage
        for life_cycle, slots in enumerate(self.slots):
            for slot in slots:
                storage.slots.advance_ready(slot, storage.pool_group_of[life_cycle], timeline, mark)

    def clear(self) -> None:
        """No block is a scratch block any more; the slots are free already."""
        for life_cycle in range(self.shared.num_life_cycles):
            self.set_range(life_cycle, 0, 0)

    def release_all(self, mark: i64) -> None:
        if self.num_blocks == 0:
            return
        for life_cycle in range(self.shared.num_life_cycles):
            self.release(life_cycle, 0, mark)


def add_needed_slots(scratch: Scratch, needed: vec[i64]) -> None:
    """Add the slots that resuming has to allocate, per pool group."""
    storage = scratch.shared.storage
    for life_cycle in range(scratch.shared.num_life_cycles):
        count = scratch.count_slots(life_cycle, scratch.ends[life_cycle] - scratch.begins[life_cycle])
        needed[storage.pool_group_of[life_cycle]] += count
