"""Slots of steps and of quotas, worked out by hand."""

import pytest

from kv_cache_manager_v2.config.batch_desc import BatchDesc, KVCacheDesc
from kv_cache_manager_v2.config.scratch_reuse_config import SwaScratchReuseConfig
from kv_cache_manager_v2.layout.sizing import compute_min_slot_counts, plan_slot_counts
from kv_cache_manager_v2.layout.step_slots import slots_of_sequence

from .models import config_of, key_value, layout_of, state

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


def test_constraints_are_the_minimum() -> None:
    batch = BatchDesc([KVCacheDesc(320, 319)] * 3)
    constraints = [BatchDesc([KVCacheDesc(32, 0)]), batch]
    config = config_of([key_value(0, 8), key_value(1, 16, 64)], constraints=constraints)
    layout = layout_of(config)
    # 10 blocks of each sequence of 16 bytes; 2 of 32 bytes each. One window at its widest is 3 blocks, less than 6.
    assert compute_min_slot_counts(layout, config, 0) == (30, 6)
    assert plan_slot_counts(layout, config, 30 * 16 + 6 * 32, 0) == (30, 6)
    for level in (0, 1):
        with pytest.raises(ValueError, match="672"):
            plan_slot_counts(layout, config, 30 * 16 + 6 * 32 - 1, level)


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


def test_the_rest_follows_the_typical_step() -> None:
    # 10 blocks of 16 bytes beside 2 of 32 bytes: 224 bytes a step.
    typical = BatchDesc([KVCacheDesc(320, 319)])
    config = config_of([key_value(0, 8), key_value(1, 16, 64)], typical_step=typical)
    layout = layout_of(config)
    assert plan_slot_counts(layout, config, 100 * 224, 0) == (1000, 200)
    # 223 bytes: shares of 10 * 223/224 and 2 * 223/224 slots, whole ones 9 and 1, which leaves 47 bytes. The
    # larger remainder is the second's (0.991 against 0.955): 32 bytes; 15 are left, too few for anything.
    assert plan_slot_counts(layout, config, 223, 0) == (9, 2)


@pytest.mark.parametrize("ratio", [[3, 1], [0.75, 0.25], [2, 1], [0.5, 0.25], [1, 0.5]])
def test_the_rest_follows_the_ratio_of_bytes(ratio: list[float]) -> None:
    """100 slots of 16 bytes to 50 of 32 are as many bytes."""
    config = config_of([key_value(0, 8), key_value(1, 16, 64)], initial_pool_ratio=ratio)
    times = int(ratio[0] / ratio[1])
    assert plan_slot_counts(layout_of(config), config, (times + 1) * 1600, 0) == (100 * times, 50)


def test_without_a_hint_a_small_quota_follows_short_sequences() -> None:
    # 40 sequences of 100 blocks of 16 bytes, and 3 of the window of 32 bytes, fill it; 101 blocks do not fit.
    config = config_of([key_value(0, 8), key_value(1, 16, 64)])
    assert plan_slot_counts(layout_of(config), config, 40 * (100 * 16 + 3 * 32), 0) == (4000, 120)
    # 40 of 1024 tokens do not fit: 20 of these, 32 blocks each, would be (640, 60). But the longest sequence that can
    # prefill, of 20 * (32 * 16 + 3 * 32) - 67 * 32 bytes for 626 blocks, at most 512, comes first: 67 blocks of its windowed layers,
    # instead of 60; the rest is 12160 - 67 * 32 = 10016 bytes, 626 blocks.
    assert plan_slot_counts(layout_of(config), config, 20 * (32 * 16 + 3 * 32), 0) == (626, 67)


def test_without_a_hint_states_have_room_for_the_snapshots_of_each_prefix() -> None:
    # A sequence of 1024 tokens: 32 blocks of 64 bytes, the live state, and a snapshot for every 1024 tokens.
    config = config_of([key_value(0, 32), state(1, {"s": 1024})])
    quota = 39 * (32 * 64 + 2 * 1024)
    assert plan_slot_counts(layout_of(config), config, quota, 0) == (39 * 32, 39 * 2)


def test_a_known_longest_sequence_takes_the_place_of_the_quota() -> None:
    layers = [key_value(0, 8), key_value(1, 16, 64)]
    quota = 100 * (512 * 16 + 3 * 32)
    # Sequences of at most 1,024 tokens: 32 blocks of 16 bytes, and up to 1 + ceil(63 / 32) = 3 of 32 bytes: 608 bytes, and
    # 828,800 are 1,363 of them and 96 over. The first one shares those: 96 * 512 / 608 = 80.8 bytes and 15.2, 5 slots of 16 and none of
    # 32; 16 bytes are left, 1 slot of 16.
    config = config_of(layers, max_sequence_length=1024)
    assert plan_slot_counts(layout_of(config), config, quota, 0) == (1363 * 32 + 6, 1363 * 3)
    # The same for a cold level. Its windowed share is 30 slots; one such sequence, which prefills at once, has 32 there: 1,024 bytes,
    # and the other 5,056 are 316 slots.
    assert plan_slot_counts(layout_of(config), config, 10 * 608, 1) == (316, 32)
    # Sequences of up to 100,000 tokens bring 4,166 new ones each: 131 blocks of 16 bytes, and the same 3 of 32.
    config = config_of(layers, max_sequence_length=100_000)
    assert plan_slot_counts(layout_of(config), config, 100 * (131 * 16 + 3 * 32), 0) == (131 * 100, 3 * 100)
    # Sequences of at most 20 tokens: one block of each.
    config = config_of(layers, max_sequence_length=20)
    assert plan_slot_counts(layout_of(config), config, 10 * (16 + 32), 0) == (10, 10)
