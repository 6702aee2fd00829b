"""Configurations check themselves: what is refused, what is kept, and that they cannot be changed afterwards.

What is of a wrong type: `tests/promises/test_wrong_arguments_are_named.py`.
"""

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from kv_cache_manager_v2.base.ids import CacheTier, LayerId
from kv_cache_manager_v2.config.batch_desc import BatchDesc, KVCacheDesc
from kv_cache_manager_v2.config.cache_tier_config import DiskCacheTierConfig, GpuCacheTierConfig, HostCacheTierConfig
from kv_cache_manager_v2.config.layer_config import AttentionLayerConfig, BufferConfig, SsmLayerConfig
from kv_cache_manager_v2.config.manager_config import KVCacheManagerConfig
from kv_cache_manager_v2.config.scratch_reuse_config import SwaScratchReuseConfig

GPU = GpuCacheTierConfig(1 << 20)
BUFFERS = [BufferConfig("key", 64), BufferConfig("value", 64)]
LAYER = AttentionLayerConfig(LayerId(0), BUFFERS)
STATE = [BufferConfig("state", 48)]


def config(**changes: Any) -> KVCacheManagerConfig:
    values: dict[str, Any] = {"tokens_per_block": 8, "cache_tiers": [GPU], "layers": [LAYER]}
    return KVCacheManagerConfig(**(values | changes))


def everything() -> KVCacheManagerConfig:
    return config(
        cache_tiers=[GPU, HostCacheTierConfig(1 << 21), DiskCacheTierConfig(1 << 22, "/somewhere")],
        layers=[AttentionLayerConfig(LayerId(3), BUFFERS, 16, 4), LAYER, SsmLayerConfig(LayerId(3), STATE)],
        constraints=[BatchDesc([KVCacheDesc(64, 8)], 8)],
        typical_step=BatchDesc([KVCacheDesc(64, 63)]),
        initial_pool_ratio=[1, 0.5],
        swa_scratch_reuse=SwaScratchReuseConfig(2),
    )


def test_defaults_are_the_documented_ones() -> None:
    plain = config()
    assert plain.max_util_for_resume == 0.97
    assert plain.enable_partial_reuse and plain.enable_stats
    assert not plain.reserve_null_slot and not plain.enable_swa_scratch_reuse
    assert plain.reuse_match_backoff == 0
    assert plain.constraints == () and plain.typical_step is None and plain.initial_pool_ratio is None
    assert everything().enable_swa_scratch_reuse


def test_tiers_know_their_kind() -> None:
    assert [tier.tier for tier in everything().cache_tiers] == [CacheTier.GPU_MEM, CacheTier.HOST_MEM, CacheTier.DISK]


def test_lists_become_tuples_that_later_changes_do_not_reach() -> None:
    layers, tiers, buffers = [LAYER], [GPU], list(BUFFERS)
    layer = AttentionLayerConfig(LayerId(1), buffers)
    made = config(layers=layers, cache_tiers=tiers)
    layers.append(layer)
    tiers.clear()
    buffers.clear()
    assert made.layers == (LAYER,) and made.cache_tiers == (GPU,) and layer.buffers == tuple(BUFFERS)


def test_frozen() -> None:
    made: Any = config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.tokens_per_block = 16
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.cache_tiers[0].quota = 1


def test_copies_and_pickles_are_equal() -> None:
    made = everything()
    assert copy.copy(made) == made
    assert copy.deepcopy(made) == made
    assert pickle.loads(pickle.dumps(made)) == made
    assert dataclasses.replace(made, tokens_per_block=16) != made
    assert hash(copy.deepcopy(made)) == hash(made)


def test_window_size_is_the_other_name() -> None:
    assert AttentionLayerConfig(LayerId(0), BUFFERS, 128).window_size == 128
    assert LAYER.window_size is None


def test_a_layer_may_have_attention_and_state_under_one_id() -> None:
    layers = [LAYER, SsmLayerConfig(LayerId(0), STATE)]
    assert len(config(layers=layers).layers) == 2


def test_expansion_counts_kernel_blocks() -> None:
    assert BufferConfig("key", 64, 2).expansion(8) == 4
    assert BufferConfig("key", 64).expansion(8) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: BufferConfig("", 64),
        lambda: BufferConfig("key", 0),
        lambda: BufferConfig("key", -1),
        lambda: BufferConfig("key", 64, 0),
        lambda: BufferConfig("key", 2**62),
        lambda: AttentionLayerConfig(LayerId(0), []),
        lambda: AttentionLayerConfig(LayerId(0), [BufferConfig("key", 1), BufferConfig("key", 2)]),
        lambda: AttentionLayerConfig(LayerId(0), BUFFERS, 0),
        lambda: AttentionLayerConfig(LayerId(0), BUFFERS, 8, -1),
        lambda: AttentionLayerConfig(LayerId(0), BUFFERS, None, 4),
        lambda: SsmLayerConfig(LayerId(0), [BufferConfig("state", 64, 2)]),
        lambda: SsmLayerConfig(LayerId(0), []),
        lambda: GpuCacheTierConfig(0),
        lambda: HostCacheTierConfig(-5),
        lambda: DiskCacheTierConfig(1, ""),
        lambda: KVCacheDesc(4, 5),
        lambda: KVCacheDesc(4, -1),
        lambda: BatchDesc([]),
        lambda: BatchDesc([KVCacheDesc(4, 0)], -1),
        lambda: BatchDesc([KVCacheDesc(4, 0), KVCacheDesc(6, 0)], 7),
        lambda: SwaScratchReuseConfig(-1),
        lambda: config(tokens_per_block=0),
        lambda: config(cache_tiers=[]),
        lambda: config(cache_tiers=[HostCacheTierConfig(1)]),
        lambda: config(cache_tiers=[GPU, GPU]),
        lambda: config(cache_tiers=[GPU, *[HostCacheTierConfig(1)] * 32]),
        lambda: config(cache_tiers=[GPU, DiskCacheTierConfig(1, "/x"), HostCacheTierConfig(1)]),
        lambda: config(layers=[]),
        lambda: config(layers=[LAYER, LAYER]),
        lambda: config(layers=[SsmLayerConfig(LayerId(0), STATE), SsmLayerConfig(LayerId(0), STATE)]),
        lambda: config(layers=[LAYER, SsmLayerConfig(LayerId(0), [BufferConfig("key", 1)])]),
        lambda: config(layers=[AttentionLayerConfig(LayerId(0), [BufferConfig("key", 1, 3)])]),
        lambda: config(layers=[AttentionLayerConfig(LayerId(0), [BufferConfig("key", 1, 16)])]),
        lambda: config(max_util_for_resume=0.0),
        lambda: config(max_util_for_resume=1.01),
        lambda: config(max_util_for_resume=float("nan")),
        lambda: config(initial_pool_ratio=[]),
        lambda: config(max_sequence_length=0),
        lambda: config(initial_pool_ratio=[0.0]),
        lambda: config(initial_pool_ratio=[1.0, -1.0]),
        lambda: config(initial_pool_ratio=[float("inf")]),
        lambda: config(reuse_match_backoff=-1),
    ],
)
def test_bad_values_are_value_errors(make: Any) -> None:
    with pytest.raises(ValueError):
        make()


@pytest.mark.parametrize(("size", "shown"), [(-17, "-17"), (0, "0")])
def test_errors_show_the_number(size: int, shown: str) -> None:
    with pytest.raises(ValueError, match=shown):
        BufferConfig("key", size)
