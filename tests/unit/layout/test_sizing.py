"""Slots of steps and of quotas, worked out by hand."""

import pytest

from kv_cache_manager_v2.config.batch_desc import BatchDesc, KVCacheDesc
from kv_cache_manager_v2.config.cache_tier_config import GpuCacheTierConfig, HostCacheTierConfig
from kv_cache_manager_v2.config.manager_config import KVCacheManagerConfig
from kv_cache_manager_v2.config.scratch_reuse_config import SwaScratchReuseConfig
from kv_cache_manager_v2.layout.sizing import compute_min_slot_counts, compute_slots_bytes, plan_slot_counts
from kv_cache_manager_v2.layout.step_slots import slots_of_batch, slots_of_sequence

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


def test_each_group_counts_its_own_blocks() -> None:
    # Window 64 with 1 sink block at history 319: blocks 1 .. 7 are stale ((319 + 1 - 64) // 32 = 8), 0, 8, 9 are not.
    config = config_of([key_value(0, 8), key_value(1, 16, 64, 1), state(2, {"s": 999})])
    assert slots_of_sequence(layout_of(config), config, KVCacheDesc(320, 319)) == (10, 3, 1)


def test_a_shared_system_prompt_counts_once() -> None:
    config = config_of([key_value(0, 8)])
    layout = layout_of(config)
    # 100 tokens are in 4 blocks, of which 3 hold nothing but the system prompt of 96 (or 100) tokens.
    for system_prompt_length in (96, 100):
        batch = BatchDesc([KVCacheDesc(100, 99)] * 5, system_prompt_length)
        assert slots_of_batch(layout, config, batch) == (3 + 5,)
    assert slots_of_batch(layout, config, BatchDesc([KVCacheDesc(100, 99)] * 5)) == (20,)


def test_a_window_keeps_of_the_system_prompt_what_it_reads() -> None:
    config = config_of([key_value(0, 8, 64)])
    layout = layout_of(config)
    # System prompt: blocks 0 .. 7. History 256: (256 + 1 - 64) // 32 = 6, so 6, 7 and the sequence's own 8.
    # History 1023: (1023 + 1 - 64) // 32 = 30: own 30, 31.
    short, long = KVCacheDesc(257, 256), KVCacheDesc(1024, 1023)
    assert slots_of_batch(layout, config, BatchDesc([short, short, long], 256)) == (2 + 2 * 1 + 2,)


def test_pool_groups_add_up_their_layer_groups() -> None:
    # Both groups have slots of 16 bytes: one pool group. 10 blocks, and (319 + 1 - 64) // 32 = 8: 2 blocks.
    config = config_of([key_value(0, 8), key_value(1, 8, 64)])
    assert slots_of_batch(layout_of(config), config, BatchDesc([KVCacheDesc(320, 319)] * 3)) == (3 * (10 + 2),)


def test_one_pool_group_takes_all() -> None:
    config = config_of([key_value(0, 50)])
    layout = layout_of(config)
    assert plan_slot_counts(layout, config, 100, 0) == (1,)
    assert plan_slot_counts(layout, config, 2299, 0) == (22,)
    with pytest.raises(ValueError, match="100"):
        plan_slot_counts(layout, config, 99, 0)


def test_without_constraints_each_layer_group_gets_a_slot() -> None:
    config = config_of([key_value(0, 50), key_value(1, 50, 1000), state(2, {"s": 7})])
    layout = layout_of(config)
    assert compute_min_slot_counts(layout, config, 0) == (2, 1)
    assert plan_slot_counts(layout, config, 207, 0) == (2, 1)
    with pytest.raises(ValueError, match="207"):
        plan_slot_counts(layout, config, 206, 0)


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


def test_one_window_at_its_widest() -> None:
    # At history 319 window 64 is just 2 blocks, 8 and 9; at 320 it will be 3: 1 + ceil(63 / 32). And 1 block of sinks.
    config = config_of([key_value(0, 8, 64, 32)], constraints=[BatchDesc([KVCacheDesc(320, 319)])])
    assert compute_min_slot_counts(layout_of(config), config, 0) == (4,)
    # A sequence of 2 blocks never has more than those.
    config = config_of([key_value(0, 8, 64, 32)], constraints=[BatchDesc([KVCacheDesc(64, 63)])])
    assert compute_min_slot_counts(layout_of(config), config, 0) == (2,)


def test_the_rest_follows_the_typical_step() -> None:
    # 10 blocks of 16 bytes beside 2 of 32 bytes: 224 bytes a step.
    typical = BatchDesc([KVCacheDesc(320, 319)])
    config = config_of([key_value(0, 8), key_value(1, 16, 64)], typical_step=typical)
    layout = layout_of(config)
    assert plan_slot_counts(layout, config, 100 * 224, 0) == (1000, 200)
    # 223 bytes: shares of 10 * 223/224 and 2 * 223/224 slots, whole ones 9 and 1, which leaves 47 bytes. The
    # larger remainder is the second's (0.991 against 0.955): 32 bytes; 15 are left, too few for anything.
    assert plan_slot_counts(layout, config, 223, 0) == (9, 2)


def test_a_constraint_weaker_than_the_typical_step_changes_nothing() -> None:
    """A step of 10 blocks of 16 and 2 of 32 bytes, 5:2 by bytes; a quota of 100 steps is (1000, 200) slots."""
    typical = BatchDesc([KVCacheDesc(320, 319)])
    layers = [key_value(0, 8), key_value(1, 16, 64)]
    quota = 100 * 224
    for num_sequences in (0, 1, 20, 66):
        # A sequence of 10 blocks at history 320 takes (10, 3) slots at the most: 66 of them (660, 198).
        constraints = [BatchDesc([KVCacheDesc(320, 319)] * num_sequences)] if num_sequences > 0 else []
        config = config_of(layers, typical_step=typical, constraints=constraints)
        assert plan_slot_counts(layout_of(config), config, quota, 0) == (1000, 200)
    # 150 prefills of 64 tokens take 2 blocks in both groups, (300, 300): more than 200 of the second, which gets just these, and
    # the first what is left, (22400 - 300 * 32) / 16 = 800.
    config = config_of(layers, typical_step=typical, constraints=[BatchDesc([KVCacheDesc(64, 0)] * 150)])
    assert plan_slot_counts(layout_of(config), config, quota, 0) == (800, 300)


def test_what_a_constraint_takes_is_shared_by_the_others_as_before() -> None:
    """Two pool groups, of 16 and 32 bytes a slot, 1:3 by bytes; the constraint needs more of the first one than its share."""
    layers = [key_value(0, 8), key_value(1, 8, 32), key_value(2, 16, 64)]
    config = config_of(layers, initial_pool_ratio=[1, 3])
    # Layers 0 and 1 have slots of one size, so they share a pool group.
    assert plan_slot_counts(layout_of(config), config, 640, 0) == (10, 15)
    # 6 sequences of one block: 6 of layer 0 and 6 of layer 1 in the first pool group, whose share of 160 bytes holds 10.
    config = config_of(layers, initial_pool_ratio=[1, 3], constraints=[BatchDesc([KVCacheDesc(32, 0)] * 6)])
    assert plan_slot_counts(layout_of(config), config, 640, 0) == (12, (640 - 12 * 16) // 32)


@pytest.mark.parametrize("ratio", [[3, 1], [0.75, 0.25], [2, 1], [0.5, 0.25], [1, 0.5]])
def test_the_rest_follows_the_ratio_of_bytes(ratio: list[float]) -> None:
    """100 slots of 16 bytes to 50 of 32 are as many bytes."""
    config = config_of([key_value(0, 8), key_value(1, 16, 64)], initial_pool_ratio=ratio)
    times = int(ratio[0] / ratio[1])
    assert plan_slot_counts(layout_of(config), config, (times + 1) * 1600, 0) == (100 * times, 50)


def test_a_ratio_takes_the_place_of_the_typical_step() -> None:
    typical = BatchDesc([KVCacheDesc(3200, 3199)])
    config = config_of([key_value(0, 8), key_value(1, 16, 64)], initial_pool_ratio=[1, 1], typical_step=typical)
    assert plan_slot_counts(layout_of(config), config, 6400, 0) == (200, 100)


def test_a_small_quota_still_holds_a_sequence_in_every_pool_group() -> None:
    # Without a hint: the longest sequence that fits. Shorter than a chunk of 2048 tokens it has all its blocks at once.
    config = config_of([key_value(0, 8), key_value(1, 16, 64)])
    assert plan_slot_counts(layout_of(config), config, 10 * 16 + 10 * 32, 0) == (10, 10)
    # Longer: from the first input's 63 tokens before it to the last input, 63 + 2048 tokens in up to 67 blocks of 32.
    assert plan_slot_counts(layout_of(config), config, 100 * 16 + 67 * 32, 0) == (100, 67)


def test_without_a_hint_a_large_quota_follows_long_sequences() -> None:
    # Over 40 times a sequence of 16384 tokens: 512 blocks of 16 bytes; decoding keeps up to 1 + ceil(63 / 32) = 3 of 32 bytes.
    config = config_of([key_value(0, 8), key_value(1, 16, 64)])
    assert plan_slot_counts(layout_of(config), config, 100 * (512 * 16 + 3 * 32), 0) == (512 * 100, 3 * 100)


def test_without_a_hint_a_small_quota_follows_short_sequences() -> None:
    # 40 sequences of 100 blocks of 16 bytes, and 3 of the window of 32 bytes, fill it; 101 blocks do not fit.
    config = config_of([key_value(0, 8), key_value(1, 16, 64)])
    assert plan_slot_counts(layout_of(config), config, 40 * (100 * 16 + 3 * 32), 0) == (4000, 120)
    # 40 of 1024 tokens do not fit: 20 of these, 32 blocks each, would be (640, 60). But the longest sequence that can
    # prefill, of 20 * (32 * 16 + 3 * 32) - 67 * 32 bytes for 626 blocks, at most 512, comes first: 67 blocks of its windowed layers,
    # instead of 60; the rest is 12160 - 67 * 32 = 10016 bytes, 626 blocks.
    assert plan_slot_counts(layout_of(config), config, 20 * (32 * 16 + 3 * 32), 0) == (626, 67)


def test_without_a_hint_all_levels_follow_the_same_sequences() -> None:
    # Level 0 has 1 MiB: 26214 bytes for each of 40, which are (26214 - 96) / 16 = 1632 blocks, so a long sequence of 512 blocks.
    config = config_of([key_value(0, 8), key_value(1, 16, 64)])
    quota = 20 * (512 * 16 + 3 * 32)
    # 20 sequences would need 60 blocks of the windowed group; 67 are of one that prefills, the rest is for full attention.
    assert plan_slot_counts(layout_of(config), config, quota, 1) == ((quota - 67 * 32) // 16, 67)
    small = KVCacheManagerConfig(32, [GpuCacheTierConfig(40 * (100 * 16 + 96)), HostCacheTierConfig(1 << 30)], config.layers)
    # Level 1 has the mix of level 0, however large it is.
    assert plan_slot_counts(layout_of(small), small, 1000 * (100 * 16 + 96), 1) == (100000, 3000)


def test_without_a_hint_states_have_room_for_the_snapshots_of_each_prefix() -> None:
    # A sequence of 1024 tokens: 32 blocks of 64 bytes, the live state, and a snapshot for every 1024 tokens.
    config = config_of([key_value(0, 32), state(1, {"s": 1024})])
    quota = 39 * (32 * 64 + 2 * 1024)
    assert plan_slot_counts(layout_of(config), config, quota, 0) == (39 * 32, 39 * 2)


def test_small_slots_fill_what_large_ones_leave() -> None:
    config = config_of([key_value(0, 500), state(1, {"s": 7})], initial_pool_ratio=[1000, 1])
    layout = layout_of(config)
    counts = plan_slot_counts(layout, config, 3 * 1000 + 30, 0)
    assert counts == (3, 4)
    assert compute_slots_bytes(layout, counts) == 3028


def test_a_typical_step_without_tokens_is_no_hint() -> None:
    config = config_of([key_value(0, 8)], typical_step=BatchDesc([KVCacheDesc(0, 0)]))
    assert plan_slot_counts(layout_of(config), config, 160, 0) == (10,)


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


def test_a_known_longest_sequence_comes_first() -> None:
    # 3,200 tokens: 100 blocks of 16 bytes; while it prefills, 67 of 32 bytes. Requests of 1,024 new tokens would
    # share the same bytes as (198, 18), where it could not prefill.
    config = config_of([key_value(0, 8), key_value(1, 16, 64)], max_sequence_length=3200)
    assert plan_slot_counts(layout_of(config), config, 100 * 16 + 67 * 32, 0) == (100, 67)


def test_a_known_longest_sequence_has_one_snapshot_for_reuse() -> None:
    # 1,024 tokens: 32 blocks of 16 bytes; the live state and one snapshot, of 64 bytes each.
    config = config_of([key_value(0, 8), state(1, {"s": 64})], max_sequence_length=2048)
    assert plan_slot_counts(layout_of(config), config, 100 * (32 * 16 + 2 * 64), 0) == (3200, 200)


def test_what_is_configured_comes_before_the_longest_sequence() -> None:
    layers = [key_value(0, 8), key_value(1, 16, 64)]
    typical = BatchDesc([KVCacheDesc(320, 319)])
    for settings in ({"typical_step": typical}, {"initial_pool_ratio": [3, 1]}):
        plain = config_of(layers, **settings)
        known = config_of(layers, max_sequence_length=99, **settings)
        assert plan_slot_counts(layout_of(plain), plain, 9999, 0) == plan_slot_counts(layout_of(known), known, 9999, 0)
