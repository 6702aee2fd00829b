"""Many slots at once are those, in that order, that one call each would have given."""

import random

import pytest

from kv_cache_manager_v2.pools.slot_allocator import SlotAllocator


def take(allocator: SlotAllocator, count: int, at_once: bool) -> list[int]:
    if at_once:
        return [int(slot) for slot in allocator.allocate_many(count)]
    return [int(allocator.allocate()) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_many_slots_are_those_of_as_many_calls(seed: int) -> None:
    choices = random.Random(seed)
    one_by_one, at_once = SlotAllocator(40, 1), SlotAllocator(40, 1)
    used: list[int] = []
    for step in range(60):
        count = choices.randint(0, int(at_once.num_free))
        slots = take(at_once, count, at_once=True)
        assert slots == take(one_by_one, count, at_once=False)
        used += slots
        choices.shuffle(used)
        for _ in range(choices.randint(0, len(used))):
            slot = used.pop()
            one_by_one.free(slot, step)
            at_once.free(slot, step)
        assert at_once.num_free == one_by_one.num_free == 40 - len(used)
        assert at_once.peak_used == one_by_one.peak_used
        assert list(at_once.ready) == list(one_by_one.ready)
        at_once.check()


def test_slots_that_went_with_a_shrink_come_back_without_a_past() -> None:
    """The memory of slot 3 was given back: whoever gets new memory under its number waits for nobody."""
    allocator = SlotAllocator(4, 0)
    slots = take(allocator, 4, at_once=True)
    for slot in slots:
        allocator.free(slot, 7)
    allocator.begin_shrink(2)
    allocator.end_shrink()
    allocator.grow(2)
    assert {slot: int(allocator.ready[slot]) for slot in take(allocator, 4, at_once=False)} == {0: 7, 1: 7, 2: 0, 3: 0}
    allocator.check()


@pytest.mark.parametrize("used", [[0], [2], [0, 1, 2], [1, 4], [3, 7], []])
def test_slots_in_use_from_the_start_leave_holes_that_go_first(used: list[int]) -> None:
    allocator = SlotAllocator(8, 0)
    allocator.take_first_slots(used)
    allocator.check()
    assert allocator.num_free == 8 - len(used)
    assert take(allocator, 8 - len(used), at_once=False) == [slot for slot in range(8) if slot not in used]


def test_what_was_taken_at_the_start_can_be_forgotten() -> None:
    allocator, fresh = SlotAllocator(8, 0), SlotAllocator(8, 0)
    allocator.take_first_slots([1, 4])
    allocator.forget_all()
    allocator.check()
    assert allocator.peak_used == fresh.peak_used
    assert take(allocator, 8, at_once=False) == take(fresh, 8, at_once=False)
