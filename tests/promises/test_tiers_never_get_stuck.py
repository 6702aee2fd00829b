"""With several levels a refusal names the one that is short and changes nothing; releasing calls never fail."""

import pytest
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    PageMoveError,
)
from kv_cache_manager_v2.testing import SimulatedDevice


def test_full_lower_levels_refuse_and_say_which() -> None:
    """4 + 4 slots hold two suspended sequences of 4 pages; a new page would drive one out of level 0, and nothing can go."""
    with Bench(tiered_config(4, [("host", 4)]), HostDevice()) as bench:
        held = [bench.suspended(number, 4 * TOKENS_PER_BLOCK) for number in range(2)]
        third = bench.manager.create_kv_cache(id=2)
        assert third.resume()
        before = bench.manager.describe()
        assert not third.resize(1)
        assert bench.manager.describe() == before
        bench.manager.check_invariants()
        refusal = bench.manager.last_refusal
        assert refusal is not None
        assert (refusal.level, refusal.pool_group, refusal.asked, refusal.free) == (1, 0, 1, 0)
        assert "lower tier" in refusal.text
        third.close()
        for kv_cache in held:
            assert kv_cache.resume()
            bench.check(kv_cache)
            kv_cache.close()


def test_a_refused_resume_moves_nothing() -> None:
    """3 of 4 slots are locked; a sequence of 4 pages cannot be onboarded, whatever is below."""
    with Bench(tiered_config(4, [("host", 8)]), HostDevice()) as bench:
        suspended = bench.suspended(0, 4 * TOKENS_PER_BLOCK)
        active = bench.manager.create_kv_cache(id=1)
        assert active.resume() and bench.write(active, 3 * TOKENS_PER_BLOCK)
        before = bench.manager.describe()
        copied = bench.num_copied(1, 0), bench.num_copied(0, 1)
        assert not suspended.resume()
        assert bench.manager.describe() == before
        assert (bench.num_copied(1, 0), bench.num_copied(0, 1)) == copied
        refusal = bench.manager.last_refusal
        # 3 of its pages were driven down; for these there is the one slot that is free or holds its fourth.
        assert refusal is not None and (refusal.level, refusal.asked) == (0, 3)
        assert suspended.status is suspended.Status.SUSPENDED
        active.close()
        assert suspended.resume()
        bench.check(suspended)


def test_the_gate_looks_at_each_pool_group() -> None:
    """One pool group is used to 19/20 > 0.9, the other, with pages 16 times as large, to 2/20: a mean by bytes of 0.15."""
    size = 8 * TOKENS_PER_BLOCK
    layers = [
        AttentionLayerConfig(LayerId(0), [BufferConfig("key", size)]),
        AttentionLayerConfig(LayerId(1), [BufferConfig("key", 16 * size)], sliding_window_size=4),
    ]
    config = KVCacheManagerConfig(
        tokens_per_block=TOKENS_PER_BLOCK,
        cache_tiers=[GpuCacheTierConfig(20 * 17 * size), HostCacheTierConfig(20 * 17 * size)],
        layers=layers,
        max_util_for_resume=0.9,
        initial_pool_ratio=[1 / 17, 16 / 17],
    )
    with Bench(config, HostDevice()) as bench:
        full, windowed = sorted([0, 1], key=lambda group: bench.manager.get_storage_statistics()[group].slot_sizes[0])
        assert bench.counts(0, full)[0] == bench.counts(0, windowed)[0] == 20
        active = bench.manager.create_kv_cache(id=0)
        assert active.resume() and bench.write(active, 18 * TOKENS_PER_BLOCK, chunk=TOKENS_PER_BLOCK)
        waiting = bench.manager.create_kv_cache(id=1)
        assert waiting.resume(), "18 of 20 is not more than 0.9"
        waiting.suspend()
        assert bench.write(active, 1)
        # The token at 72 reads 69..72 in the windowed layer: blocks 17 and 18.
        used = [bench.counts(0, group)[0] - bench.counts(0, group)[1] for group in (full, windowed)]
        assert used == [19, 2]
        before = bench.manager.describe()
        assert not waiting.resume()
        assert bench.manager.describe() == before
        assert waiting.status is waiting.Status.SUSPENDED
        refusal = bench.manager.last_refusal
        assert refusal is not None and (refusal.level, refusal.pool_group) == (0, full)
        assert "max_util_for_resume" in refusal.text
        active.close()
        assert waiting.resume()


def test_suspend_and_close_need_neither_room_nor_copies() -> None:
    """All levels are full and the device refuses every copy."""
    device = SimulatedDevice(3)
    with Bench(tiered_config(8, [("host", 4), ("disk", 4)]), device) as bench:
        suspended = [bench.suspended(number, 4 * TOKENS_PER_BLOCK) for number in range(4)]
        # The last two are on level 0 as far as 8 slots go; any two fit there.
        assert suspended[2].resume() and suspended[3].resume()
        bench.check(suspended[2])
        for nth in range(1, 20):
            device.faults.fail("copy", nth, RuntimeError("no copies today"))
        suspended[2].suspend()
        suspended[3].suspend()
        with pytest.raises(PageMoveError, match=r"level 0 .*level|level .*level 0"):
            suspended[0].resume()
        assert suspended[0].status is suspended[0].Status.SUSPENDED
        bench.manager.check_invariants()
        device.faults.clear()
        for kv_cache in suspended:
            assert kv_cache.resume()
            bench.check(kv_cache)
            kv_cache.close()


def test_prefetch_brings_pages_nearer_or_changes_nothing() -> None:
    """4 + 4 + 8 slots: the oldest of three sequences of 4 pages ends up on the disk."""
    with Bench(tiered_config(4, [("host", 4), ("disk", 8)]), HostDevice()) as bench:
        first, second, third = [bench.suspended(number, 4 * TOKENS_PER_BLOCK) for number in range(3)]
        assert [bench.counts(level)[1] for level in range(3)] == [0, 0, 4]
        assert first.prefetch(2), "it is there"
        assert first.prefetch(1)
        # second's pages had to leave level 1 for it.
        assert (bench.num_copied(2, 1), bench.num_copied(1, 2)) == (4, 8)
        # Nothing is locked, so there are slots on level 0 as well; third is offloaded, level by level.
        assert first.prefetch()
        assert bench.num_copied(1, 0) == 4
        copied = bench.manager.get_statistics().transfers
        assert first.resume()
        assert bench.manager.get_statistics().transfers == copied, "everything was there"
        bench.check(first)
        before = bench.manager.describe()
        assert not third.prefetch(), "level 0 is locked by the first"
        assert bench.manager.describe() == before
        with pytest.raises(ValueError, match="3 cache levels"):
            third.prefetch(3)
        for kv_cache in (first, second, third):
            if kv_cache is not first:
                assert kv_cache.resume()
                bench.check(kv_cache)
            kv_cache.close()


@pytest.mark.parametrize("num_free_below", [0, 1, 2])
def test_a_prefetch_to_a_level_in_the_middle_is_refused_where_its_own_pages_block_the_way_down(num_free_below: int) -> None:
    """Levels of two slots, each full of a suspended sequence, the last one not: level 1's could only go by way of level 2's."""
    layer = AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64), BufferConfig("value", 64)])
    lower = HostCacheTierConfig(2 * 128)
    config = KVCacheManagerConfig(1, [GpuCacheTierConfig(2 * 128), lower, lower, lower], [layer], max_util_for_resume=1.0)
    with KVCacheManager(config, device=SimulatedDevice(1)) as manager:
        sequences = []
        for num_tokens in (2, 2, 2, 2 - num_free_below):
            kv_cache = manager.create_kv_cache()
            assert kv_cache.resume() and kv_cache.resize(num_tokens, num_tokens)
            kv_cache.suspend()
            sequences.append(kv_cache)
        # The first is on the last level with a fourth of two pages, half there with one of one, else on level 2.
        before = manager.describe()
        if not sequences[0].prefetch(1):
            assert manager.describe() == before
        manager.check_invariants()
        for kv_cache in sequences:
            assert kv_cache.resume()
            kv_cache.close()
