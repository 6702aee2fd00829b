"""Scenarios of 260 to 5,000 slots per pool group, whose levels change size all the time: for code that depends on a size.

One seed of `LARGE_EVERY` is such a world, drawn with its own random numbers, so all other seeds keep their history. A block has a
token or a few, so that hundreds of blocks are filled in one step; prompts are long, and half of them are new.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from ...base.ids import LayerId
from ...config.cache_tier_config import CacheTierConfig, DiskCacheTierConfig, GpuCacheTierConfig, HostCacheTierConfig
from ...config.eviction_policy import EvictionPolicy
from ...config.layer_config import AttentionLayerConfig, BufferConfig
from ...config.manager_config import KVCacheManagerConfig
from ...config.rebalance_config import RebalanceConfig

LARGE_EVERY: Final = 25
_REMAINDER: Final = 12
LEAST_SLOTS: Final = 260
MOST_SLOTS: Final = 4000
_POLICIES: Final = (
    EvictionPolicy.LEARNED, EvictionPolicy.LEARNED, EvictionPolicy.LEARNED, EvictionPolicy.LRU,
)  # fmt: skip
"""Slots of level 0, in turn."""
LARGE_FACTORS: Final = {
    "create": 4.0,
    "resume": 2.0,
    "step": 1.0,
    "step_batch": 0.5,
    "rewind": 0.5,
    "resize_level": 12.0,
    "hint": 0.5,
    "close": 6.0,
    "misuse": 0.2,
    "clear": 0.04,
}
"""Factors of the weights of actions."""
LARGE_STEPS_PER_CHECK: Final = 5
"""Actions per check of the invariants and events: evaluated from scratch, these take as long as all else."""
SHARE_OF_REPEATED: Final = 0.5
"""The share of prompts that begin like an earlier one."""
QUOTA_FACTORS: Final[Sequence[float]] = (0.06, 0.2, 0.4, 0.5, 0.7, 1.0, 1.0, 1.5)
SHARE_OF_ADJUSTED: Final = 0.35


def is_large(seed: int) -> bool:
    return seed % LARGE_EVERY == _REMAINDER


def draw_large_config(seed: int) -> KVCacheManagerConfig:
    """One or two pool groups, one to three levels, every policy."""
    random = Random(131 * seed + 29)
    tokens_per_block = random.choice((1, 1, 2, 4))
    num_slots = _draw_slots(random)
    windows = random.choice(([None], [None, 2], [None, 9], [None, 65], [40, 65], [None, 130, 9]))
    layers: list[AttentionLayerConfig] = []
    slot_bytes = [0, 0]
    for index, window in enumerate(windows):
        # Every second layer has larger buffers, so that it has a pool group of its own.
        size = tokens_per_block << (index % 2)
        layers.append(AttentionLayerConfig(LayerId(index), [BufferConfig("key", size), BufferConfig("value", size)], window))
        slot_bytes[index % 2] = 2 * size
    ratio = random.choice((None, [0.5, 0.5], [0.9, 0.1], [0.1, 0.9])) if len(windows) > 1 else None
    # With two pool groups, the one with smaller slots may get most of the bytes.
    quota_of_slots = sum(slot_bytes) if ratio is None else sum(slot_bytes) // 2
    top_policy = _POLICIES[seed // LARGE_EVERY % len(_POLICIES)]
    tiers: list[CacheTierConfig] = [GpuCacheTierConfig(num_slots * quota_of_slots, top_policy)]
    has_disk = False
    for _level in range(random.choice((0, 0, 1, 2))):
        quota = _draw_slots(random) * quota_of_slots
        has_disk = has_disk or random.random() < 0.4
        policy = random.choice(_POLICIES)
        tiers.append(DiskCacheTierConfig(quota, "/tmp", policy) if has_disk else HostCacheTierConfig(quota, policy))
    return KVCacheManagerConfig(
        tokens_per_block,
        tiers,
        layers,
        max_util_for_resume=random.choice((0.9, 1.0)),
        enable_partial_reuse=random.random() < 0.8,
        initial_pool_ratio=ratio,
        rebalance=RebalanceConfig(threshold=0.05, cool_down_seconds=0, min_samples=1, smoothing=random.choice((0.1, 0.5, 1.0))),
        write_policy=random.choice(("back", "through")),
    )


def _draw_slots(random: Random) -> int:
    """The number of slots: up to 1,020 as often as more."""
    factor: float = (MOST_SLOTS / LEAST_SLOTS) ** random.random()
    return int(LEAST_SLOTS * factor)


def draw_large_blocks(seed: int) -> int:
    """The blocks of the longest prompt."""
    return Random(137 * seed + 31).choice((100, 200, 400, 700))


def draw_large_fault_share(seed: int) -> float:
    """The share of faults, mostly 0: a manager that breaks early would leave a large world untested."""
    return Random(139 * seed + 37).choice((0.0, 0.0, 0.0, 0.02))
