"""Thousands of calls on one manager: prompts of few different tokens, so that paths branch everywhere, with all tiers full all the time.

The simulation's histories are short and check each byte; here only the invariants are looked at, and that nothing is lost: at the end all
slots are free. Pages that go with others, windows in the middle of a path and pages on their way up meet here sooner or later.
"""

import random
from typing import Any

import pytest

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    DiskCacheTierConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    SsmLayerConfig,
    is_compiled,
)
from kv_cache_manager_v2.device.external_device import ExternalDevice

PAGE_BYTES = 64
NUM_CALLS = 6000 if is_compiled() else 400
LAYERS: dict[str, list[Any]] = {
    "full and window": [
        AttentionLayerConfig(LayerId(0), [BufferConfig("key", PAGE_BYTES)]),
        AttentionLayerConfig(LayerId(1), [BufferConfig("key", PAGE_BYTES)], 7),
    ],
    "full": [AttentionLayerConfig(LayerId(0), [BufferConfig("key", 2 * PAGE_BYTES)])],
    "windows": [
        AttentionLayerConfig(LayerId(0), [BufferConfig("key", PAGE_BYTES)], 5),
        AttentionLayerConfig(LayerId(1), [BufferConfig("key", PAGE_BYTES)], 11, 2),
    ],
    "full and smaller window": [
        AttentionLayerConfig(LayerId(0), [BufferConfig("key", 3 * PAGE_BYTES)]),
        AttentionLayerConfig(LayerId(1), [BufferConfig("key", PAGE_BYTES)], 9),
    ],
    "full and state": [
        AttentionLayerConfig(LayerId(0), [BufferConfig("key", PAGE_BYTES)]),
        SsmLayerConfig(LayerId(1), [BufferConfig("ssm", PAGE_BYTES)]),
    ],
}
TIERS = {"two": [40, 60], "three": [40, 20, 200], "small ones": [16, 8, 40], "four": [30, 6, 12, 100]}
POLICIES = {
    "learned": [EvictionPolicy.LEARNED], "lru": [EvictionPolicy.LRU],
    "mixed": [EvictionPolicy.LEARNED, EvictionPolicy.LRU],
}  # fmt: skip


def make_config(layers: str, tiers: str, policies: str, folder: str, **settings: Any) -> KVCacheManagerConfig:
    listed: list[Any] = []
    for level, num_slots in enumerate(TIERS[tiers]):
        num_bytes = 2 * PAGE_BYTES * num_slots * (2 if "smaller" in layers else 1)
        policy = POLICIES[policies][level % len(POLICIES[policies])]
        if level == 0:
            listed.append(GpuCacheTierConfig(num_bytes, policy))
        elif level == len(TIERS[tiers]) - 1 and tiers == "three":
            listed.append(DiskCacheTierConfig(num_bytes, folder, policy))
        else:
            listed.append(HostCacheTierConfig(num_bytes, policy))
    return KVCacheManagerConfig(4, listed, LAYERS[layers], max_util_for_resume=1.0, **settings)


def run_history(manager: KVCacheManager, seed: int, num_calls: int) -> None:
    choices = random.Random(seed)
    most_tokens = choices.choice([1, 2, 3])
    sequences: list[KVCache] = []

    def tokens(count: int) -> list[int]:
        return [choices.randint(0, most_tokens) for _ in range(count)]

    for number in range(num_calls):
        what = choices.random()
        if what < 0.4 and len(sequences) < 8:
            sequences.append(manager.create_kv_cache(None, tokens(choices.randint(1, 40))))
        elif sequences:
            kv_cache = choices.choice(sequences)
            if what < 0.8:
                if kv_cache.is_active or kv_cache.resume():
                    count = choices.randint(1, 10)
                    if kv_cache.resize(max(kv_cache.capacity, kv_cache.num_committed_tokens + count)):
                        kv_cache.commit(tokens(count))
            elif what < 0.9:
                if kv_cache.is_active:
                    kv_cache.suspend()
            else:
                kv_cache.close()
                sequences.remove(kv_cache)
        if number % 100 == 0:
            manager.check_invariants()
    for kv_cache in sequences:
        kv_cache.close()


@pytest.mark.parametrize("policies", POLICIES)
@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("write_policy", ["back", "through"])
def test_long_histories(layers: str, tiers: str, policies: str, write_policy: str, tmp_path: Any) -> None:
    config = make_config(layers, tiers, policies, str(tmp_path), write_policy=write_policy)
    with KVCacheManager(config, device=ExternalDevice()) as manager:
        run_history(manager, hash_of(layers, tiers, policies, write_policy), NUM_CALLS)
        manager.check_invariants()
        manager.clear_reusable_blocks()
        for level in range(len(config.cache_tiers)):
            for counts in manager.get_storage_statistics(level):
                assert counts.free == counts.total


def hash_of(*names: str) -> int:
    return sum([ord(letter) * (place + 1) for place, letter in enumerate("/".join(names))])
