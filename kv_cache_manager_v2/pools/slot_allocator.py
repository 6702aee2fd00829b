"""Which slots of a pool group at one level are free.

Conservation law: ``num_free + num_used == num_slots``. A slot is free (on the stack, or at or above the high-water mark,
never used yet) or used. Slots are handed out last-freed first, then in order of their ids, so the choice depends on the
calls alone; nothing is made per slot in advance, so a tier of any size starts at once.

Free slots may stand *aside*: their bytes are still good for something (`storage.clean_copies`), and they are not handed out until
`end_aside`.

Each slot carries a point (`StreamOrder`): the work after which its bytes may be touched. The work that takes a slot over waits
for it on its own stream.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.growing_arrays import fill_words, reserve_words
from ..device.stream_order import NO_POINT

MOST_RESERVED: Final = 1 << 28
"""Words; 2 GiB of addresses."""


@final
class SlotAllocator:
    __slots__ = (
        "num_slots", "num_free", "num_aside", "first_slot", "peak_used", "_past_peak", "ready", "_stack", "_num_stacked", "_next_unused",
        "_before_shrink", "_kept_ready",
    )  # fmt: skip

    def __init__(self, num_slots: i64, first_slot: i64) -> None:
        """``num_slots`` slots with the ids ``first_slot ..``; lower ids (the null slot) are never handed out."""
        self.num_slots = num_slots
        self.num_free = num_slots
        self.num_aside: i64 = 0
        """Free slots that stand aside."""
        self.first_slot: Final = first_slot
        self.peak_used: i64 = 0
        """Since the last `take_peak`."""
        self._past_peak: i64 = 0
        # Addresses for all slots, memory only for those that are used: nothing is copied as the numbers grow.
        reserved = num_slots if num_slots < MOST_RESERVED else MOST_RESERVED
        self.ready: vec[i64] = reserve_words(vec[i64]([NO_POINT] * first_slot), first_slot + reserved)
        self._stack: vec[i64] = reserve_words(vec[i64](), reserved)
        self._num_stacked: i64 = 0
        self._next_unused = first_slot
        self._before_shrink = vec[i64]()  # free stack, then its length, next unused slot, slots, free slots
        self._kept_ready = vec[i64]()  # what `ready` will be after `end_shrink`

    @property
    def num_used(self) -> i64:
        return self.num_slots - self.num_free

    @property
    def total_peak(self) -> i64:
        """The most slots that were ever in use."""
        return self.peak_used if self.peak_used > self._past_peak else self._past_peak

    def take_peak(self) -> i64:
        """The most slots in use since this was last asked; begins anew."""
        peak = self.peak_used
        self._past_peak = self.total_peak
        self.peak_used = self.num_slots - self.num_free
        return peak

    def allocate(self) -> i64:
        """A free slot; the caller has made sure that there is one."""
        assert self.num_free > self.num_aside, "a slot was taken where none is free"
        self.num_free -= 1
        used = self.num_slots - self.num_free
        if used > self.peak_used:
            self.peak_used = used
        if self._num_stacked > 0:
            self._num_stacked -= 1
            return self._stack[self._num_stacked]
        slot = self._next_unused
        self._next_unused = slot + 1
        if slot >= len(self.ready):
            self.ready = append(self.ready, NO_POINT)
        return slot

    def take_first_slots(self, slots: list[int]) -> None:
        """Have these slots, in ascending order, in use before any other was: those between them are handed out first, the lowest one
        first."""
        assert self._next_unused == self.first_slot, "slots were taken out of a pool that is in use already"
        slot = self.first_slot
        holes: list[int] = []
        for used in slots:
            while slot < used:
                holes.append(int(slot))
                slot += 1
            slot += 1
        self._next_unused = slot
        self.ready = fill_words(self.ready, slot, NO_POINT)
        self._stack = self._stack[:0]
        for hole in reversed(holes):
            self._stack = append(self._stack, hole)
        self._num_stacked = len(holes)
        self.num_free -= len(slots)
        self.peak_used = len(slots)

    def forget_all(self) -> None:
        """No slot was ever used: what `take_first_slots` has taken is free again."""
        self._num_stacked = 0
        self._next_unused = self.first_slot
        self.num_free = self.num_slots
        self.peak_used = 0

    def peek_ready(self, position: i64) -> i64:
        """The point of the slot that ``position`` more calls of `allocate` come before."""
        if position < self._num_stacked:
            return self.ready[self._stack[self._num_stacked - 1 - position]]
        slot = self._next_unused + position - self._num_stacked
        if slot < len(self.ready):
            return self.ready[slot]
        return NO_POINT

    def allocate_many(self, count: i64) -> vec[i64]:
        """``count`` free slots, those that as many calls of `allocate` would have returned."""
        assert self.num_free >= count, "slots were taken where none are free"
        slots = vec[i64]([0] * count)
        stack = self._stack
        num_stacked = self._num_stacked
        position: i64 = 0
        while position < count and num_stacked > 0:
            num_stacked -= 1
            slots[position] = stack[num_stacked]
            position += 1
        self._num_stacked = num_stacked
        slot = self._next_unused
        while position < count:
            slots[position] = slot
            slot += 1
            position += 1
        self.ready = fill_words(self.ready, slot, NO_POINT)
        self._next_unused = slot
        self.num_free -= count
        used = self.num_slots - self.num_free
        if used > self.peak_used:
            self.peak_used = used
        return slots

    def free(self, slot: i64, point: i64) -> None:
        """Release the slot; its bytes may be touched again after ``point``."""
        self.ready[slot] = point
        self.free_as_it_is(slot)

    def free_as_it_is(self, slot: i64) -> None:
        """Release the slot; its own point says when its bytes may be touched again."""
        assert self.num_free < self.num_slots, "more slots were freed than taken"
        num_stacked = self._num_stacked
        stack = self._stack
        if num_stacked < len(stack):
            stack[num_stacked] = slot
        else:
            self._stack = append(stack, slot)
        self._num_stacked = num_stacked + 1
        self.num_free += 1

    def free_run(self, slots: vec[i64]) -> None:
        """`free_as_it_is` each of the slots, in order."""
        count: i64 = len(slots)
        assert self.num_free + count <= self.num_slots, "more slots were freed than taken"
        num_stacked = self._num_stacked
        stack = self._stack
        for slot in slots:
            if num_stacked < len(stack):
                stack[num_stacked] = slot
            else:
                stack = append(stack, slot)
            num_stacked += 1
        self._stack = stack
        self._num_stacked = num_stacked
        self.num_free += count

    # -- slots that stand aside ---------------------------------------------------------------------------------------

    def set_aside(self, count: i64) -> None:
        """So many slots in use are free, and are not handed out until `end_aside`."""
        self.num_aside += count
        self.num_free += count

    def take_aside(self, slot: i64) -> None:
        """It is in use again, as it is."""
        self.num_aside -= 1
        self.num_free -= 1
        used = self.num_slots - self.num_free
        if used > self.peak_used:
            self.peak_used = used

    def end_aside(self, slot: i64) -> None:
        """It is free like any other."""
        self.num_aside -= 1
        self.num_free -= 1
        self.free(slot, self.ready[slot])

    # -- another number of slots --------------------------------------------------------------------------------------

    def reserve(self, num_slots: i64) -> None:
        """Take all memory that `grow` to that number, or `end_shrink`, and the slots' use afterwards, need. Changes nothing else."""
        end = self.first_slot + num_slots
        if num_slots <= self.num_slots:
            kept = len(self.ready) if len(self.ready) < end else end
            self._kept_ready = reserve_words(self.ready[:kept], end)
        elif num_slots <= MOST_RESERVED:
            self.ready = reserve_words(self.ready, end)
            self._stack = reserve_words(self._stack, num_slots)

    def grow(self, num_more: i64) -> None:
        """There is memory for that many slots more, behind the last one."""
        self.num_slots += num_more
        self.num_free += num_more

    def begin_shrink(self, num_slots: i64) -> None:
        """From here on only the first ``num_slots`` slots are handed out; those in use behind them count until `retire`."""
        assert self.num_aside == 0, "a pool shrinks while slots stand aside"
        limit = self.first_slot + num_slots
        saved = self._stack[: self._num_stacked]
        for number in (self._num_stacked, self._next_unused, self.num_slots, self.num_free):
            saved = append(saved, number)
        self._before_shrink = saved
        num_kept: i64 = 0
        for position in range(self._num_stacked):
            slot = self._stack[position]
            if slot < limit:
                self._stack[num_kept] = slot
                num_kept += 1
        num_used = self.num_slots - self.num_free
        self._num_stacked = num_kept
        self.num_free = num_kept
        if self._next_unused > limit:
            self._next_unused = limit
        else:
            self.num_free += limit - self._next_unused
        self.num_slots = self.num_free + num_used

    def cancel_shrink(self) -> None:
        """Right after `begin_shrink`, everything taken since freed again: all is as it was before."""
        saved = self._before_shrink
        count: i64 = len(saved) - 4
        self._stack = saved[:count]
        self._num_stacked = saved[count]
        self._next_unused = saved[count + 1]
        self.num_slots = saved[count + 2]
        self.num_free = saved[count + 3]

    def retire(self, num_retired: i64) -> None:
        """That many slots in use behind the end are gone: they have no user any more."""
        self.num_slots -= num_retired

    def undo_shrink(self, num_retired: i64) -> None:
        """So many slots were retired, and are slots again: free ones, with the points that they have."""
        self._before_shrink = vec[i64]()
        self._kept_ready = vec[i64]()
        self.grow(num_retired)

    def end_shrink(self) -> None:
        """Forget the slots behind the end. Takes no memory after `reserve`."""
        if len(self._kept_ready) == 0:
            self.reserve(self.num_slots)
        self._before_shrink = vec[i64]()
        self.ready = self._kept_ready
        self._kept_ready = vec[i64]()

    def collect_free_slots(self) -> list[int]:
        """Ids of all free slots that have been used before, for checks and pictures."""
        return [self._stack[i] for i in range(self._num_stacked)]

    def check(self) -> None:
        """Evaluate the conservation law from scratch."""
        seen: set[int] = set()
        for slot in self.collect_free_slots():
            assert slot not in seen, f"slot {slot} is free twice"
            assert self.first_slot <= slot < self._next_unused, f"free slot {slot} was never handed out"
            seen.add(slot)
        unused = self.first_slot + self.num_slots - self._next_unused
        assert unused >= 0, "slots beyond the end of the pool were handed out"
        counted = len(seen) + unused + self.num_aside
        assert counted == self.num_free, f"{len(seen)} + {unused} + {self.num_aside} free slots, counted {self.num_free}"
