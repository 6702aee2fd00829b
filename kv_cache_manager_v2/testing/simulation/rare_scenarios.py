"""Scenarios that favour rare states, each drawn with its own random numbers, so that all others stay as they were.

*Crowded*: hardly anything is published, so that pages are private and must stay, and the level below the GPU is small: sequences that
are onboarded swap places with others. *Brimful*: prompts as long as the only level has slots for, which leave earlier ones inside
the last block: a sequence finds no slot for its own copy of that block, and takes it out of the tree. *Restless*: a device that
fails, and sequences that are suspended and resumed all the time, from a disk. *Fragmented*: a page has a part in several pools, so
that a device can fail between two of them. *Lopsided*: some kinds of actions never happen, and others all the time, so that states
build up that one action of another kind would end. *Chunked*: one or two long prompts in chunks of many blocks, over scratch slots, in
a level that is hardly larger than a chunk, so that one chunk needs the slots of the last.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Final

from ...base.ids import LayerId
from ...config.cache_tier_config import GpuCacheTierConfig, HostCacheTierConfig
from ...config.layer_config import AttentionLayerConfig, BufferConfig, LayerConfig
from ...config.manager_config import KVCacheManagerConfig
from ...config.scratch_reuse_config import SwaScratchReuseConfig

_SHARE_OF_CROWDED: Final = 0.12
_SHARE_OF_BRIMFUL: Final = 0.1
_SHARE_OF_RESTLESS: Final = 0.7
_SHARE_OF_FRAGMENTED: Final = 0.8
_SHARE_OF_CHUNKED: Final = 0.05
_SHARE_OF_LOPSIDED: Final = 0.25
_CROWDED: Final = {
    "commit": 0.05,
    "hint": 0.2,
    "stop_committing": 0.2,
    "close": 0.4,
    "clear": 0.2,
    "create": 1.5,
    "resume": 2.0,
    "suspend": 3.0,
}
BRIMFUL: Final = {
    "create": 2.0,
    "step": 1.5,
    "step_batch": 0.3,
    "commit": 2.0,
    "suspend": 0.3,
    "stop_committing": 2.0,
    "close": 3.0,
    "clear": 0.3,
}
CHUNKED: Final = {
    "create": 2.0,
    "step": 4.0,
    "step_batch": 0.5,
    "commit": 0.5,
    "suspend": 0.2,
    "stop_committing": 0.2,
    "fork": 0.1,
    "close": 0.3,
    "resize_level": 0.2,
}
CHUNKED_STEP_BLOCKS: Final = 12
CHUNKED_PROMPT_BLOCKS: Final = 30
_RESTLESS: Final = {"close": 0.5, "clear": 0.3, "create": 1.5, "resume": 2.0, "suspend": 4.0, "prefetch": 2.0, "resize_level": 3.0}


def choose_bends(seed: int, can_fail: bool) -> Mapping[str, float]:
    """Factors of the weights of actions; empty for most scenarios."""
    share = Random(11 * seed + 5).random()
    if can_fail:
        return _RESTLESS if share < _SHARE_OF_RESTLESS else {}
    if share < _SHARE_OF_CROWDED:
        return _CROWDED
    if Random(23 * seed + 9).random() < _SHARE_OF_BRIMFUL:
        return BRIMFUL
    return CHUNKED if Random(47 * seed + 3).random() < _SHARE_OF_CHUNKED else {}


def draw_lopsided(seed: int, weights: Mapping[str, float]) -> Mapping[str, float]:
    """``weights`` of actions, made extreme for some seeds. Actions that all others depend on keep a minimum."""
    random = Random(103 * seed + 17)
    if random.random() >= _SHARE_OF_LOPSIDED:
        return weights
    bent: dict[str, float] = {}
    for kind, weight in weights.items():
        factor = random.choice((0.0, 0.1, 0.3, 1.0, 1.0, 3.0, 8.0))
        bent[kind] = weight * (max(factor, 0.3) if kind in ("create", "step") else factor)
    return bent


def crowd(config: KVCacheManagerConfig) -> KVCacheManagerConfig:
    """One level below the GPU, half as large."""
    top = config.cache_tiers[0]
    return replace(config, cache_tiers=[top, HostCacheTierConfig(top.quota // 2)])


def brimful_blocks(seed: int) -> int:
    """The blocks of the only level, and of the longest prompt."""
    return Random(23 * seed + 10).choice((3, 4, 5))


def fill_to_the_brim(config: KVCacheManagerConfig, num_blocks: int) -> KVCacheManagerConfig:
    """One level with slots for so many blocks, all of which may be used; no block is out of window, and a match may end inside one."""
    layers: list[LayerConfig] = []
    num_bytes = 0
    for layer in config.layers:
        if isinstance(layer, AttentionLayerConfig):
            layers.append(replace(layer, sliding_window_size=None, num_sink_tokens=None))
            num_bytes += num_blocks * sum([buffer.size * buffer.expansion(config.tokens_per_block) for buffer in layer.buffers])
    return replace(
        config,
        cache_tiers=[GpuCacheTierConfig(num_bytes)],
        layers=layers,
        max_util_for_resume=1.0,
        enable_partial_reuse=True,
        swa_scratch_reuse=None,
    )


def chunk_prompts(config: KVCacheManagerConfig, seed: int) -> KVCacheManagerConfig:
    """One layer with a window, one level with slots for its pages of one chunk and few more, and scratch slots."""
    random = Random(47 * seed + 4)
    size = config.tokens_per_block
    buffers = [BufferConfig("key", size), BufferConfig("value", size)]
    layer = AttentionLayerConfig(LayerId(0), buffers, max(2, random.choice((size, 2 * size, 3 * size + 1))))
    num_slots = CHUNKED_STEP_BLOCKS + int(random.random() * 8)
    return replace(
        config,
        cache_tiers=[GpuCacheTierConfig(num_slots * 2 * size)],
        layers=[layer],
        max_util_for_resume=1.0,
        swa_scratch_reuse=SwaScratchReuseConfig(random.choice((0, 0, 1))),
    )


def is_fragmented(seed: int) -> bool:
    return Random(13 * seed + 6).random() < _SHARE_OF_FRAGMENTED


def fragment(config: KVCacheManagerConfig) -> KVCacheManagerConfig:
    """Each attention layer has one more buffer, of another size."""
    layers: list[LayerConfig] = []
    for layer in config.layers:
        if isinstance(layer, AttentionLayerConfig) and all([buffer.role != "scale" for buffer in layer.buffers]):
            scale = BufferConfig("scale", config.tokens_per_block)
            layers.append(replace(layer, buffers=[*layer.buffers, scale]))
        else:
            layers.append(layer)
    return replace(config, layers=layers)
