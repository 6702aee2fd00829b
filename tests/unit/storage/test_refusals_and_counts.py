"""Numbers in what storage says: the slots below a full level, and the pages that a smaller tier has moved."""

from tiered_models import TOKENS_PER_BLOCK, tiered_config

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    DataRole,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
)

SLOT_BYTES = 2 * 8 * TOKENS_PER_BLOCK


def test_a_refusal_names_the_slots_of_all_lower_levels() -> None:
    config = tiered_config(4, [("host", 3), ("host", 2)])
    with KVCacheManager(config, device=HostDevice()) as manager:
        kept = []
        for start in (0, 100, 200, 300):
            kv_cache = manager.create_kv_cache()
            tokens = list(range(start, start + 3 * TOKENS_PER_BLOCK))
            if not kv_cache.resume() or not kv_cache.resize(len(tokens)):
                kept.append(kv_cache)
                break
            kv_cache.commit(tokens)
            kv_cache.suspend()
            kept.append(kv_cache)
        refusal = manager.last_refusal
        assert refusal is not None, "12 pages, and 4 + 3 + 2 slots"
        assert "of 5 slots below it" in refusal.text
        for kv_cache in kept:
            kv_cache.close()


def test_a_refusal_counts_the_slots_of_its_own_pool_group() -> None:
    """Two pool groups, of pages of 32 and 64 bytes; the windowed one, which keeps one page of a sequence, is full below first."""
    layers = [
        AttentionLayerConfig(LayerId(0), [BufferConfig(DataRole("key"), 8)]),
        AttentionLayerConfig(LayerId(1), [BufferConfig(DataRole("key"), 16)], sliding_window_size=TOKENS_PER_BLOCK),
    ]
    tiers = [GpuCacheTierConfig(1024), HostCacheTierConfig(768)]
    config = KVCacheManagerConfig(TOKENS_PER_BLOCK, tiers, layers, initial_pool_ratio=[0.7, 0.3])
    with KVCacheManager(config, device=HostDevice()) as manager:
        below = manager.get_storage_statistics(1)[1].total
        assert below != manager.get_storage_statistics(1)[0].total
        kept = []
        while manager.last_refusal is None and len(kept) < 100:
            kv_cache = manager.create_kv_cache()
            kept.append(kv_cache)
            if kv_cache.resume() and kv_cache.resize(2 * TOKENS_PER_BLOCK):
                first = 1000 * len(kept)
                kv_cache.commit(list(range(first, first + 2 * TOKENS_PER_BLOCK)))
                kv_cache.suspend()
        refusal = manager.last_refusal
        assert refusal is not None and refusal.pool_group == 1, refusal
        assert f"of {below} slots below it" in refusal.text
        for kv_cache in kept:
            kv_cache.close()


def test_pages_that_a_smaller_tier_moves_are_counted() -> None:
    with KVCacheManager(tiered_config(8, []), device=HostDevice()) as manager:
        first = manager.create_kv_cache()
        second = manager.create_kv_cache()
        for kv_cache, start in ((first, 0), (second, 100)):
            assert kv_cache.resume() and kv_cache.resize(4 * TOKENS_PER_BLOCK)
            kv_cache.commit(list(range(start, start + 4 * TOKENS_PER_BLOCK)))
        first.close()
        # The first one's pages are droppable; the second one holds slots 4 to 7, all beyond the new end.
        second.suspend()
        assert manager.resize(0, 4 * SLOT_BYTES)
        moved = [transfer.blocks for transfer in manager.get_statistics().transfers if transfer.kind == "copied"]
        assert moved == [4]
        second.close()
