"""Configurations of a few layers and a few hundred bytes, for tests that count slots and know which page goes first: by recency."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
)
from kv_cache_manager_v2.device.host_device import HostDevice

BYTES_PER_TOKEN = 8


def attention_layers(
    windows: Sequence[int | None], tokens_per_block: int, sinks: Sequence[int | None] | None = None
) -> list[AttentionLayerConfig]:
    """One layer per entry of ``windows``, each with a key and a value buffer of `BYTES_PER_TOKEN` bytes per token."""
    layers = []
    for index, window in enumerate(windows):
        size = BYTES_PER_TOKEN * tokens_per_block
        layers.append(
            AttentionLayerConfig(
                layer_id=LayerId(index),
                buffers=[BufferConfig("key", size), BufferConfig("value", size)],
                sliding_window_size=window,
                num_sink_tokens=None if sinks is None else sinks[index],
            )
        )
    return layers


def config_of(
    windows: Sequence[int | None] = (None,),
    tokens_per_block: int = 4,
    num_slots: int = 64,
    sinks: Sequence[int | None] | None = None,
    **settings: Any,
) -> KVCacheManagerConfig:
    """A configuration with ``num_slots`` slots in its one pool group: all layer groups have one layer, so they share it.

    Give each distinct window once.
    """
    slot_bytes = 2 * BYTES_PER_TOKEN * tokens_per_block
    return KVCacheManagerConfig(
        tokens_per_block=tokens_per_block,
        cache_tiers=[GpuCacheTierConfig(num_slots * slot_bytes, EvictionPolicy.LRU)],
        layers=attention_layers(windows, tokens_per_block, sinks),
        **settings,
    )


def new_manager(*of_config: Any, **settings: Any) -> KVCacheManager:
    """A manager on a host device of its own, with the arguments of `config_of`."""
    return KVCacheManager(config_of(*of_config, **settings), device=HostDevice())


@contextmanager
def manager_of(*of_config: Any, **settings: Any) -> Iterator[KVCacheManager]:
    """A new manager, the same. At the end its open sequences are closed, and all is checked."""
    with new_manager(*of_config, **settings) as manager:
        yield manager
        close_open_ones(manager)


def close_open_ones(manager: KVCacheManager) -> None:
    open_ones = manager.open_kv_caches
    for kv_cache in open_ones:
        kv_cache.close()
    if open_ones:
        manager.check_invariants()


def free_slots(manager: KVCacheManager, pool_group: int = 0) -> int:
    return manager.get_storage_statistics()[pool_group].free


def used_slots(manager: KVCacheManager, pool_group: int = 0) -> int:
    """Slots that are not free: locked, held and droppable pages."""
    statistics = manager.get_storage_statistics()[pool_group]
    return statistics.total - statistics.free


def run_prompt(manager: KVCacheManager, tokens: Sequence[Any], **arguments: Any) -> Any:
    """A sequence with the whole prompt committed, still active."""
    kv_cache = manager.create_kv_cache(input_tokens=tokens, **arguments)
    assert kv_cache.resume()
    assert kv_cache.resize(len(tokens))
    kv_cache.commit(tokens[kv_cache.num_committed_tokens :])
    return kv_cache
