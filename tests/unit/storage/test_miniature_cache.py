"""`MiniatureCache` under LRU against lists: who is cached, held and queued after every word, and how many were there when asked for."""

from random import Random

import pytest
from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2 import EvictionPolicy
from kv_cache_manager_v2.stats.reuse_log import ASKED, BELOW, HELD, KEY_SHIFT, PUBLISHED, PUBLISHED_PART, RELEASED
from kv_cache_manager_v2.storage.eviction.miniature_cache import MiniatureCache, SampledBlocks

Word = tuple[int, int]


def sample_of(words: list[Word]) -> SampledBlocks:
    return SampledBlocks(vec[i64]([number << KEY_SHIFT | kind for kind, number in words]))


class NaiveCache:
    """Blocks that are held, and those that are not, the least recently used first."""

    def __init__(self, num_slots: int, children: list[list[int]]) -> None:
        self.num_slots = num_slots
        self.children = children
        self.held: set[int] = set()
        self.began: list[int] = []
        """Which block was held when, without those that were passed when none of them was held any more."""
        self.queued: list[int] = []
        self.run: list[int] = []
        self.holders: dict[int, int] = {}
        self.num_hits = 0

    def hold(self, block: int) -> None:
        self.held.add(block)
        self.began.append(block)

    def has_held_below(self, block: int) -> bool:
        return any(child in self.held for child in self.children[block])

    def play(self, kind: int, block: int) -> None:
        if kind != RELEASED:
            self.end_run()
        if kind == ASKED:
            self.num_hits += block in self.held or block in self.queued
            if block in self.queued:
                self.queued.remove(block)
                self.hold(block)
        elif kind == RELEASED:
            self.holders[block] = max(self.holders.get(block, 0) - 1, 0)
            if self.holders[block] == 0 and block in self.held and block not in self.run:
                self.run.append(block)
        else:
            if block not in self.held and block not in self.queued:
                self.bring_in(block)
            if kind != PUBLISHED_PART:
                self.holders[block] = self.holders.get(block, 0) + 1
            elif self.holders.get(block, 0) == 0 and block in self.held:
                self.release(block)

    def release(self, block: int) -> None:
        self.held.remove(block)
        self.queued.append(block)

    def end_run(self) -> None:
        for block in self.run:
            self.release(block)
        self.run = []

    def bring_in(self, block: int) -> None:
        num_spared = 0
        while len(self.held) + len(self.queued) >= self.num_slots:
            if num_spared > len(self.queued) or not self.queued:
                self.release(self.longest_held())
                num_spared = 0
                continue
            # What is above others is as new as the rest of its path.
            first = self.queued.pop(0)
            if self.has_held_below(first):
                self.queued.append(first)
                num_spared += 1
            elif any(child in self.queued for child in self.children[first]):
                self.queued.append(first)
        self.hold(block)

    def longest_held(self) -> int:
        while self.began[0] not in self.held:
            self.began.pop(0)
        block = self.began[0]
        while self.has_held_below(block):
            block = next(child for child in self.children[block] if child in self.held)
        return block


def draw_words(random: Random, num_requests: int) -> list[Word]:
    """Requests for paths in a tree, several at a time; each asks, publishes or holds its path, and later releases it, the leaf first."""
    parents = {number: random.randrange(number) if random.random() < 0.7 else -1 for number in range(1, 40)}
    words: list[Word] = []
    running: list[list[int]] = []
    for _ in range(num_requests):
        path = [random.randrange(40)]
        while parents.get(path[0], -1) >= 0:
            path.insert(0, parents[path[0]])
        words += [(ASKED, number) for number in path]
        for number in path:
            if number in parents and parents[number] >= 0:
                words.append((BELOW, parents[number]))
            words.append((random.choice((PUBLISHED, HELD)), number))
        if random.random() < 0.2:
            words.append((PUBLISHED_PART, random.randrange(40, 50)))
        running.append(path)
        while len(running) > random.randrange(4):
            words += [(RELEASED, number) for number in reversed(running.pop(random.randrange(len(running))))]
    return words


@pytest.mark.parametrize("num_slots", [1, 2, 5, 9, 30])
@pytest.mark.parametrize("seed", range(6))
def test_against_lists(seed: int, num_slots: int) -> None:
    words = draw_words(Random(seed), 120)
    sample = sample_of(words)
    cache = MiniatureCache(sample, EvictionPolicy.LRU, num_slots)
    naive = NaiveCache(num_slots, sample.children)
    for position in range(len(sample.kinds)):
        cache.play(position, position + 1)
        naive.play(int(sample.kinds[position]), int(sample.blocks[position]))
        assert (cache.num_hits, cache.num_cached) == (naive.num_hits, len(naive.held) + len(naive.queued)), position
    assert naive.num_hits > 0 or num_slots < 5


@pytest.mark.parametrize("num_slots", [1, 2, 3, 4])
def test_a_path_that_is_in_use_whole_gives_its_leaf(num_slots: int) -> None:
    """All slots are taken by a path whose root alone is released: what comes next takes the place of the leaf, and asks find the rest."""
    path = list(range(num_slots))
    words: list[Word] = []
    for number in path:
        words += [(BELOW, number - 1)] * (number > 0) + [(HELD, number)]
    words += [(RELEASED, 0), (HELD, 100)]
    words += [(ASKED, number) for number in path]
    sample = sample_of(words)
    cache = MiniatureCache(sample, EvictionPolicy.LRU, num_slots)
    cache.play(0, len(sample.kinds))
    assert (cache.num_cached, cache.num_hits) == (num_slots, num_slots - 1)
