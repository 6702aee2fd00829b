"""`IntervalSet` against a set of integers."""

import random

import pytest

from kv_cache_manager_v2.device.interval_set import IntervalSet

SPACE = 40


def intervals_of(values: set[int]) -> list[tuple[int, int]]:
    begs = sorted(value for value in values if value - 1 not in values)
    ends = sorted(value + 1 for value in values if value + 1 not in values)
    return list(zip(begs, ends, strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_against_a_set(seed: int) -> None:
    generator = random.Random(seed)
    intervals = IntervalSet()
    values: set[int] = set()
    num_added = num_removed = 0
    for _ in range(600):
        beg = generator.randrange(SPACE)
        end = generator.randrange(beg + 1, min(SPACE, beg + 8) + 1)
        asked = set(range(beg, end))
        assert intervals.covers(beg, end) == (asked <= values)
        assert intervals.overlaps(beg, end) == bool(asked & values)
        if not asked & values:
            intervals.add(beg, end)
            values |= asked
            num_added += 1
        elif asked <= values:
            intervals.remove(beg, end)
            values -= asked
            num_removed += 1
        expected = intervals_of(values)
        assert len(intervals) == len(expected)
        assert [(intervals.beg(i), intervals.end(i)) for i in range(len(intervals))] == expected
        assert intervals.num_covered() == len(values)
        for value in range(-1, SPACE + 1):
            index = intervals.find(value)
            assert (index >= 0) == (value in values)
            if index >= 0:
                assert expected[index][0] <= value < expected[index][1]
    assert num_added > 20 and num_removed > 20
