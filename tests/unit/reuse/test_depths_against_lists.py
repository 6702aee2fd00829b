"""What prompts of a scope tell is counted as a plain list of depths counts it, and the choice is that of the formula, ties included."""

import random

import pytest

from kv_cache_manager_v2.reuse.overlap_depths import MAX_CHOSEN, NUM_DEPTHS, PRICE_UNITS, OverlapDepths

HALVING = 1024


class PlainDepths:
    """``entries``: depth, places where prompts parted, prompts that would have left a snapshot; ascending."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.entries: list[list[int]] = []

    def record(self, overlap: int, length: int, parts: bool) -> None:
        self.num_requests += 1
        for entry in self.entries:
            entry[2] += overlap < entry[0] <= length
        if parts and overlap > 0:
            self.add(overlap)
        if self.num_requests == HALVING:
            self.num_requests //= 2
            self.entries = [[depth, parted // 2, written // 2] for depth, parted, written in self.entries if parted >= 2]

    def add(self, depth: int) -> None:
        for entry in self.entries:
            if entry[0] == depth:
                entry[1] += 1
                return
        above = [entry for entry in self.entries if entry[0] < depth]
        near = above[-1:] or self.entries[:1]
        self.entries.append([depth, 1, near[0][2] if near else self.num_requests])
        self.entries.sort()
        if len(self.entries) > NUM_DEPTHS:
            pairs = range(len(self.entries) - 1)
            best = min(pairs, key=lambda i: self.entries[i + 1][1] * (self.entries[i + 1][0] - self.entries[i][0]))
            self.entries[best][1] += self.entries.pop(best + 1)[1]

    def choose(self, price: int) -> tuple[list[int], list[int]]:
        """Chosen depths, and what a snapshot at each of them saves."""
        price = max(price, 1)
        while True:
            path = self.choose_at(price)
            if len(path) <= MAX_CHOSEN:
                break
            price *= 2
        depths, savings = [], []
        for position, i in enumerate(path):
            end = path[position + 1] if position + 1 < len(path) else len(self.entries)
            served = sum(parted - 1 for _, parted, _ in self.entries[i:end])
            gap = self.entries[i][0] - (self.entries[path[position - 1]][0] if position > 0 else 0)
            depths.append(self.entries[i][0])
            savings.append(served * gap * PRICE_UNITS // max(self.entries[i][2], 1))
        return depths, savings

    def choose_at(self, price: int) -> list[int]:
        """Of the cheapest choices that without any, else that with the deepest last one, and so on upwards."""
        costs: list[int] = []
        paths: list[list[int]] = []
        for end in range(len(self.entries) + 1):
            found: list[tuple[int, int, int]] = []
            for before in range(-1, end):
                depth = self.entries[before][0] if before >= 0 else 0
                between = sum((parted - 1) * (one - depth) for one, parted, _ in self.entries[max(before, 0) : end])
                cost = (costs[before] if before >= 0 else 0) + PRICE_UNITS * between
                found.append((cost, 0 if before < 0 else 1, -before))
            cost, _, negated = min(found)
            path = paths[-negated] if negated <= 0 else []
            if end == len(self.entries):
                return path
            costs.append(cost + price * max(self.entries[end][2], 1))
            paths.append([*path, end])
        raise AssertionError


@pytest.mark.parametrize("num_depths", [3, 20, 60, 400])
@pytest.mark.parametrize("seed", range(4))
def test_against_lists(seed: int, num_depths: int) -> None:
    """Also where depths become one, where counts are halved, and where more pay than may be chosen."""
    choices = random.Random(100 * seed + num_depths)
    depths, plain = OverlapDepths(), PlainDepths()
    assert (depths.num_requests, depths.chosen, depths.savings) == (0, [], [])
    places = [choices.randint(0, 3 * num_depths) for _ in range(num_depths)]
    for number in range(2600 if seed < 2 else 300):
        # Some depths are rare, and fade at once.
        overlap = places[int(num_depths * choices.random() ** 6)] if seed < 2 else choices.choice(places)
        length = overlap + choices.choice((0, 1, choices.randint(0, num_depths)))
        parts = choices.random() < 0.8
        depths.record(overlap, length, parts)
        plain.record(overlap, length, parts)
        assert depths.num_requests == plain.num_requests
        if number % (211 if num_depths > 3 else 13) == 0 or number < 8:
            for price in (0, choices.choice((-1, 1, 2, PRICE_UNITS, 40 * PRICE_UNITS, 5000 * PRICE_UNITS))):
                depths.choose(price)
                assert (depths.chosen, depths.savings) == plain.choose(price)


def test_a_depth_that_has_faded_comes_again() -> None:
    """The deepest one, at which one prompt parted, is gone after the halving; what parts there afterwards counts from one."""
    depths = OverlapDepths()
    for overlap in (5, 5, 9):
        depths.record(overlap, 9, True)
    for _ in range(HALVING - 3):
        depths.record(0, 0, False)
    for _ in range(3):
        depths.record(9, 9, True)
    depths.choose(1)
    # One at depth 5, of which nothing is left but what does not count, and three at 9, of which two count and save 9 blocks each.
    assert (depths.chosen, depths.savings) == ([9], [2 * 9 * PRICE_UNITS])


def test_a_price_of_nothing_is_the_least_price() -> None:
    """Two prompts parted at depth 1, so a snapshot there saves one block, 16 units; twelve prompts would leave it, for one unit each."""
    depths = OverlapDepths()
    depths.record(1, 1, True)
    depths.record(1, 1, True)
    for _ in range(11):
        depths.record(0, 1, False)
    for price in (0, 1):
        depths.choose(price)
        assert (depths.chosen, depths.savings) == ([1], [16 // 12])
    depths.choose(2)
    assert depths.chosen == []
