"""Small models whose slots can be worked out by hand."""

from collections.abc import Sequence
from typing import Any

from kv_cache_manager_v2.base.ids import LayerId
from kv_cache_manager_v2.config.cache_tier_config import GpuCacheTierConfig
from kv_cache_manager_v2.config.layer_config import AttentionLayerConfig, BufferConfig, LayerConfig, SsmLayerConfig
from kv_cache_manager_v2.config.manager_config import KVCacheManagerConfig
from kv_cache_manager_v2.layout.registry import LifeCycleRegistry
from kv_cache_manager_v2.layout.slot_layout import SlotLayout, compute_slot_layout


def attention(
    layer_id: int, sizes: dict[str, int], window: int | None = None, sinks: int | None = None, override: int | None = None
) -> AttentionLayerConfig:
    buffers = [BufferConfig(role, size, override) for role, size in sizes.items()]
    return AttentionLayerConfig(LayerId(layer_id), buffers, window, sinks)


def key_value(layer_id: int, size: int, window: int | None = None, sinks: int | None = None) -> AttentionLayerConfig:
    return attention(layer_id, {"key": size, "value": size}, window, sinks)


def state(layer_id: int, sizes: dict[str, int]) -> SsmLayerConfig:
    return SsmLayerConfig(LayerId(layer_id), [BufferConfig(role, size) for role, size in sizes.items()])


def config_of(layers: Sequence[LayerConfig], tokens_per_block: int = 32, **changes: Any) -> KVCacheManagerConfig:
    return KVCacheManagerConfig(tokens_per_block, [GpuCacheTierConfig(1 << 20)], layers, **changes)


def layout_of(config: KVCacheManagerConfig) -> SlotLayout:
    return compute_slot_layout(config, LifeCycleRegistry(config))
