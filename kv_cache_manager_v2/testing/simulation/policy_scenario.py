"""Eviction policies, the write policy, a backoff and a constraint for a scenario, drawn with their own random numbers."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final

from ...config.batch_desc import BatchDesc, KVCacheDesc
from ...config.cache_tier_config import CacheTierConfig, DiskCacheTierConfig, ExternalCacheTierConfig, HostCacheTierConfig
from ...config.eviction_policy import EvictionPolicy
from ...config.layer_config import SsmLayerConfig
from ...config.manager_config import KVCacheManagerConfig
from ..reference_state import make_rules

_SHARE_OF_LRU: Final = 0.4
_SHARE_WITH_BACKOFF: Final = 0.15
_SHARE_WITH_CONSTRAINT: Final = 0.15
_SHARE_OF_ONE_ORDER: Final = 0.4
_SHARE_WITH_FLOOR: Final = 0.2
_SHARE_WITH_LEAST_PRIORITY: Final = 0.25


def draw_policies(config: KVCacheManagerConfig, seed: int) -> KVCacheManagerConfig:
    """This configuration with an eviction policy for each level, a write policy, and sometimes a backoff or a constraint."""
    random = Random(5 * seed + 3)
    tiers: list[CacheTierConfig] = []
    for tier in config.cache_tiers:
        policy = EvictionPolicy.LRU if random.random() < _SHARE_OF_LRU else random.choice(list(EvictionPolicy))
        tiers.append(replace(tier, eviction_policy=policy))
    if len(tiers) > 1:
        tiers = _draw_one_order(tiers, seed)
    config = replace(config, cache_tiers=tiers, write_policy=random.choice(("back", "through")))
    if random.random() < _SHARE_WITH_BACKOFF:
        config = replace(config, reuse_match_backoff=random.choice((1, 2, 5)))
    if random.random() < _SHARE_WITH_CONSTRAINT:
        config = _add_constraint(config, random.choice((2, 4, 6)))
    least = Random(13 * seed + 9)
    if least.random() < _SHARE_WITH_LEAST_PRIORITY:
        config = replace(config, min_offload_priority=least.choice((1, 30, 35, 36, 80)))
    return config


def _draw_one_order(tiers: list[CacheTierConfig], seed: int) -> list[CacheTierConfig]:
    """Often LEARNED on all levels, so that one order of value holds over them, and sometimes a floor below level 0."""
    random = Random(11 * seed + 7)
    if random.random() >= _SHARE_OF_ONE_ORDER:
        return tiers
    learned: list[CacheTierConfig] = []
    for tier in tiers:
        tier = replace(tier, eviction_policy=EvictionPolicy.LEARNED)
        if isinstance(tier, (HostCacheTierConfig, DiskCacheTierConfig)) and random.random() < _SHARE_WITH_FLOOR:
            tier = replace(tier, min_reuse_probability=random.choice((0.2, 0.9, 1.0)))
        learned.append(tier)
    return learned


def _add_constraint(config: KVCacheManagerConfig, num_sequences: int) -> KVCacheManagerConfig:
    """Add a constraint: sequences of one block that run together, and slots for them on every level."""
    one_block = KVCacheDesc(config.tokens_per_block, 0)
    num_bytes = 0
    for layer in config.layers:
        num_states = 1 + config.state_checkpoints if isinstance(layer, SsmLayerConfig) else 1
        num_bytes += num_states * sum([buffer.size * buffer.expansion(config.tokens_per_block) for buffer in layer.buffers])
    owned = [tier for tier in config.cache_tiers if not isinstance(tier, ExternalCacheTierConfig)]
    tiers = [replace(tier, quota=tier.quota + num_sequences * num_bytes) for tier in owned]
    return replace(config, cache_tiers=tiers, constraints=[BatchDesc([one_block] * num_sequences)])


def count_constraint_slots(config: KVCacheManagerConfig, pool_group_of: Sequence[int], num_pool_groups: int) -> list[int]:
    """By pool group, the slots of the scenario's constraint: of each sequence a block or a state in each layer group."""
    counts = [0] * num_pool_groups
    states = [rule.is_state for rule in make_rules(config)]
    for batch in config.constraints:
        for group, pool_group in enumerate(pool_group_of):
            counts[pool_group] += len(batch.kv_caches) * (1 + config.state_checkpoints if states[group] else 1)
    return counts
