"""Neighbours among sorted keys are those of a sorted list, through any number of runs."""

import random
from bisect import bisect_left, insort

import pytest

from kv_cache_manager_v2.reuse.sorted_keys import RUN_KEYS, SortedKeys


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("grows", ["anywhere", "upwards"])
def test_like_one_sorted_list(seed: int, grows: str) -> None:
    choices = random.Random(seed)
    expected = sorted({choices.randbytes(3) for _ in range(10)})
    keys = SortedKeys(list(expected))
    next_key = 2**23
    for _ in range(4 * RUN_KEYS):
        if expected and choices.random() < 0.2:
            gone = choices.choice([expected[-1], choices.choice(expected)])
            keys.remove(gone)
            expected.remove(gone)
            continue
        next_key += 3
        new = choices.randbytes(3) if grows == "anywhere" else next_key.to_bytes(3, "big")
        if new in expected:
            continue
        keys.add(new)
        insort(expected, new)
        for asked in (new, choices.randbytes(3)):
            place = bisect_left(expected, asked)
            before, after = keys.neighbours(asked, 3)
            assert after == expected[place : place + 3]
            assert before == expected[max(0, place - 3) : place][::-1]
    for gone in list(expected):
        keys.remove(gone)
    assert keys.neighbours(b"a", 3) == ([], [])
