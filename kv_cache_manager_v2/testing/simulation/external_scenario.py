"""Worlds in which the engine owns the memory: nothing is copied, or the engine executes lists of copies."""

from dataclasses import replace
from random import Random
from typing import Final

from ...base.ids import CacheTier
from ...config.cache_tier_config import ExternalCacheTierConfig, HostCacheTierConfig
from ...config.layer_config import AttentionLayerConfig
from ...config.manager_config import KVCacheManagerConfig
from ...manager.capacity import plan_capacity

_SHARE_OF_SCENARIOS: Final = 0.15
_COPYING: Final = ("fork", "lend", "settle", "beams", "resize_level")
"""Kinds of actions that begin with a call which is refused where nothing is copied; where lists are, all but the first."""
_SHARE_OF_LISTING: Final = 0.5
_SHARE_OF_MISSED: Final = 0.5


def make_external(config: KVCacheManagerConfig, seed: int) -> KVCacheManagerConfig:
    """The attention layers of the configuration in as many slots of an engine's; drawn apart, so that all others stay as they were."""
    layers = [layer for layer in config.layers if isinstance(layer, AttentionLayerConfig)]
    if len(layers) == 0 or Random(167 * seed + 61).random() >= _SHARE_OF_SCENARIOS:
        return config
    top = config.cache_tiers[0]
    random = Random(173 * seed + 67)
    if random.random() < _SHARE_OF_LISTING:
        lower = [tier if isinstance(tier, HostCacheTierConfig) else HostCacheTierConfig(tier.quota) for tier in config.cache_tiers[1:]]
        config = replace(config, layers=layers, cache_tiers=[top, *lower], typical_step=None, initial_pool_ratio=None)
        levels = [[group.num_slots for group in level.pool_groups] for level in plan_capacity(config).levels]
        external = [ExternalCacheTierConfig(levels[0], top.eviction_policy, random.choice((1, 2)))]
        for tier, counts in zip(config.cache_tiers[1:], levels[1:]):
            external.append(ExternalCacheTierConfig(counts, tier.eviction_policy, tier=CacheTier.HOST_MEM))
        return replace(config, cache_tiers=external)
    config = replace(
        config, layers=layers, cache_tiers=[top], enable_partial_reuse=False, allow_seq_rebasing=False, write_policy="back",
         typical_step=None, initial_pool_ratio=None,
    )  # fmt: skip
    counts = [group.num_slots for group in plan_capacity(config).levels[0].pool_groups]
    return replace(config, cache_tiers=[ExternalCacheTierConfig(counts, top.eviction_policy)])


def draw_external(kinds: list[str], config: KVCacheManagerConfig, seed: int) -> list[str]:
    """The same kinds of actions; calls that are refused instead of what begins with one, and lists that are lost instead of some clears."""
    refused = _COPYING if config.takes_no_copies else _COPYING[1:]
    kinds = ["copying" if kind in refused else kind for kind in kinds]
    if config.takes_no_copies:
        return kinds
    random = Random(179 * seed + 71)
    return ["miss_list" if kind == "clear" and random.random() < _SHARE_OF_MISSED else kind for kind in kinds]
