"""Where prompts of a scope part: what is counted, and that the chosen depths are the cheapest ones of all."""

from itertools import combinations
from random import Random

import pytest

from kv_cache_manager_v2.reuse.overlap_depths import MAX_CHOSEN, PRICE_UNITS, OverlapDepths


class Counts:
    """What is to be counted, while there are few depths: by depth, places where prompts parted, and prompts that passed it anew."""

    def __init__(self) -> None:
        self.by_depth: dict[int, list[int]] = {}
        self.num_prompts = 0

    def record(self, overlap: int, length: int, parts: bool) -> None:
        self.num_prompts += 1
        for depth, counts in self.by_depth.items():
            counts[1] += overlap < depth <= length
        if parts and overlap in self.by_depth:
            self.by_depth[overlap][0] += 1
        elif parts:
            # A new depth begins with what is known of the next one above, else below, else with all prompts.
            above = [depth for depth in self.by_depth if depth < overlap]
            below = [depth for depth in self.by_depth if depth > overlap]
            near = max(above) if above else min(below, default=0)
            self.by_depth[overlap] = [1, self.by_depth[near][1] if near > 0 else self.num_prompts]

    def cost_of(self, chosen: tuple[int, ...], price: int) -> int:
        """By the formula of the module."""
        cost = 0
        for depth, (num_parted, num_written) in self.by_depth.items():
            before = max([one for one in chosen if one <= depth], default=0)
            cost += (num_parted - 1) * (depth - before) * PRICE_UNITS
            if depth in chosen:
                cost += price * max(num_written, 1)
        return cost


@pytest.mark.parametrize("seed", range(30))
def test_no_other_choice_costs_less(seed: int) -> None:
    random = Random(seed)
    depths = OverlapDepths()
    counts = Counts()
    places = [random.randint(1, 60) for _ in range(random.randint(1, 7))]
    for _ in range(random.randint(5, 80)):
        overlap = random.choice(places)
        length = overlap + random.randint(0, 20)
        parts = random.random() < 0.7
        depths.record(overlap, length, parts)
        counts.record(overlap, length, parts)
    price = random.choice([1, 3, PRICE_UNITS, 5 * PRICE_UNITS, 100 * PRICE_UNITS])
    depths.choose(price)
    known = sorted(counts.by_depth)
    best = min(counts.cost_of(some, price) for count in range(len(known) + 1) for some in combinations(known, count))
    assert counts.cost_of(tuple(depths.chosen), price) == best


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
