"""Where prompts of a scope part: what is counted, and that the chosen depths are the cheapest ones of all."""

from itertools import combinations
from random import Random

import pytest

from kv_cache_manager_v2.reuse.overlap_depths import MAX_CHOSEN, NUM_DEPTHS, PRICE_UNITS, OverlapDepths


def cost_of(depths: OverlapDepths, chosen: tuple[int, ...], price: int) -> int:
    """By the formula of the module."""
    cost = 0
    for depth, num_parted, num_written in depths.list_depths():
        before = max([one for one in chosen if one <= depth], default=0)
        cost += (num_parted - 1) * (depth - before) * PRICE_UNITS
        if depth in chosen:
            cost += price * max(num_written, 1)
    return cost


@pytest.mark.parametrize("seed", range(30))
def test_no_other_choice_costs_less(seed: int) -> None:
    random = Random(seed)
    depths = OverlapDepths()
    places = [random.randint(1, 60) for _ in range(random.randint(1, 7))]
    for _ in range(random.randint(5, 80)):
        overlap = random.choice(places)
        depths.record(overlap, overlap + random.randint(0, 20), random.random() < 0.7)
    price = random.choice([1, 3, PRICE_UNITS, 5 * PRICE_UNITS, 100 * PRICE_UNITS])
    depths.choose(price)
    known = [depth for depth, _, _ in depths.list_depths()]
    best = min(cost_of(depths, some, price) for count in range(len(known) + 1) for some in combinations(known, count))
    assert cost_of(depths, tuple(depths.chosen), price) == best


def test_depths_are_counted_by_prompts_that_pass_them() -> None:
    depths = OverlapDepths()
    depths.record(10, 30, True)
    depths.record(10, 30, True)
    # The first prompt came before the depth was known: as many as there were are assumed. Only the third passes it anew.
    assert depths.list_depths() == [(10, 2, 1)]
    depths.record(4, 12, True)
    assert depths.list_depths() == [(4, 1, 2), (10, 2, 2)]
    depths.record(4, 9, False)
    assert depths.list_depths() == [(4, 1, 2), (10, 2, 2)]


def test_one_prompt_alone_chooses_nothing() -> None:
    depths = OverlapDepths()
    depths.record(1000, 1001, True)
    depths.choose(1)
    assert depths.chosen == []


def test_memory_and_stops_are_bounded() -> None:
    depths = OverlapDepths()
    for number in range(3000):
        # Twice each, so that all of them count.
        depths.record(1 + number // 2 % 500, 600, True)
    assert len(depths.list_depths()) == NUM_DEPTHS
    depths.choose(1)
    assert 0 < len(depths.chosen) <= MAX_CHOSEN
    assert depths.chosen == sorted(depths.chosen)
    assert len(depths.savings) == len(depths.chosen)


def test_depths_that_nothing_passes_end_the_search_too() -> None:
    depths = OverlapDepths()
    for depth in range(1, 31):
        for _ in range(3):
            depths.record(depth * 100, depth * 100, True)
    depths.choose(0)
    assert len(depths.chosen) <= MAX_CHOSEN


def test_what_is_long_ago_fades() -> None:
    depths = OverlapDepths()
    for _ in range(200):
        depths.record(50, 60, True)
    for _ in range(10_000):
        depths.record(20, 60, True)
    depths.choose(PRICE_UNITS)
    assert depths.chosen == [20]
