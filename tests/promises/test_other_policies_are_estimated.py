"""The manager estimates what another eviction policy would bring, at any size of a tier: as a manager with that policy then has."""

import random
import threading
from typing import Any

import pytest
from kv_cache_manager_v2 import EvictionPolicy, GpuCacheTierConfig, HostDevice, KVCacheManager, KVCacheManagerConfig, LogicError
from small_models import attention_layers, manager_of

NUM_SLOTS = 240
"""LEARNED gives recency an allowance of a 32nd of them: of a few pages it would be chance who rules."""
SLOT_BYTES = 2 * 8 * 4


def manager_with(policy, size=1.0, **settings):
    config = KVCacheManagerConfig(
        tokens_per_block=4,
        cache_tiers=[GpuCacheTierConfig(int(NUM_SLOTS * size) * SLOT_BYTES, policy)],
        layers=attention_layers((None,), 4),
        **settings,
    )
    return KVCacheManager(config, device=HostDevice())


def serve(manager, num_requests, num_open):
    """Prompts of a few popular texts with a turn of their own behind them; the last few stay open."""
    seed = 5
    print("seed", seed)
    rng = random.Random(seed)
    running = []
    for number in range(num_requests):
        family = int(160 * rng.random() ** 2)
        prompt = [family * 1000 + token for token in range(16)] + [number * 7 % 200] * 4
        kv_cache = manager.create_kv_cache(input_tokens=prompt)
        assert kv_cache.resume() and kv_cache.resize(len(prompt))
        kv_cache.commit(prompt[kv_cache.num_committed_tokens :])
        running.append(kv_cache)
        if len(running) > num_open:
            running.pop(0).close()
    for kv_cache in running:
        kv_cache.close()


_MEASURED: dict[Any, float] = {}


def measure(policy, size, num_open):
    """Once for all tests."""
    case = (policy, size, num_open)
    if case not in _MEASURED:
        with manager_with(policy, size) as manager:
            serve(manager, 2000, num_open)
            _MEASURED[case] = manager.get_statistics().prompts.hit_rate
    return _MEASURED[case]


@pytest.mark.slow
@pytest.mark.parametrize("num_open", [0, 2])
@pytest.mark.parametrize("present", [EvictionPolicy.LRU, EvictionPolicy.LEARNED])
def test_the_curve_of_a_policy_is_what_a_manager_with_it_has(present, num_open):
    sizes = (0.5, 1, 4)
    with manager_with(present, miss_ratio_sampling=1) as manager:
        serve(manager, 2000, num_open)
        curves = {policy: manager.get_hit_rate_curve(0, sizes, policy) for policy in EvictionPolicy}
        assert curves[present].points[1].hit_rate == manager.get_statistics().prompts.hit_rate, "it is the present one"
    for policy, curve in curves.items():
        assert curve.policy is policy
        for point in curve.points:
            expected = measure(policy, point.size, num_open)
            # The present size is what there was on average while room was made: two blocks under what fits. In a cache of 240 blocks
            # that, and the turn at which LEARNED stops to trust recency, is 2.4 points at most here.
            assert abs(point.hit_rate - expected) < 0.03, f"{policy} at {point.size}: {point.hit_rate} and not {expected}"


def test_another_thread_can_play_it_through():
    with manager_with(EvictionPolicy.LRU, miss_ratio_sampling=1) as manager:
        serve(manager, 100, 0)
        sample = manager.get_reuse_sample()
        expected = manager.get_hit_rate_curve(0, [0.5, 2], EvictionPolicy.LEARNED)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(sample.estimate(EvictionPolicy.LEARNED, [0.5, 2])))
        thread.start()
        serve(manager, 100, 0)
        thread.join()
        assert found == [expected]


def test_forks_and_sequences_that_never_ran_ask_for_nothing():
    with manager_with(EvictionPolicy.LRU, miss_ratio_sampling=1) as manager:
        prompt = list(range(8))
        kv_cache = manager.create_kv_cache(input_tokens=prompt)
        assert kv_cache.resume() and kv_cache.resize(8)
        kv_cache.commit(prompt)
        child = kv_cache.fork()
        child.suspend()
        assert child.resume()
        child.close()
        kv_cache.close()
        manager.create_kv_cache(input_tokens=prompt).close()
        assert manager.get_hit_rate_curve().num_sampled_queries == 0
        again = manager.create_kv_cache(input_tokens=prompt)
        assert again.resume()
        again.close()
        # Two blocks, by both ways of counting.
        assert manager.get_hit_rate_curve().num_sampled_queries == 2
        assert manager.get_hit_rate_curve(0, [1], EvictionPolicy.ARC).num_sampled_queries == 2


def test_misuse():
    untyped: Any = "lru"
    with manager_of(miss_ratio_sampling=0) as manager:
        with pytest.raises(LogicError):
            manager.get_reuse_sample()
        with pytest.raises(LogicError):
            manager.get_hit_rate_curve(0, [1], EvictionPolicy.LRU)
    with manager_of(enable_stats=False) as manager:
        with pytest.raises(LogicError):
            manager.get_reuse_sample()
    with manager_of() as manager:
        for level in (-1, 1):
            with pytest.raises(ValueError):
                manager.get_reuse_sample(level)
        with pytest.raises(TypeError):
            manager.get_hit_rate_curve(0, [1], untyped)
        sample = manager.get_reuse_sample()
        with pytest.raises(TypeError):
            sample.estimate(untyped)
        for size in (0, -1, 1e6, float("nan")):
            with pytest.raises(ValueError):
                sample.estimate(EvictionPolicy.LRU, [size])
        # Before anything was served it is zero.
        assert [point.hit_rate for point in sample.estimate(EvictionPolicy.LFU).points] == [0.0] * 10
