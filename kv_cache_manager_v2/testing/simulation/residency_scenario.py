"""Scenarios in which many sequences have residency windows: with a layer group that reads all tokens, and a level below."""

from dataclasses import replace
from random import Random
from typing import Final

from ...config.cache_tier_config import HostCacheTierConfig
from ...config.layer_config import AttentionLayerConfig
from ...config.manager_config import KVCacheManagerConfig

_SHARE_OF_SCENARIOS: Final = 0.3
_REPLACED: Final = ("fork", "hint", "give_buffer", "change_stream", "misuse", "beams", "toggle_scratch", "lend")
_SHARE_OF_REPLACED: Final = 0.8


def has_residency(config: KVCacheManagerConfig, seed: int) -> bool:
    top = config.cache_tiers[0].quota
    if config.is_external or config.max_slot_padding is not None or any([tier.quota < top // 2 for tier in config.cache_tiers]):
        return False
    if not any([isinstance(layer, AttentionLayerConfig) for layer in config.layers]):
        return False
    return Random(61 * seed + 31).random() < _SHARE_OF_SCENARIOS


def leave_room_below(config: KVCacheManagerConfig) -> KVCacheManagerConfig:
    """The same with one layer at least that reads all tokens, without recurrent layers, and with a level below level 0."""
    layers = [layer for layer in config.layers if isinstance(layer, AttentionLayerConfig)]
    layers[0] = replace(layers[0], sliding_window_size=None, num_sink_tokens=None)
    tiers = list(config.cache_tiers)
    if len(tiers) == 1:
        tiers.append(HostCacheTierConfig(4 * tiers[0].quota))
    return replace(config, layers=layers, cache_tiers=tiers, swa_scratch_reuse=None, allow_seq_rebasing=True)


def blocks_of_prompts(seed: int) -> int:
    """The longest prompt, which is often longer than level 0."""
    return Random(71 * seed + 41).choice((6, 12, 24))


def draw_residency(kinds: list[str], seed: int) -> list[str]:
    """The same kinds of actions, some replaced by changes of windows and blocks that are required."""
    random = Random(67 * seed + 37)
    return ["residency" if kind in _REPLACED and random.random() < _SHARE_OF_REPLACED else kind for kind in kinds]
