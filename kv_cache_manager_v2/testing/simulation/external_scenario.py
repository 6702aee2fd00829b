"""Worlds in which the engine owns the memory, and the manager's device takes no copies."""

from dataclasses import replace
from random import Random
from typing import Final

from ...config.cache_tier_config import ExternalCacheTierConfig
from ...config.layer_config import AttentionLayerConfig
from ...config.manager_config import KVCacheManagerConfig
from ...manager.capacity import plan_capacity

_SHARE_OF_SCENARIOS: Final = 0.15
COPYING: Final = ("fork", "lend", "settle", "beams", "resize_level")
"""Kinds of actions that begin with a call which is refused there."""


def make_external(config: KVCacheManagerConfig, seed: int) -> KVCacheManagerConfig:
    """The attention layers of the configuration in as many slots of an engine's; drawn apart, so that all others stay as they were."""
    layers = [layer for layer in config.layers if isinstance(layer, AttentionLayerConfig)]
    if len(layers) == 0 or Random(167 * seed + 61).random() >= _SHARE_OF_SCENARIOS:
        return config
    top = config.cache_tiers[0]
    config = replace(
        config, layers=layers, cache_tiers=[top], enable_partial_reuse=False, allow_seq_rebasing=False, write_policy="back",
         typical_step=None, initial_pool_ratio=None,
    )  # fmt: skip
    counts = [group.num_slots for group in plan_capacity(config).levels[0].pool_groups]
    return replace(config, cache_tiers=[ExternalCacheTierConfig(counts, top.eviction_policy)])
