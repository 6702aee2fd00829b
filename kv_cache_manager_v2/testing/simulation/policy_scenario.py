"""Eviction policies and the write policy for a scenario, drawn with a random of their own: all else stays as it was."""

from dataclasses import replace
from random import Random
from typing import Final

from ...config.cache_tier_config import CacheTierConfig
from ...config.eviction_policy import EvictionPolicy
from ...config.manager_config import KVCacheManagerConfig

_SHARE_OF_LRU: Final = 0.4


def draw_policies(config: KVCacheManagerConfig, seed: int) -> KVCacheManagerConfig:
    """The same configuration with an eviction policy for each level, and a write policy."""
    random = Random(5 * seed + 3)
    tiers: list[CacheTierConfig] = []
    for tier in config.cache_tiers:
        policy = EvictionPolicy.LRU if random.random() < _SHARE_OF_LRU else random.choice(list(EvictionPolicy))
        tiers.append(replace(tier, eviction_policy=policy))
    return replace(config, cache_tiers=tiers, write_policy=random.choice(("back", "through")))
