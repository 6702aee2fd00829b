"""`RoomLosses`: what prompts lost for want of room, and of how many tokens."""

from kv_cache_manager_v2 import GpuCacheTierConfig, HostDevice, KVCacheManager, RebalanceConfig
from kv_cache_manager_v2.reuse.room_losses import RoomLosses

from hybrid_models import STATE_BYTES, hybrid_config


def losses_of(manager: KVCacheManager) -> RoomLosses:
    losses = manager._levels._losses
    assert losses is not None
    return losses


def test_all_tokens_of_prompts_are_counted_and_halved() -> None:
    config = hybrid_config(cache_tiers=[GpuCacheTierConfig(400 * STATE_BYTES)], rebalance=RebalanceConfig(weighs_reuse=True))
    with KVCacheManager(config, device=HostDevice()) as manager:
        losses = losses_of(manager)
        assert losses.num_tokens == 0 and not any(losses.tokens)
        num_tokens = 0
        for length in (5, 1, 12, 0, 12):
            with manager.create_kv_cache(input_tokens=list(range(length))) as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(length)
                kv_cache.commit(list(range(kv_cache.num_committed_tokens, length)))
            num_tokens += length
            assert losses.num_tokens == num_tokens
        # There was room for all.
        assert not any(losses.tokens)
        losses.fade()
        assert losses.num_tokens == num_tokens // 2


def test_tokens_of_a_rewind_want_room_once_more() -> None:
    config = hybrid_config(cache_tiers=[GpuCacheTierConfig(400 * STATE_BYTES)], rebalance=RebalanceConfig(weighs_reuse=True))
    with KVCacheManager(config, device=HostDevice()) as manager, manager.create_kv_cache(input_tokens=list(range(12))) as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(12)
        kv_cache.commit(list(range(12)))
        kv_cache.rewind(9)
        assert losses_of(manager).num_tokens == 12 + 9
