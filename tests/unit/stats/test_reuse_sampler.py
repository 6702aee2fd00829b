"""A sample of the blocks tells the hit rate of LRU caches of any size, against caches that are played through exactly."""

import random
from collections import OrderedDict

import pytest

from kv_cache_manager_v2.stats.reuse_sampler import MAX_SAMPLES, ReuseSampler
from kv_cache_manager_v2.stats.use_order import NUM_TIMES


def key_of(number: int) -> int:
    """62 well mixed bits."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    mixed = (mixed ^ (mixed >> 31)) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    return (mixed ^ (mixed >> 29)) & (1 << 62) - 1


def count_hits(stream: list[int], size: int) -> int:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for number in stream:
        if number in cache:
            hits += 1
            cache.move_to_end(number)
        else:
            if len(cache) == size:
                cache.popitem(last=False)
            cache[number] = None
    return hits


def sample(stream: list[int], rate: float) -> ReuseSampler:
    sampler = ReuseSampler(rate)
    for number in stream:
        key = key_of(number)
        if sampler.is_sampled(key):
            sampler.query(key)
            sampler.touch(key)
    return sampler


def skewed_stream(seed: int, length: int, num_blocks: int) -> list[int]:
    """Some blocks are asked for far more often than others; what is popular drifts."""
    rng = random.Random(seed)
    return [int(num_blocks * rng.random() ** 2) + position // 50 for position in range(length)]


@pytest.mark.parametrize("seed", range(4))
def test_with_every_block_in_the_sample_it_is_exact(seed: int) -> None:
    stream = skewed_stream(seed, 3000, 500)
    sampler = sample(stream, 1.0)
    assert sampler.num_queries == len(stream)
    for size in (1, 2, 17, 100, 333, 1000):
        assert sampler.count_queries_within(size) == count_hits(stream, size)


def assert_within_a_point(stream: list[int], rate: float, present: int) -> None:
    sampler = sample(stream, rate)
    assert sampler.num_queries < 1.3 * rate * len(stream)
    hits = count_hits(stream, present)
    now = sampler.count_queries_within(present * sampler.rate)
    for size in (0.25, 0.5, 2, 4, 8):
        # Anchored at the present size, as the manager does it.
        more = sampler.count_queries_within(present * size * sampler.rate) - now
        if size < 1:
            estimate = hits * (now + more) / now
        else:
            estimate = hits + (len(stream) - hits) * more / (sampler.num_queries - now)
        assert abs(estimate - count_hits(stream, int(present * size))) / len(stream) < 0.01, f"at {size}"


def test_ten_percent_of_a_short_trace_are_within_a_point() -> None:
    assert_within_a_point(skewed_stream(11, 150_000, 90_000), 0.1, 9_000)


@pytest.mark.slow
def test_one_percent_of_a_long_trace_is_within_a_point() -> None:
    assert_within_a_point(skewed_stream(1, 1_000_000, 600_000), 0.01, 60_000)


def test_memory_is_bounded_and_old_blocks_are_forgotten_first() -> None:
    sampler = ReuseSampler(1.0)
    # More blocks than fit, and more uses than there are times.
    for number in range(MAX_SAMPLES + 1):
        sampler.touch(key_of(number))
    for _ in range(2 * NUM_TIMES // MAX_SAMPLES):
        for number in range(MAX_SAMPLES // 2, MAX_SAMPLES + 1):
            sampler.touch(key_of(number))
    sampler.query(key_of(0))
    assert sum(list(sampler.distances)) == 0
    # The one that was used longest ago of half of them: all others have been used since.
    sampler.query(key_of(MAX_SAMPLES // 2))
    assert sampler.distances[MAX_SAMPLES - MAX_SAMPLES // 2] == 1
