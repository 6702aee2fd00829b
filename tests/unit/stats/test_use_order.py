"""How many keys were used since one was, against a plain list; what is forgotten, and times that run out."""

import random

import pytest

from kv_cache_manager_v2.stats.use_order import MAX_KEYS, NOT_KNOWN, NUM_TIMES, UseOrder


def key_of(number: int, choices: random.Random) -> int:
    """Some keys want the same place of the table."""
    return number << 40 | choices.randrange(3)


@pytest.mark.parametrize("seed", range(3))
def test_it_counts_as_a_list_does(seed: int) -> None:
    print("seed", seed)
    choices = random.Random(seed)
    keys = [key_of(number, choices) for number in range([3, 100, 700][seed])]
    order = UseOrder()
    used: list[int] = []  # the last one used last
    for _ in range(3000):
        key = choices.choice(keys)
        expected = len(used) - 1 - used.index(key) if key in used else NOT_KNOWN
        assert order.count_used_since(key) == expected
        if key in used:
            used.remove(key)
        used.append(key)
        order.record_use(key)
        assert order.num_keys == len(used)


def test_times_that_run_out_change_nothing() -> None:
    order = UseOrder()
    for number in range(10):
        order.record_use(number)
    # 0 .. 9 were used at the times 0 .. 9; the last of 5 .. 9 is used until all times are gone, and for some rounds more.
    for turn in range(NUM_TIMES + 100):
        order.record_use(5 + turn % 5)
    last = 5 + (NUM_TIMES + 99) % 5
    assert order.count_used_since(last) == 0
    assert [order.count_used_since(number) for number in range(5)] == [9, 8, 7, 6, 5]


def test_the_quarter_that_was_used_longest_ago_is_forgotten() -> None:
    order = UseOrder()
    for number in range(MAX_KEYS):
        order.record_use(number)
    order.record_use(0)  # so 1 is the oldest now
    order.record_use(MAX_KEYS)
    assert order.num_keys == MAX_KEYS - MAX_KEYS // 4 + 1
    assert order.count_used_since(1) == NOT_KNOWN
    assert order.count_used_since(MAX_KEYS // 4) == NOT_KNOWN
    # 1 .. MAX_KEYS / 4 are gone; the next one is the oldest that is left.
    assert order.count_used_since(MAX_KEYS // 4 + 1) == order.num_keys - 1
    assert order.count_used_since(0) == 1
