"""Calls that are refused for want of slots decide, too: `adjust` goes by what was refused. So a journal has them, and runs again."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    OutOfPagesError,
    RebalanceConfig,
    SsmLayerConfig,
)
from kv_cache_manager_v2.testing.journal_rerun import rerun

Refused = Callable[[KVCacheManager, KVCache, KVCache], object]


def widen(manager: KVCacheManager, kv_cache: KVCache, other: KVCache) -> None:
    with pytest.raises(OutOfPagesError):
        kv_cache.beam_width = 30


def fork(manager: KVCacheManager, kv_cache: KVCache, other: KVCache) -> None:
    kept = []
    with pytest.raises(OutOfPagesError):
        for _ in range(30):
            kept.append(kv_cache.fork())
    for child in kept:
        child.close()


def resume(manager: KVCacheManager, kv_cache: KVCache, other: KVCache) -> None:
    kept = []
    while True:
        kept.append(manager.create_kv_cache())
        if not kept[-1].resume():
            break
    for one in kept:
        one.close()


def resize(manager: KVCacheManager, kv_cache: KVCache, other: KVCache) -> None:
    assert not kv_cache.resize(4000)


def set_capacity(manager: KVCacheManager, kv_cache: KVCache, other: KVCache) -> None:
    with pytest.raises(OutOfPagesError):
        kv_cache.capacity = 4000


def resize_batch(manager: KVCacheManager, kv_cache: KVCache, other: KVCache) -> None:
    assert manager.resize_batch([kv_cache, other], [4000, 4000]) == 0


@pytest.mark.parametrize("call", [widen, fork, resume, resize, set_capacity, resize_batch], ids=lambda call: call.__name__)
def test_what_was_refused_is_refused_again(call: Refused, tmp_path: Path) -> None:
    attention = AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64)])
    layers = (attention, SsmLayerConfig(LayerId(1), [BufferConfig("state", 2048)]))
    rebalance = RebalanceConfig(min_samples=1, cool_down_seconds=0)
    config = KVCacheManagerConfig(4, [GpuCacheTierConfig(1 << 16)], layers, initial_pool_ratio=[0.9, 0.1], rebalance=rebalance)
    path = tmp_path / "calls.journal"
    with KVCacheManager(config, device=HostDevice(), journal=str(path)) as manager:
        one, other = manager.create_kv_cache(), manager.create_kv_cache()
        for kv_cache in (one, other):
            assert kv_cache.resume() and kv_cache.resize(4)
        call(manager, one, other)
        manager.adjust()
        one.close()
        other.close()
    assert rerun(path, HostDevice(), check_invariants=True).num_calls > 5
