"""Random models: layers of every kind, equal and unequal buffers, windows, sinks, kernels with smaller blocks."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from kv_cache_manager_v2.base.ids import LayerId
from kv_cache_manager_v2.config.batch_desc import BatchDesc, KVCacheDesc
from kv_cache_manager_v2.config.cache_tier_config import GpuCacheTierConfig
from kv_cache_manager_v2.config.layer_config import AttentionLayerConfig, BufferConfig, LayerConfig, SsmLayerConfig
from kv_cache_manager_v2.config.manager_config import KVCacheManagerConfig
from kv_cache_manager_v2.config.scratch_reuse_config import SwaScratchReuseConfig
from kv_cache_manager_v2.layout.registry import LifeCycleRegistry
from kv_cache_manager_v2.layout.slot_layout import SlotLayout, compute_slot_layout

ROLES = ("key", "value", "key_scale", "value_scale", "index")


@st.composite
def layer_configs(draw: st.DrawFn, layer_id: int, tokens_per_block: int, kinds: str) -> LayerConfig:
    is_state = draw(st.sampled_from(kinds)) == "s"
    buffers: list[BufferConfig] = []
    for role in draw(st.lists(st.sampled_from(ROLES), min_size=1, max_size=4, unique=True)):
        # Few sizes, each twice the one before, so that sizes often meet, also after expansion.
        size = draw(st.sampled_from([8, 16, 32]))
        divisors = [number for number in range(1, tokens_per_block + 1) if tokens_per_block % number == 0]
        override = None if is_state else draw(st.sampled_from([None, None, *divisors]))
        buffers.append(BufferConfig(role, size, override))
    if is_state:
        return SsmLayerConfig(LayerId(layer_id), buffers)
    window = draw(st.sampled_from([None, 1, 5, 16]))
    sinks = None if window is None else draw(st.sampled_from([None, 0, 1, 9]))
    return AttentionLayerConfig(LayerId(layer_id), buffers, window, sinks, draw(st.sampled_from([0, 0, 0, 1])))


@st.composite
def configs(draw: st.DrawFn, kinds: str = "aaas") -> KVCacheManagerConfig:
    """``kinds``: how often a layer is attention ("a") or recurrent ("s")."""
    tokens_per_block = draw(st.sampled_from([1, 4, 6]))
    num_layers = draw(st.integers(1, 6))
    layers = [draw(layer_configs(layer_id, tokens_per_block, kinds)) for layer_id in range(num_layers)]
    rewind = draw(st.sampled_from([None, 0, 3]))
    padding = draw(st.sampled_from([None, 0.0, 0.25, 0.5]))
    if padding is not None:
        layers = _with_bytes_of_the_first(layers, draw(st.sampled_from([1, 1, 2])))
    values: dict[str, Any] = {"swa_scratch_reuse": None if rewind is None else SwaScratchReuseConfig(rewind)}
    try:
        return KVCacheManagerConfig(tokens_per_block, [GpuCacheTierConfig(1)], layers, max_slot_padding=padding, **values)
    except ValueError:
        return KVCacheManagerConfig(tokens_per_block, [GpuCacheTierConfig(1)], layers, **values)


def _with_bytes_of_the_first(layers: list[LayerConfig], factor: int) -> list[LayerConfig]:
    """Attention layers with the buffers of the first one, times ``factor`` where they have a window: equal slots may be had of them."""
    attention = [layer for layer in layers if isinstance(layer, AttentionLayerConfig)]
    if len(attention) == 0:
        return layers
    first = attention[0].buffers
    larger = [replace(buffer, size=buffer.size * factor) for buffer in first]
    changed: list[LayerConfig] = []
    for layer in layers:
        if isinstance(layer, AttentionLayerConfig):
            changed.append(replace(layer, buffers=first if layer.window_size is None else larger, part=0))
        else:
            changed.append(layer)
    return changed


@st.composite
def kv_caches(draw: st.DrawFn, max_capacity: int = 60) -> KVCacheDesc:
    capacity = draw(st.integers(0, max_capacity))
    return KVCacheDesc(capacity, draw(st.integers(0, capacity)))


@st.composite
def batches(draw: st.DrawFn) -> BatchDesc:
    members = draw(st.lists(kv_caches(), min_size=1, max_size=4))
    return BatchDesc(members, draw(st.integers(0, max(member.capacity for member in members))))


def layout_of(config: KVCacheManagerConfig) -> SlotLayout:
    return compute_slot_layout(config, LifeCycleRegistry(config))
