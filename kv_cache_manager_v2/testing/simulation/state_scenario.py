"""Recurrent layers for a scenario, drawn with their own random numbers, so that scenarios without them stay as they were."""

from dataclasses import replace
from random import Random
from typing import Final

from ...base.ids import LayerId
from ...config.batch_desc import BatchDesc, KVCacheDesc
from ...config.cache_tier_config import ExternalCacheTierConfig
from ...config.layer_config import BufferConfig, LayerConfig, SsmLayerConfig
from ...config.manager_config import KVCacheManagerConfig
from ...config.snapshot_policy import SnapshotPolicy

_SHARE: Final = 0.35
"""The share of scenarios with recurrent layers."""


def add_state(config: KVCacheManagerConfig, seed: int) -> KVCacheManagerConfig:
    """This configuration, or one with recurrent layers beside or instead of the attention."""
    random = Random(3 * seed + 2)
    if random.random() >= _SHARE:
        return config
    num_layers = random.choice((1, 1, 2, 3))
    attention_ids = [layer.layer_id for layer in config.layers]
    # Some layers have both, the others follow.
    first_id = 0 if random.random() < 0.3 else len(attention_ids)
    num_bytes = random.choice((8, 24, 40, 100))
    states: list[LayerConfig] = []
    for index in range(num_layers):
        buffers = [BufferConfig("conv", num_bytes), BufferConfig("ssm", 2 * num_bytes)][: random.choice((1, 2))]
        states.append(SsmLayerConfig(LayerId(first_id + index), buffers))
    layers = list(config.layers)
    if random.random() < 0.1 and config.swa_scratch_reuse is None:
        layers = []
    layers = states + layers if random.random() < 0.3 else layers + states
    num_checkpoints = random.choice((0, 0, 0, 1, 3))
    num_states = random.choice((3, 6, 12)) * (1 + num_checkpoints)
    room = num_states * num_layers * 3 * num_bytes
    tiers = [replace(tier, quota=tier.quota + room) for tier in config.cache_tiers if not isinstance(tier, ExternalCacheTierConfig)]
    return replace(
        config,
        cache_tiers=tiers,
        layers=layers,
        typical_step=BatchDesc([KVCacheDesc(2 * config.tokens_per_block, 0)]),
        state_checkpoints=num_checkpoints,
        max_state_replay_tokens=random.choice((0, 0, 2, 3 * config.tokens_per_block)),
        snapshot_policy=SnapshotPolicy(
            every_num_blocks=random.choice((None, None, 1, 2)),
            at_prompt_end=random.random() < 0.8,
            at_branches=random.random() < 0.8,
            at_close=random.random() < 0.5,
            max_per_path=random.choice((None, None, 2, 3)),
            at_commits=random.random() < 0.7,
            placement="learned" if random.random() < 0.4 else "fixed",
        ),
    )
