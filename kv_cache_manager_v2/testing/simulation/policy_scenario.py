"""Eviction policies, the write policy and the match backoff for a scenario, drawn with a random of their own: all else stays."""

from dataclasses import replace
from random import Random
from typing import Final

from ...config.cache_tier_config import CacheTierConfig
from ...config.eviction_policy import EvictionPolicy
from ...config.manager_config import KVCacheManagerConfig

_SHARE_OF_LRU: Final = 0.4
_SHARE_WITH_BACKOFF: Final = 0.15


def draw_policies(config: KVCacheManagerConfig, seed: int) -> KVCacheManagerConfig:
    """The same configuration with an eviction policy for each level, a write policy, and sometimes a backoff."""
    random = Random(5 * seed + 3)
    tiers: list[CacheTierConfig] = []
    for tier in config.cache_tiers:
        policy = EvictionPolicy.LRU if random.random() < _SHARE_OF_LRU else random.choice(list(EvictionPolicy))
        tiers.append(replace(tier, eviction_policy=policy))
    config = replace(config, cache_tiers=tiers, write_policy=random.choice(("back", "through")))
    if random.random() < _SHARE_WITH_BACKOFF:
        config = replace(config, reuse_match_backoff=random.choice((1, 2, 5)))
    return config
