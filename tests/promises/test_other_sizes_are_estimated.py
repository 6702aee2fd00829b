"""The hit rate of another cache size is estimated, and a manager of that size then has it; None where it cannot be known."""

import random
from typing import Any

import pytest
from hybrid_models import Rig
from kv_cache_manager_v2 import EvictionPolicy, LogicError, MissCause
from small_models import config_of, manager_of, run_prompt


def serve(manager, seed, num_requests):
    """Prompts of a few popular texts with a turn of their own behind them, one after the other."""
    rng = random.Random(seed)
    for number in range(num_requests):
        family = int(40 * rng.random() ** 2)
        prompt = [family * 1000 + token for token in range(16)] + [number * 7 % 50] * 4
        kv_cache = manager.create_kv_cache(input_tokens=prompt)
        assert kv_cache.resume() and kv_cache.resize(len(prompt))
        kv_cache.commit(prompt[kv_cache.num_committed_tokens :])
        kv_cache.close()


def test_the_curve_is_what_other_sizes_then_bring():
    seed = 5
    print("seed", seed)
    with manager_of(num_slots=60, miss_ratio_sampling=1) as manager:
        serve(manager, seed, 600)
        curve = {point.size: point.hit_rate for point in manager.get_hit_rate_curve(0, (0.5, 1, 2, 4)).points}
        assert curve[1] == manager.get_statistics().prompts.hit_rate
        # The books are always full of droppable blocks here: the estimate's present size is all slots, or nearly.
        assert 55 <= manager.get_hit_rate_curve().cached_blocks <= 60
    for size, expected in curve.items():
        assert expected is not None
        with manager_of(num_slots=int(60 * size)) as manager:
            serve(manager, seed, 600)
            assert abs(manager.get_statistics().prompts.hit_rate - expected) < 0.02, f"at {size}"


@pytest.mark.parametrize("policy", [None, EvictionPolicy.LRU])
def test_of_a_windowed_model_only_the_present_size_is_known(policy):
    """Blocks do not say which windows another size would have lost."""
    with manager_of(windows=(None, 8), num_slots=10, miss_ratio_sampling=1) as manager:
        run_prompt(manager, list(range(16))).close()
        run_prompt(manager, [100 + token for token in range(8)]).close()
        curve = manager.get_hit_rate_curve(0, (0.5, 1, 2), policy)
        assert [point.hit_rate for point in curve.points] == [None, 0.0, None], "no window was lost so far, but others would be"
        assert curve.incomplete_share == 0.0
        # 8 tokens are cached, and their window is not: the first block's page went as the second prompt needed its slot.
        run_prompt(manager, list(range(8))).close()
        assert manager.get_statistics().prompts.missed_tokens[MissCause.WINDOW_BROKEN] == 8
        run_prompt(manager, list(range(8))).close()
        curve = manager.get_hit_rate_curve(0, (0.5, 1, 2), policy)
        # Of 16 + 8 + 8 + 8 tokens, the last 8 were found.
        assert [point.hit_rate for point in curve.points] == [None, 8 / 40, None]
        assert curve.incomplete_share == 8 / 40


def test_of_a_windowed_model_no_other_policy_is_known():
    with manager_of(windows=(None, 8), num_slots=10, miss_ratio_sampling=1) as manager:
        run_prompt(manager, list(range(16))).close()
        points = manager.get_reuse_sample().estimate(EvictionPolicy.LFU, [0.5, 1, 2]).points
        assert [point.hit_rate for point in points] == [None, None, None]


def test_of_a_recurrent_model_only_the_present_size_is_known():
    with Rig(miss_ratio_sampling=1) as rig:
        rig.prefill(list(range(16))).close()
        rates = {point.size: point.hit_rate for point in rig.manager.get_hit_rate_curve().points}
        assert rates.pop(1.0) == rig.manager.get_statistics().prompts.hit_rate
        assert set(rates.values()) == {None}


def test_before_anything_was_served_it_is_zero():
    with manager_of() as manager:
        assert [point.hit_rate for point in manager.get_hit_rate_curve().points] == [0.0] * 10
        assert manager.get_hit_rate_curve().num_sampled_queries == 0


def test_dummies_are_left_out():
    with manager_of(miss_ratio_sampling=1) as manager:
        for counts in (True, False, False):
            kv_cache = manager.create_kv_cache(input_tokens=list(range(8)), count_in_statistics=counts)
            assert kv_cache.resume() and kv_cache.resize(8)
            kv_cache.commit(list(range(8))[kv_cache.num_committed_tokens :])
            kv_cache.close()
        assert manager.get_hit_rate_curve().num_sampled_queries == 0


def test_misuse():
    with manager_of(miss_ratio_sampling=0) as manager:
        with pytest.raises(LogicError):
            manager.get_hit_rate_curve()
    with manager_of(enable_stats=False) as manager:
        with pytest.raises(LogicError):
            manager.get_hit_rate_curve()
    with manager_of() as manager:
        for level in (-1, 1):
            with pytest.raises(ValueError):
                manager.get_hit_rate_curve(level)
        for size in (0, -1, 1e6, float("nan")):
            with pytest.raises(ValueError):
                manager.get_hit_rate_curve(0, [size])
    for sampling in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError):
            config_of(miss_ratio_sampling=sampling)
    untyped: Any = "1"
    with pytest.raises(TypeError):
        config_of(miss_ratio_sampling=untyped)
