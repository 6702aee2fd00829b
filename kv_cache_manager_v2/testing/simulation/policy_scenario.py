"""Eviction policies, the write policy, a backoff, a constraint and further settings for a scenario, drawn with their own random numbers."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final

from ...config.batch_desc import BatchDesc, KVCacheDesc
from ...config.cache_tier_config import (
    CacheTierConfig, DiskCacheTierConfig, ExternalCacheTierConfig, GpuCacheTierConfig, HostCacheTierConfig,
)  # fmt: skip
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
_SHARE_OF_UNCOUNTED: Final = 0.2
_SHARE_OF_RESERVED: Final = 0.3
_SHARE_WITH_TYPICAL_STEP: Final = 0.2


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


def draw_settings(config: KVCacheManagerConfig, seed: int) -> KVCacheManagerConfig:
    """This configuration with what any world may have: statistics or none, shares, addresses for levels that grow, a typical step."""
    random = Random(173 * seed + 67)
    size = config.tokens_per_block
    tiers: list[CacheTierConfig] = []
    for tier in config.cache_tiers:
        if isinstance(tier, (GpuCacheTierConfig, HostCacheTierConfig)) and random.random() < _SHARE_OF_RESERVED:
            tier = replace(tier, max_quota=int(tier.quota * random.choice((1.0, 1.2, 2.0))))
        tiers.append(tier)
    config = replace(
        config,
        cache_tiers=tiers,
        enable_stats=random.random() >= _SHARE_OF_UNCOUNTED,
        block_times_sampling=random.choice((0.0, 0.01, 1.0)),
        max_pinned_share=random.choice((0.01, 0.1, 0.5, 0.5, 1.0)),
        max_sequence_length=random.choice((None, None, 1, 8 * size)),
    )
    is_divided = config.typical_step is not None or config.initial_pool_ratio is not None or config.is_external
    if is_divided or random.random() >= _SHARE_WITH_TYPICAL_STEP:
        return config
    return replace(config, typical_step=BatchDesc([KVCacheDesc(4 * size, random.choice((0, 3 * size)))] * 2, random.choice((0, size))))


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
