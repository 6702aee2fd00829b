"""Which lengths can be restored: against the definition, block by block."""

import random

import pytest

from kv_cache_manager_v2.layout.life_cycle import AttnLifeCycle, LifeCycle, SsmLifeCycle
from kv_cache_manager_v2.shared.page_needs import PageNeeds
from kv_cache_manager_v2.shared.remote_report import intersect_ranges, largest_at_most, to_ranges

T = 4


def needed(cycle: LifeCycle, num_blocks: int) -> set[int]:
    """Blocks of a prefix of so many whole blocks that are not stale; of states the last one's."""
    if isinstance(cycle, SsmLifeCycle):
        return {num_blocks - 1} if num_blocks > 0 else set()
    stale = cycle.compute_stale_range(num_blocks * T, T)
    return {block for block in range(num_blocks) if not stale.beg <= block < stale.end}


@pytest.mark.parametrize("seed", range(40))
def test_lengths_are_those_whose_blocks_are_all_there(seed: int) -> None:
    rng = random.Random(seed)
    choices: list[LifeCycle] = [
        AttnLifeCycle(),
        AttnLifeCycle(rng.randint(1, 30)),
        AttnLifeCycle(rng.randint(1, 30), rng.randint(0, 3)),
        SsmLifeCycle(),
    ]
    cycles = rng.sample(choices, rng.randint(1, 4))
    needs = PageNeeds(cycles, T)
    begin, end = rng.randint(0, 5), rng.randint(6, 14)
    present = [{block for block in range(begin, end) if rng.random() < 0.85} for _cycle in cycles]
    lengths = needs.list_lengths(present, begin, end)
    expected = [
        length
        for length in range(begin + 1, end + 1)
        if all({block for block in needed(cycle, length) if block >= begin} <= present[number] for number, cycle in enumerate(cycles))
    ]
    assert lengths == expected
    for number, cycle in enumerate(cycles):
        for length in range(begin, end + 1):
            assert needs.list_blocks(number, begin, length) == sorted(block for block in needed(cycle, length) if block >= begin)


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_sets(seed: int) -> None:
    rng = random.Random(seed)
    left, right = [sorted(rng.sample(range(1, 30), rng.randint(0, 20))) for _side in range(2)]
    assert intersect_ranges(to_ranges(left), to_ranges(right)) == to_ranges(sorted(set(left) & set(right)))
    for limit in range(32):
        assert largest_at_most(to_ranges(left), limit) == max([number for number in left if number <= limit], default=0)
