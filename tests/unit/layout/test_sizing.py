"""Slots of steps and of quotas, worked out by hand."""

import pytest

from kv_cache_manager_v2.config.batch_desc import BatchDesc, KVCacheDesc
from kv_cache_manager_v2.config.scratch_reuse_config import SwaScratchReuseConfig
from kv_cache_manager_v2.layout.sizing import plan_slot_counts
from kv_cache_manager_v2.layout.step_slots import slots_of_sequence

from .models import config_of, key_value, layout_of

SCRATCH = SwaScratchReuseConfig()


def test_prefill_of_1024_tokens_with_and_without_scratch() -> None:
    layers = [key_value(layer_id, 64, 128) for layer_id in range(32)]
    plain = config_of(layers)
    assert slots_of_sequence(layout_of(plain), plain, KVCacheDesc(1024, 0)) == (32,)
    # 28 of the 32 blocks are scratch, and one slot holds 32 of them.
    reusing = config_of(layers, swa_scratch_reuse=SCRATCH)
    assert slots_of_sequence(layout_of(reusing), reusing, KVCacheDesc(1024, 0)) == (5,)
    # On a colder level only pages count.
    assert slots_of_sequence(layout_of(reusing), reusing, KVCacheDesc(1024, 0), level=1) == (4,)


def test_a_quota_that_is_too_small_names_the_constraint_that_takes_most() -> None:
    # Sequences of 1, 10 and 10 blocks of 16 bytes; the windowed group of 32 bytes has 1, 2 and 2 of them, and 3 at its widest.
    constraints = [BatchDesc([KVCacheDesc(32, 0)]), BatchDesc([KVCacheDesc(320, 319)], 64), BatchDesc([KVCacheDesc(320, 319)])]
    config = config_of([key_value(0, 8), key_value(1, 16, 64)], constraints=constraints)
    with pytest.raises(ValueError) as raised:
        plan_slot_counts(layout_of(config), config, 255, 0)
    assert str(raised.value) == (
        "the quota of level 0 is 255 bytes, but at least 256 are needed: 10 slots of 16 bytes in pool group 0, 3 slots of 32 bytes in pool "
        "group 1, so that all constraints fit; constraints[1] (1 sequences of up to 320 tokens, 64 of them a system prompt) takes 224 "
        "bytes; raise the quota"
    )
    config = config_of([key_value(0, 50)])
    with pytest.raises(ValueError) as raised:
        plan_slot_counts(layout_of(config), config, 99, 1)
    assert str(raised.value) == (
        "the quota of level 1 is 99 bytes, but at least 100 are needed: 1 slot of 100 bytes, one slot for each layer group; raise the quota"
    )
