"""A slot allocator does what a list of free slots, last freed first, would do, and counts what a set of used slots counts."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2.device.stream_order import NO_POINT
from kv_cache_manager_v2.pools.slot_allocator import MOST_RESERVED, SlotAllocator


class PlainAllocator:
    """Slots in plain lists: the next free one is the last of ``freed``, else the lowest one that was never used."""

    def __init__(self, num_slots: int, first_slot: int) -> None:
        self.first_slot = first_slot
        self.freed: list[int] = []
        self.unused = list(range(first_slot, first_slot + num_slots))
        self.used: set[int] = set()
        self.aside: set[int] = set()
        self.points: dict[int, int] = {}
        self.peak = 0
        self.highest = 0

    @property
    def num_free(self) -> int:
        return len(self.freed) + len(self.unused) + len(self.aside)

    def note_peak(self) -> None:
        self.peak = max(self.peak, len(self.used))
        self.highest = max(self.highest, len(self.used))

    def take_peak(self) -> int:
        peak, self.peak = self.peak, len(self.used)
        return peak

    def allocate(self) -> int:
        slot = self.freed.pop() if self.freed else self.unused.pop(0)
        self.used.add(slot)
        self.note_peak()
        return slot

    def release(self, slot: int) -> None:
        self.used.remove(slot)
        self.freed.append(slot)

    def coming(self) -> list[int]:
        return [*reversed(self.freed), *self.unused]

    def begin_shrink(self, limit: int) -> None:
        self.freed = [slot for slot in self.freed if slot < limit]
        self.unused = [slot for slot in self.unused if slot < limit]


def compare(allocator: SlotAllocator, plain: PlainAllocator, shrinks: bool = False) -> None:
    if not shrinks:
        allocator.check()
    assert allocator.num_free == plain.num_free
    assert allocator.num_used == len(plain.used)
    assert allocator.num_aside == len(plain.aside)
    assert allocator.num_slots == len(plain.used) + plain.num_free
    assert allocator.peak_used == plain.peak
    assert allocator.total_peak == plain.highest
    assert allocator.collect_free_slots() == plain.freed
    coming = plain.coming()
    peeked = [int(allocator.peek_ready(position)) for position in range(len(coming))]
    assert peeked == [plain.points.get(slot, NO_POINT) for slot in coming]
    in_use = sorted(plain.used | plain.aside)
    assert [int(allocator.ready[slot]) for slot in in_use] == [plain.points.get(slot, NO_POINT) for slot in in_use]


class Work:
    """Random calls, done by both."""

    def __init__(self, seed: int) -> None:
        self.choices = random.Random(seed)
        num_slots, first_slot = self.choices.randint(0, 12), self.choices.randint(0, 2)
        self.allocator, self.plain = SlotAllocator(num_slots, first_slot), PlainAllocator(num_slots, first_slot)
        assert self.allocator.first_slot == first_slot
        if self.choices.random() < 0.5:
            self.take_first()
        compare(self.allocator, self.plain)

    def take_first(self) -> None:
        """What an earlier process has left, which is taken again after it was forgotten."""
        allocator, plain = self.allocator, self.plain
        for _ in range(2):
            allocator.forget_all()
            slots = list(plain.unused)
            found = sorted(self.choices.sample(slots, self.choices.randint(0, len(slots))))
            allocator.take_first_slots(found)
            end = found[-1] + 1 if found else plain.first_slot
            assert len(allocator.ready) >= end
            assert allocator.collect_free_slots() == [slot for slot in reversed(range(plain.first_slot, end)) if slot not in found]
            assert allocator.peak_used == allocator.num_used == len(found)
        plain.used = set(found)
        plain.unused = [slot for slot in slots if slot >= end]
        plain.freed = allocator.collect_free_slots()
        plain.note_peak()

    def pick(self, slots: set[int], least: int = 0) -> list[int]:
        return self.choices.sample(sorted(slots), self.choices.randint(least, len(slots)))

    def allocate(self) -> None:
        if self.plain.coming():
            assert self.allocator.allocate() == self.plain.allocate()

    def allocate_many(self) -> None:
        count = self.choices.randint(0, len(self.plain.coming()))
        slots = self.allocator.allocate_many(count)
        assert [int(slot) for slot in slots] == [self.plain.allocate() for _ in range(count)]

    def free(self) -> None:
        for slot in self.pick(self.plain.used)[:3]:
            point = self.choices.randint(1, 99)
            self.allocator.free(slot, point)
            self.plain.points[slot] = point
            self.plain.release(slot)

    def free_as_they_are(self) -> None:
        for slot in self.pick(self.plain.used)[:3]:
            self.allocator.free_as_it_is(slot)
            self.plain.release(slot)

    def free_run(self) -> None:
        slots = self.pick(self.plain.used)
        self.allocator.free_run(vec[i64](slots))
        for slot in slots:
            self.plain.release(slot)

    def set_aside(self) -> None:
        slots = self.pick(self.plain.used)[:4]
        self.allocator.set_aside(len(slots))
        self.plain.used.difference_update(slots)
        self.plain.aside.update(slots)

    def take_aside(self) -> None:
        for slot in self.pick(self.plain.aside)[:2]:
            self.allocator.take_aside(slot)
            self.plain.aside.remove(slot)
            self.plain.used.add(slot)
            self.plain.note_peak()

    def end_aside(self) -> None:
        for slot in self.pick(self.plain.aside):
            self.allocator.end_aside(slot)
            self.plain.aside.remove(slot)
            self.plain.freed.append(slot)

    def take_peak(self) -> None:
        assert self.allocator.take_peak() == self.plain.take_peak()

    def grow(self) -> None:
        more = self.choices.randint(1, 5)
        if self.choices.random() < 0.5:
            self.allocator.reserve(int(self.allocator.num_slots) + more)
            compare(self.allocator, self.plain)
        self.allocator.grow(more)
        end = self.plain.first_slot + int(self.allocator.num_slots)
        self.plain.unused += range(end - more, end)

    def shrink(self) -> None:
        """Slots behind the end move in front of it; then it stays so, or is taken back before or after they have gone."""
        allocator, plain = self.allocator, self.plain
        while plain.aside:
            self.end_aside()
        old = int(allocator.num_slots)
        count = self.choices.randint(len(plain.used), old)
        limit = plain.first_slot + count
        before = list(plain.freed), list(plain.unused)
        allocator.begin_shrink(count)
        plain.begin_shrink(limit)
        compare(allocator, plain, shrinks=True)
        behind = sorted([slot for slot in plain.used if slot >= limit])
        targets = [plain.allocate() for _ in behind]
        assert [int(allocator.allocate()) for _ in behind] == targets
        compare(allocator, plain, shrinks=True)
        if self.choices.random() < 0.3:
            for target in reversed(targets):
                allocator.free_as_it_is(target)
                plain.release(target)
            allocator.cancel_shrink()
            plain.freed, plain.unused = before
            return
        allocator.retire(len(behind))
        plain.used.difference_update(behind)
        compare(allocator, plain)
        assert allocator.num_slots == count
        if self.choices.random() < 0.5:
            allocator.reserve(count)
            compare(allocator, plain)
        if self.choices.random() < 0.3:
            allocator.undo_shrink(old - count)
            plain.unused += range(limit, limit + old - count)
            return
        allocator.end_shrink()
        assert len(allocator.ready) <= limit
        for slot in [slot for slot in plain.points if slot >= limit]:
            del plain.points[slot]


@pytest.mark.parametrize("seed", range(60))
def test_against_lists(seed: int) -> None:
    """Every call's result, every number and every point are those of plain lists."""
    work = Work(seed)
    steps = (
        Work.allocate, Work.allocate_many, Work.allocate_many, Work.free, Work.free_as_they_are, Work.free_run,
        Work.set_aside, Work.take_aside, Work.end_aside, Work.take_peak, Work.grow, Work.shrink,
    )  # fmt: skip
    for _ in range(60):
        work.choices.choice(steps)(work)
        compare(work.allocator, work.plain)
        assert len(work.allocator.ready) <= work.allocator.first_slot + work.allocator.num_slots


def address_of(words: vec[i64]) -> int:
    return int(np.frombuffer(memoryview(words), dtype=np.int64).ctypes.data)


@pytest.mark.parametrize("way", ["at the start", "before it grows", "before it shrinks"])
def test_nothing_is_copied_as_slots_are_used(way: str) -> None:
    """The points of all slots have their addresses from the start, and after `reserve`: no array moves as slots are used."""
    num_slots = 200_000
    allocator = SlotAllocator(num_slots if way == "at the start" else 10 if way == "before it grows" else 2 * num_slots, 1)
    allocator.free(allocator.allocate(), 7)
    if way == "before it grows":
        allocator.reserve(num_slots)
        allocator.grow(num_slots - 10)
    if way == "before it shrinks":
        allocator.begin_shrink(num_slots)
        allocator.reserve(num_slots)
        allocator.end_shrink()
    points, stack = address_of(allocator.ready), address_of(allocator._stack)
    allocator.free_run(allocator.allocate_many(num_slots))
    assert len(allocator.ready) == num_slots + 1
    assert (address_of(allocator.ready), address_of(allocator._stack)) == (points, stack)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc/self/statm")
def test_addresses_are_reserved_for_the_slots_there_are() -> None:
    """Small pools take few addresses, and one of more slots than an array may have reserved takes those of the largest one."""

    def num_mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    before = num_mapped()
    small = [SlotAllocator(1000, 1) for _ in range(20)]
    for one in small:
        one.reserve(2000)
    assert num_mapped() - before < 1 << 28
    large = SlotAllocator(1 << 40, 1)
    large.reserve(1 << 41)
    assert num_mapped() - before < 3 * 8 * MOST_RESERVED
    assert large.allocate() == 1
