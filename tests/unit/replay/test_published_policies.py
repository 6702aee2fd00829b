"""LFU, ARC and S3-FIFO as they were published, for a flat cache: without prefixes, ours hit as often."""

from collections import OrderedDict
from collections.abc import Callable
from random import Random

import pytest

from kv_cache_manager_v2.replay.block_cache import BlockCache
from kv_cache_manager_v2.replay.block_requests import BlockRequests
from kv_cache_manager_v2.replay.policies.own_policy import ComparedPolicy
from kv_cache_manager_v2.replay.policies.published import ARC, LFU, S3_FIFO

Line = OrderedDict[int, int]


def count_lfu(accesses: list[int], capacity: int) -> int:
    """Fewest uses first, of these the longest unused; counts are forgotten with the content."""
    cached: Line = OrderedDict()
    num_hits = 0
    for item in accesses:
        if item in cached:
            num_hits += 1
        elif len(cached) == capacity:
            del cached[min(cached, key=lambda other: cached[other])]
        cached[item] = cached.pop(item, -1) + 1
    return num_hits


def count_s3_fifo(accesses: list[int], capacity: int) -> int:
    """Algorithm 1 of the paper."""
    small: Line = OrderedDict()
    main: Line = OrderedDict()
    ghosts: Line = OrderedDict()
    most_in_small = capacity // 10
    num_hits = 0
    for item in accesses:
        line = small if item in small else main
        if item in line:
            line[item] = min(line[item] + 1, 3)
            num_hits += 1
            continue
        is_ghost = ghosts.pop(item, None) is not None
        if len(small) + len(main) == capacity:
            evict_s3_fifo(small, main, ghosts, capacity - most_in_small)
        (main if is_ghost else small)[item] = 0
    return num_hits


def evict_s3_fifo(small: Line, main: Line, ghosts: Line, most_in_main: int) -> None:
    while True:
        if len(main) > most_in_main or not small:
            item, uses = main.popitem(last=False)
            if uses == 0:
                return
            main[item] = uses - 1
            continue
        item, uses = small.popitem(last=False)
        if uses <= 1:
            ghosts[item] = 0
            if len(ghosts) > most_in_main:
                ghosts.popitem(last=False)
            return
        main[item] = 0


def count_arc(accesses: list[int], capacity: int) -> int:
    """Figure 4 of the paper."""
    once: Line = OrderedDict()
    again: Line = OrderedDict()
    ghosts_of_once: Line = OrderedDict()
    ghosts_of_again: Line = OrderedDict()
    target = 0
    num_hits = 0

    def replace(is_ghost_of_again: bool) -> None:
        if once and (len(once) > target or (is_ghost_of_again and len(once) == target)):
            ghosts_of_once[once.popitem(last=False)[0]] = 0
        else:
            ghosts_of_again[again.popitem(last=False)[0]] = 0

    for item in accesses:
        if item in once or item in again:
            num_hits += 1
            once.pop(item, None)
            again.pop(item, None)
            again[item] = 0
        elif item in ghosts_of_once:
            target = min(target + max(1, len(ghosts_of_again) // len(ghosts_of_once)), capacity)
            replace(False)
            del ghosts_of_once[item]
            again[item] = 0
        elif item in ghosts_of_again:
            target = max(target - max(1, len(ghosts_of_once) // len(ghosts_of_again)), 0)
            replace(True)
            del ghosts_of_again[item]
            again[item] = 0
        else:
            num_known = len(once) + len(ghosts_of_once)
            if num_known == capacity:
                if len(once) < capacity:
                    ghosts_of_once.popitem(last=False)
                    replace(False)
                else:
                    once.popitem(last=False)
            elif num_known + len(again) + len(ghosts_of_again) >= capacity:
                if num_known + len(again) + len(ghosts_of_again) == 2 * capacity:
                    ghosts_of_again.popitem(last=False)
                replace(False)
            once[item] = 0
    return num_hits


PUBLISHED: dict[ComparedPolicy, Callable[[list[int], int], int]] = {
    LFU: count_lfu, ARC: count_arc, S3_FIFO: count_s3_fifo,
}  # fmt: skip


def make_accesses(seed: int) -> list[int]:
    """Popular items, another set of them later, and items that come once or twice."""
    random = Random(seed)
    accesses: list[int] = []
    for number in range(2500):
        if random.random() < 0.6:
            accesses.append(int(random.paretovariate(0.7)) % 400 + (200 if number > 1500 else 0))
        else:
            accesses.append(1000 + number - random.choice((0, 0, 7, 150)))
    return accesses


@pytest.mark.parametrize("policy", PUBLISHED, ids=lambda policy: policy.value)
@pytest.mark.parametrize("capacity", [40, 250])
@pytest.mark.parametrize("seed", [1, 2])
def test_without_prefixes_it_hits_as_often_as_published(policy: ComparedPolicy, capacity: int, seed: int) -> None:
    numbers: dict[int, int] = {}
    accesses = [numbers.setdefault(item, len(numbers)) for item in make_accesses(seed)]
    blocks = BlockRequests("flat", [[item] for item in accesses], [-1] * len(numbers))
    cache = BlockCache(policy, capacity, blocks)
    for request in blocks.requests:
        cache.serve(request)
    # Ours make room before they look for a ghost, and trim ghosts at an eviction: a few hits of a thousand.
    most = 0 if policy is LFU else len(accesses) // 500
    assert abs(int(cache.num_hits) - PUBLISHED[policy](accesses, capacity)) <= most
