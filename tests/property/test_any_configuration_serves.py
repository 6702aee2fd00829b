"""Every field of a configuration with every other: whatever is accepted serves, and evicts, without an error."""

import dataclasses
import random
from typing import Any

import pytest

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BatchDesc,
    BufferConfig,
    DiskCacheTierConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheDesc,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    RebalanceConfig,
    RetentionConfig,
    SnapshotPolicy,
    SsmLayerConfig,
    SwaScratchReuseConfig,
    TokenRangeRetention,
)
from kv_cache_manager_v2.config.learned_prior import NUM_PRIOR_WEIGHTS, encode_prior

SLOT = 64
POLICIES = list(EvictionPolicy)
LAYERS: dict[str, list[Any]] = {
    "plain": [AttentionLayerConfig(LayerId(0), [BufferConfig("key", SLOT)])],
    "windows": [
        AttentionLayerConfig(LayerId(0), [BufferConfig("key", SLOT)]),
        AttentionLayerConfig(LayerId(1), [BufferConfig("key", SLOT)], 9),
    ],
    "only windows": [
        AttentionLayerConfig(LayerId(0), [BufferConfig("key", SLOT)], 6),
        AttentionLayerConfig(LayerId(1), [BufferConfig("key", SLOT)], 9, 2),
    ],
    "two sizes": [
        AttentionLayerConfig(LayerId(0), [BufferConfig("key", SLOT)]),
        AttentionLayerConfig(LayerId(1), [BufferConfig("key", 2 * SLOT)], 9),
    ],
    "states": [AttentionLayerConfig(LayerId(0), [BufferConfig("key", SLOT)]), SsmLayerConfig(LayerId(1), [BufferConfig("ssm", 2 * SLOT)])],
}
"""Not drawn: layers whose pages have several buffers or are shared by several layers (the simulation has those)."""

FIELDS: dict[str, list[Any]] = {
    "max_util_for_resume": [0.5, 0.97, 1.0],
    "enable_partial_reuse": [True, False],
    "constraints": [(), [BatchDesc([KVCacheDesc(8, 0)] * 2)]],
    "typical_step": [None, BatchDesc([KVCacheDesc(20, 10)] * 3)],
    "swa_scratch_reuse": [None, SwaScratchReuseConfig(1)],
    "reuse_match_backoff": [0, 3],
    "reserve_null_slot": [False, True],
    "enable_stats": [True, False],
    "block_times_sampling": [0.01, 0.0, 1.0],
    "snapshot_policy": [SnapshotPolicy(), SnapshotPolicy(2, max_per_path=2, at_close=True), SnapshotPolicy(placement="learned")],
    "max_state_replay_tokens": [0, 4],
    "state_checkpoints": [0, 2],
    "rebalance": [RebalanceConfig(), RebalanceConfig(min_samples=1)],
    "max_pinned_share": [0.5, 0.01, 1.0],
    "min_offload_priority": [0, 20, 35, 40, 100],
    "write_policy": ["back", "through"],
    "max_sequence_length": [None, 100],
    "allow_seq_rebasing": [True, False],
    "max_slot_padding": [None, 0.5],
    "learned_prior": [None, None, encode_prior([(number % 9 - 4) / 8 for number in range(NUM_PRIOR_WEIGHTS)])],
}
DRAWN_APART = {"tokens_per_block", "cache_tiers", "layers", "initial_pool_ratio"}


def draw_config(choices: random.Random) -> KVCacheManagerConfig:
    layers = LAYERS[choices.choice(list(LAYERS))]
    quota = 24 * SLOT * sum(sum(buffer.size for buffer in layer.buffers) // SLOT for layer in layers)
    one_policy = choices.choice([None, *POLICIES])

    def policy() -> EvictionPolicy:
        return one_policy if one_policy is not None else choices.choice(POLICIES)

    tiers: list[Any] = [GpuCacheTierConfig(quota, policy(), max_quota=choices.choice([None, 2 * quota]))]
    for kind in choices.choice([(), ("host",), ("host",), ("disk",), ("host", "disk"), ("host", "host")]):
        learned = policy()
        floor = choices.choice([0.0, 0.5]) if learned is EvictionPolicy.LEARNED else 0.0
        if kind == "host":
            tiers.append(HostCacheTierConfig(quota, learned, min_reuse_probability=floor))
        else:
            tiers.append(DiskCacheTierConfig(quota, "/tmp", learned, min_reuse_probability=floor))
    drawn = {name: choices.choice(values) for name, values in FIELDS.items()}
    return KVCacheManagerConfig(choices.choice([1, 4, 4]), tiers, layers, **drawn)


def serve(manager: KVCacheManager, choices: random.Random, num_requests: int) -> None:
    """Prompts that share beginnings, up to three at a time, each with a few tokens more, of several priorities; a refused one is closed."""
    open_ones: list[KVCache] = []
    for _request in range(num_requests):
        prompt = [choices.randrange(5) * 1000 + place for place in range(choices.randrange(2, 40))]
        retention = RetentionConfig([TokenRangeRetention(0, None, choices.choice([10, 35, 60]))]) if choices.random() < 0.5 else None
        kv_cache = manager.create_kv_cache(input_tokens=prompt[:-1], retention=retention)
        open_ones.append(kv_cache)
        begin = kv_cache.num_committed_tokens
        if kv_cache.resume() and kv_cache.resize(len(prompt), begin):
            kv_cache.commit(prompt[kv_cache.num_committed_tokens :])
            for token in range(choices.randrange(4)):
                if not kv_cache.resize(kv_cache.capacity + 1, kv_cache.capacity):
                    break
                kv_cache.commit([token])
            if choices.random() < 0.5:
                kv_cache.suspend()
        else:
            kv_cache.close()
            open_ones.pop()
        while len(open_ones) > choices.randrange(1, 4):
            open_ones.pop(choices.randrange(len(open_ones))).close()
    for kv_cache in open_ones:
        kv_cache.close()


def test_all_fields_are_drawn() -> None:
    assert {field.name for field in dataclasses.fields(KVCacheManagerConfig)} == DRAWN_APART | set(FIELDS)


@pytest.mark.parametrize("part", range(10))
def test_what_is_accepted_serves(part: int) -> None:
    num_refused = 0
    for number in range(20):
        choices = random.Random(1000 * part + number)
        try:
            config = draw_config(choices)
            manager = KVCacheManager(config, device=HostDevice(granularity_bytes=4096))
        except ValueError:
            num_refused += 1
            continue
        with manager:
            serve(manager, choices, 60)
            manager.check_invariants()
            if number % 4 == 0:
                manager.adjust()
                serve(manager, choices, 20)
                manager.check_invariants()
    assert num_refused < 15
