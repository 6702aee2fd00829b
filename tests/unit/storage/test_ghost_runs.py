"""The hash table of ghosts' runs against a plain dict, through growth in the middle and on request."""

from random import Random

import pytest

from kv_cache_manager_v2.storage.eviction.segment_table import NO_SEGMENT, SegmentTable


@pytest.mark.parametrize("seed", range(6))
def test_against_a_dict(seed: int) -> None:
    random = Random(seed)
    table = SegmentTable()
    model: dict[int, int] = {}
    most = 600
    segments = [table.add(NO_SEGMENT, 0, 0) for _ in range(most)]
    free = segments[:]
    # Few bits, so that homes are shared; large numbers, as content keys are.
    keys = [number * 0x1234567 + 1 for number in range(2 * most)]
    for step in range(6000):
        kind = random.random()
        if kind < (0.55 if step < 3000 else 0.4) and free:
            key = random.choice(keys)
            if key not in model:
                model[key] = free.pop()
                table.set_top(model[key], key)
        elif kind < 0.9 and model:
            key = random.choice(list(model))
            segment = model.pop(key)
            table.clear_top(segment)
            free.append(segment)
        elif kind < 0.91:
            table.reserve(random.randrange(1, most))
        key = random.choice(keys)
        assert table.find_top(key) == model.get(key, NO_SEGMENT)
        assert table.num_runs == len(model)
        if step % 100 == 0:
            assert all(table.find_top(key) == segment for key, segment in model.items())


def test_what_is_there_is_found_after_growth_and_memory_comes_with_it() -> None:
    for num_runs in (1, 31, 32, 33, 300, 3000):
        table = SegmentTable()
        table.reserve(500)
        segments = [table.add(NO_SEGMENT, 0, 0) for _ in range(num_runs)]
        for number, segment in enumerate(segments):
            table.set_top(segment, 7919 * number + 1)
            assert len(table._links) == 2 * (segment + 1) and table._buckets.count == number + 1
        table.reserve(1000)
        assert [table.find_top(7919 * number + 1) for number in range(num_runs)] == segments
