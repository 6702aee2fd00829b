"""`SegmentHeap` against a sorted list: the least key first, among equal keys the oldest, and then the lowest number."""

from random import Random

import pytest

from kv_cache_manager_v2.storage.eviction.segment_heap import NOTHING, SegmentHeap
from kv_cache_manager_v2.storage.eviction.segment_table import KEY, NO_SEGMENT, SEGMENT_WORDS, STAMP, SegmentTable


def order(table: SegmentTable, segments: list[int]) -> list[int]:
    words = table.words
    return sorted(segments, key=lambda one: (words[one * SEGMENT_WORDS + KEY], words[one * SEGMENT_WORDS + STAMP], one))


@pytest.mark.parametrize("num_keys", [1, 3, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_against_a_sorted_list(seed: int, num_keys: int) -> None:
    random = Random(seed)
    table = SegmentTable()
    heap = SegmentHeap(table)
    segments = [int(table.add(NO_SEGMENT, 0, 0)) for _ in range(60)]
    inside: list[int] = []
    for _step in range(400):
        outside = [one for one in segments if one not in inside]
        draw = random.random()
        if outside and draw < 0.5:
            segment = random.choice(outside)
            table.words[segment * SEGMENT_WORDS + KEY] = random.randrange(num_keys)
            table.words[segment * SEGMENT_WORDS + STAMP] = random.randrange(3)
            heap.push(segment)
            inside.append(segment)
        elif inside and draw < 0.75:
            segment = random.choice(inside)
            inside.remove(segment)
            heap.remove(segment)
        elif inside:
            segment = random.choice(inside)
            table.words[segment * SEGMENT_WORDS + KEY] = random.randrange(num_keys)
            heap.renew(segment)
        expected = order(table, inside)
        assert heap.first() == (expected[0] if expected else NOTHING)
        assert heap.collect() == expected
