"""Where all levels are LEARNED the page of least value is dropped, wherever it lies; one worth less than the next level is not written.

Blocks of 4 tokens, one page each. A level's floor, `min_reuse_probability`, keeps unlikely pages off it.
"""

from random import Random
from typing import Any

import pytest
from random_calls import drive
from small_models import attention_layers, run_prompt

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    DiskCacheTierConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    ModelId,
    RetentionConfig,
    TokenRangeRetention,
)
from kv_cache_manager_v2.config.config_codec import decode_config, encode_config
from kv_cache_manager_v2.replay.rerun import rerun
from kv_cache_manager_v2.stats.drop_reason import DropReason

BLOCK = 4
SLOT_BYTES = 64
LEARNED = EvictionPolicy.LEARNED
LRU = EvictionPolicy.LRU


def config_with(
    policies: list[EvictionPolicy], sizes: list[int], floor: float = 0.0, windows: tuple[int | None, ...] = (None,)
) -> KVCacheManagerConfig:
    tiers: list[Any] = [GpuCacheTierConfig(sizes[0] * SLOT_BYTES, policies[0])]
    for policy, size in zip(policies[1:], sizes[1:], strict=True):
        tiers.append(HostCacheTierConfig(size * SLOT_BYTES, policy, min_reuse_probability=floor))
    return KVCacheManagerConfig(
        tokens_per_block=BLOCK, cache_tiers=tiers, layers=attention_layers(windows, BLOCK), max_util_for_resume=1.0
    )


def manager_with(policies: list[EvictionPolicy], sizes: list[int], floor: float = 0.0) -> KVCacheManager:
    return KVCacheManager(config_with(policies, sizes, floor), device=HostDevice())


def prompt(number: int, num_blocks: int) -> list[int]:
    return list(range(1000 * number, 1000 * number + num_blocks * BLOCK))


def serve(manager: KVCacheManager, tokens: list[int], priority: int = 35) -> None:
    retention = RetentionConfig([TokenRangeRetention(0, None, priority)], priority)
    run_prompt(manager, tokens, retention=retention).close()


def written(manager: KVCacheManager, source: int = 0) -> int:
    return sum([one.blocks for one in manager.get_statistics().transfers if one.source_level == source < one.target_level])


def fill_with_low_priority_above(manager: KVCacheManager) -> int:
    """8 blocks of priority 35 on the host, 4 of priority 10 on the GPU; how many were written."""
    for number in (1, 2):
        serve(manager, prompt(number, 4))
    # The second time they lie on the GPU, and push the first ones out.
    serve(manager, prompt(3, 4), 10)
    assert [manager.get_storage_statistics(level)[0].free for level in (0, 1)] == [0, 0]
    return written(manager)


@pytest.mark.parametrize("num_levels", [2, 3])
def test_a_page_of_lower_priority_is_dropped_where_it_lies(num_levels: int) -> None:
    with manager_with([LEARNED] * num_levels, [4, 8, 1][:num_levels] if num_levels == 2 else [4, 4, 4]) as manager:
        before = fill_with_low_priority_above(manager)
        serve(manager, prompt(4, 4))
        assert written(manager) == before
        assert manager.probe_reuse(input_tokens=prompt(3, 4)) == 0
        for number in (1, 2, 4):
            assert manager.probe_reuse(input_tokens=prompt(number, 4)) == 4 * BLOCK
        manager.check_invariants()


@pytest.mark.parametrize("policies", [[LEARNED, LRU], [LRU, LEARNED], [LRU, LRU]])
def test_levels_of_other_policies_are_compared_by_priority_alone(policies: list[EvictionPolicy]) -> None:
    with manager_with(policies, [4, 8]) as manager:
        before = fill_with_low_priority_above(manager)
        serve(manager, prompt(4, 4))
        assert written(manager) == before
        assert manager.probe_reuse(input_tokens=prompt(3, 4)) == 0
        # Those of prompt 4 have the priority of those on the host, which drops four of its own for them.
        serve(manager, prompt(5, 4))
        assert written(manager) == before + 4
        assert sum([manager.probe_reuse(input_tokens=prompt(number, 4)) for number in (1, 2)]) == 4 * BLOCK
        for number in (4, 5):
            assert manager.probe_reuse(input_tokens=prompt(number, 4)) == 4 * BLOCK


def serve_sessions_among_others(policy: EvictionPolicy) -> tuple[int, int]:
    """30 prompts that come back among many that come once, on 24 and 60 slots: blocks found in the second half, and blocks written."""
    random = Random(5)
    sessions = [prompt(number, 3) for number in range(1, 31)]
    found = 0
    next_number = 100
    with manager_with([policy, policy], [24, 60]) as manager:
        for turn in range(500):
            if turn == 250:
                before = written(manager)
            if random.random() < 0.3:
                tokens = random.choice(sessions)
                if turn >= 250:
                    found += manager.probe_reuse(input_tokens=tokens) // BLOCK
            else:
                tokens = prompt(next_number, 3)
                next_number += 1
            run_prompt(manager, tokens).close()
        manager.check_invariants()
        return found, written(manager) - before


def test_what_comes_once_is_not_written_down_for_long() -> None:
    found_by_recency, written_by_recency = serve_sessions_among_others(LRU)
    found_by_value, written_by_value = serve_sessions_among_others(LEARNED)
    assert found_by_value > found_by_recency
    # Seven of ten prompts come once: nearly all that recency writes.
    assert written_by_value < written_by_recency * 0.6


def suspend_and_serve(manager: KVCacheManager, random: Random, num_turns: int) -> None:
    """Growing sessions, of which some are suspended, pushed down in part, and closed."""
    texts = [prompt(number, 2) for number in range(1, 7)]
    suspended: list[Any] = []
    next_number = 100
    for _ in range(num_turns):
        kind = random.random()
        if kind < 0.15 and len(suspended) > 0:
            suspended.pop(random.randrange(len(suspended))).close()
            continue
        number = random.randrange(len(texts))
        tokens = texts[number] + prompt(next_number, random.randint(0, 2))
        next_number += 1
        if kind < 0.6 and len(tokens) < 8 * BLOCK:
            texts[number] = tokens
        kv_cache = run_prompt(manager, tokens)
        if kind > 0.8 and len(suspended) < 2:
            kv_cache.suspend()
            suspended.append(kv_cache)
        else:
            kv_cache.close()
    for kv_cache in suspended:
        kv_cache.close()


@pytest.mark.parametrize("num_levels", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_of_one_path_the_leaf_goes_first_over_all_levels(num_levels: int, seed: int) -> None:
    """A page that others on other levels need is not dropped before them, so none is ever dropped as unreachable."""
    with manager_with([LEARNED] * num_levels, [14, 20, 20][:num_levels]) as manager:
        suspend_and_serve(manager, Random(seed), 150)
        manager.check_invariants()
        reasons = {drop.reason for drop in manager.get_statistics().drops if drop.blocks > 0}
        assert reasons == {DropReason.CAPACITY}


def test_held_pages_never_vanish() -> None:
    """Suspended sequences fill both levels: their pages stay whatever comes, and a prompt without room is refused."""
    with manager_with([LEARNED, LEARNED], [4, 8]) as manager:
        sequences = []
        for number in (1, 2, 3):
            kv_cache = run_prompt(manager, prompt(number, 4), retention=RetentionConfig([TokenRangeRetention(0, None, 0)], 0))
            kv_cache.suspend()
            sequences.append(kv_cache)
        with manager.create_kv_cache(input_tokens=prompt(4, 4)) as other:
            assert other.resume() and not other.resize(4 * BLOCK)
        for kv_cache in sequences:
            assert kv_cache.resume() and kv_cache.num_committed_tokens == 4 * BLOCK
            kv_cache.close()


@pytest.mark.parametrize("windows", [(None,), (None, 6), (5,)])
@pytest.mark.parametrize("num_levels", [2, 3])
def test_equal_calls_decide_alike(windows: tuple[int | None, ...], num_levels: int, tmp_path: Any) -> None:
    path = tmp_path / "calls.journal"
    config = config_with([LEARNED] * num_levels, [12, 18, 10][:num_levels], 0.3, windows)
    with KVCacheManager(config, device=HostDevice(), journal=path) as manager:
        drive(manager, 3, 300)
        manager.check_invariants()
        manager.clear_reusable_blocks()
        digest = manager.state_digest()
    assert rerun(path, HostDevice()).digest == digest


# -- the floor --------------------------------------------------------------------------------------------------------


def test_nothing_is_written_below_a_floor_that_nothing_reaches() -> None:
    """Before anything was learned each page may come back, but for sure none does."""
    for floor, expected in ((0.0, 8), (1.0, 0)):
        with manager_with([LEARNED, LEARNED], [4, 20], floor) as manager:
            for number in (1, 2, 3):
                serve(manager, prompt(number, 4))
            assert written(manager) == expected
            # Held pages are offloaded all the same.
            kv_cache = run_prompt(manager, prompt(4, 4))
            kv_cache.suspend()
            serve(manager, prompt(5, 4))
            assert written(manager) == expected + (4 if floor == 1.0 else 8)
            assert kv_cache.resume()
            kv_cache.close()
            manager.check_invariants()


def test_a_floor_keeps_off_what_has_not_come_back() -> None:
    """Prompts that never come back are written at first, and not any more once that has been learned."""
    counts: dict[float, int] = {}
    for floor in (0.0, 0.5):
        with manager_with([LEARNED, LRU], [8, 30], floor) as manager:
            for number in range(1, 180):
                serve(manager, prompt(number, 4))
                if number == 140:
                    before = written(manager)
            counts[floor] = written(manager) - before
    assert counts == {0.0: 4 * 39, 0.5: 0}


def test_the_floor_is_validated() -> None:
    with pytest.raises(ValueError, match=r"HostCacheTierConfig.min_reuse_probability is 1.5; it must be from 0 to 1"):
        HostCacheTierConfig(1 << 20, min_reuse_probability=1.5)
    with pytest.raises(ValueError, match=r"DiskCacheTierConfig.min_reuse_probability is -1; it must be from 0 to 1"):
        DiskCacheTierConfig(1 << 20, "/tmp", min_reuse_probability=-1)
    wrong: Any = "0.5"
    with pytest.raises(TypeError, match="HostCacheTierConfig.min_reuse_probability"):
        HostCacheTierConfig(1 << 20, min_reuse_probability=wrong)
    with pytest.raises(ValueError, match=r"min_reuse_probability is 0.1 and durable is True"):
        DiskCacheTierConfig(1 << 20, "/tmp", durable=True, model_id=ModelId("m", "1", "fp8"), min_reuse_probability=0.1)
    with pytest.raises(ValueError, match=r"cache_tiers\[1\].min_reuse_probability is 0.1, and cache_tiers\[0\] has EvictionPolicy.LRU"):
        config_with([LRU, LEARNED], [4, 8], 0.1)


def test_the_floor_travels_with_the_configuration() -> None:
    config = config_with([LEARNED, LEARNED], [4, 8], 0.25)
    assert decode_config(encode_config(config)) == config


def test_a_page_that_goes_with_others_makes_more_room_than_asked_for() -> None:
    """One held page is left on level 0 and has to go down; what level 1 drops for it takes the windowed page behind it along."""
    layers = [
        AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64)]),
        AttentionLayerConfig(LayerId(1), [BufferConfig("key", 64)], sliding_window_size=3),
    ]
    tiers: list[Any] = [GpuCacheTierConfig(12 * 64), HostCacheTierConfig(2 * 64), HostCacheTierConfig(2 * 64)]
    with KVCacheManager(KVCacheManagerConfig(1, tiers, layers, max_util_for_resume=1.0), device=HostDevice()) as manager:

        def serve(kv_cache: KVCache, tokens: list[int]) -> None:
            assert kv_cache.is_active or kv_cache.resume()
            assert kv_cache.resize(max(kv_cache.capacity, kv_cache.num_committed_tokens + len(tokens)))
            kv_cache.commit(tokens)
            manager.check_invariants()

        first = manager.create_kv_cache(None, [1, 0, 0])
        serve(first, [0])
        first.close()
        second = manager.create_kv_cache(None, [1, 2, 2, 2, 0, 1, 1, 1])
        serve(second, [1, 2, 0])
        third = manager.create_kv_cache(None, [0])
        serve(third, [0])
        fourth = manager.create_kv_cache(None, [0, 1, 0, 0, 1, 2, 1, 0])
        third.suspend()
        serve(second, [0, 1, 2])
        serve(fourth, [0])
        for kv_cache in (second, third, fourth):
            kv_cache.close()
