"""Slots of a step against a look at every block; plans against what a quota can hold."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache_manager_v2.config.batch_desc import BatchDesc, KVCacheDesc
from kv_cache_manager_v2.config.manager_config import KVCacheManagerConfig
from kv_cache_manager_v2.layout.sizing import (
    PREFILL_CHUNK_TOKENS,
    compute_min_slot_counts,
    compute_slots_bytes,
    compute_widest_need,
    plan_slot_counts,
)
from kv_cache_manager_v2.layout.slot_layout import SlotLayout
from kv_cache_manager_v2.layout.step_slots import slots_of_batch, slots_of_sequence

from .brute_force import count_blocks, is_stale, scratch_blocks
from .random_models import batches, configs, kv_caches, layout_of


def brute_force_batch(layout: SlotLayout, config: KVCacheManagerConfig, batch: BatchDesc) -> list[int]:
    """Every page of every sequence by name; pages of the system prompt have a name that all sequences share."""
    tokens_per_block = config.tokens_per_block
    counts = [0] * layout.num_pool_groups
    for life_cycle_id, life_cycle in enumerate(layout.life_cycles):
        pages: set[object] = set()
        num_scratch_slots = 0
        for index, kv_cache in enumerate(batch.kv_caches):
            if not life_cycle.has_page_per_block:
                pages.add(("state", index))
                continue
            scratch: list[int] = []
            if config.swa_scratch_reuse is not None:
                rewind = config.swa_scratch_reuse.max_rewind_len
                scratch = scratch_blocks(life_cycle, kv_cache.history_length, kv_cache.capacity, tokens_per_block, rewind)
            scratch = [block for block in scratch if (block + 1) * tokens_per_block > batch.system_prompt_length]
            num_scratch_slots += layout.compute_num_scratch_slots(life_cycle_id, len(scratch))
            for block in range(count_blocks(kv_cache.capacity, tokens_per_block)):
                if block in scratch or is_stale(life_cycle, block, kv_cache.history_length, tokens_per_block):
                    continue
                is_shared = (block + 1) * tokens_per_block <= batch.system_prompt_length
                pages.add(("shared", block) if is_shared else (index, block))
        counts[layout.pool_group_indices[life_cycle_id]] += len(pages) + num_scratch_slots
    return counts


@settings(max_examples=120, deadline=None, derandomize=True)
@given(configs(), batches())
def test_slots_of_a_batch(config: KVCacheManagerConfig, batch: BatchDesc) -> None:
    layout = layout_of(config)
    assert list(slots_of_batch(layout, config, batch)) == brute_force_batch(layout, config, batch)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(configs(), kv_caches())
def test_no_step_needs_more_than_the_widest(config: KVCacheManagerConfig, kv_cache: KVCacheDesc) -> None:
    layout = layout_of(config)
    num_blocks = count_blocks(kv_cache.capacity + 1, config.tokens_per_block)
    num_inputs = kv_cache.capacity + 1 - kv_cache.history_length
    slots = slots_of_sequence(layout, config, KVCacheDesc(kv_cache.capacity + 1, kv_cache.history_length))
    for life_cycle_id, life_cycle in enumerate(layout.life_cycles):
        widest = compute_widest_need(life_cycle, num_blocks, config.tokens_per_block, num_inputs)
        assert slots[life_cycle_id] <= widest


@settings(max_examples=60, deadline=None, derandomize=True)
@given(configs(), st.integers(1, 10))
def test_the_widest_is_reached(config: KVCacheManagerConfig, num_inputs: int) -> None:
    config = dataclasses.replace(config, swa_scratch_reuse=None)
    layout = layout_of(config)
    tokens_per_block = config.tokens_per_block
    num_blocks = 12 + 30 // tokens_per_block  # longer than sinks, window and inputs
    for life_cycle_id, life_cycle in enumerate(layout.life_cycles):
        needs = [
            slots_of_sequence(layout, config, KVCacheDesc(length + num_inputs, length))[life_cycle_id]
            for length in range(num_blocks * tokens_per_block - num_inputs + 1)
        ]
        assert max(needs) == compute_widest_need(life_cycle, num_blocks, tokens_per_block, num_inputs)


@st.composite
def planned_configs(draw: st.DrawFn) -> KVCacheManagerConfig:
    """With constraints or without, and with each of the hints."""
    config = draw(configs())
    config = dataclasses.replace(config, constraints=draw(st.lists(batches(), max_size=2)))
    hint = draw(st.sampled_from(["none", "step", "ratio"]))
    if hint == "step":
        config = dataclasses.replace(config, typical_step=draw(batches()))
    elif hint == "ratio":
        num_pool_groups = layout_of(config).num_pool_groups
        ratios = draw(st.lists(st.floats(0.01, 100), min_size=num_pool_groups, max_size=num_pool_groups))
        config = dataclasses.replace(config, initial_pool_ratio=ratios)
    return config


@settings(max_examples=120, deadline=None, derandomize=True)
@given(planned_configs(), st.integers(0, 20000), st.integers(0, 1))
def test_plans_use_the_quota_and_keep_the_minimum(config: KVCacheManagerConfig, more_bytes: int, level: int) -> None:
    layout = layout_of(config)
    minimum = compute_min_slot_counts(layout, config, level)
    min_bytes = compute_slots_bytes(layout, minimum)
    with pytest.raises(ValueError, match=str(min_bytes)):
        plan_slot_counts(layout, config, min_bytes - 1, level)
    quota = min_bytes + more_bytes
    counts = plan_slot_counts(layout, config, quota, level)
    assert all(count >= least for count, least in zip(counts, minimum, strict=True))
    left = quota - compute_slots_bytes(layout, counts)
    assert 0 <= left < min(layout.slot_bytes_total(index) for index in range(layout.num_pool_groups))
    for batch in config.constraints:
        slots = slots_of_batch(layout, config, batch, level)
        assert all(count >= need for count, need in zip(counts, slots, strict=True))
    assert plan_slot_counts(layout, config, min_bytes, level) == minimum


@settings(max_examples=80, deadline=None, derandomize=True)
@given(configs(), st.integers(1, 400))
def test_without_a_hint_the_longest_sequence_fits(config: KVCacheManagerConfig, num_blocks: int) -> None:
    """With just the bytes that a sequence of that length needs to prefill, it gets all of them."""
    layout = layout_of(config)
    needs = [0] * layout.num_pool_groups
    for life_cycle_id, life_cycle in enumerate(layout.life_cycles):
        need = compute_widest_need(life_cycle, num_blocks, config.tokens_per_block, PREFILL_CHUNK_TOKENS)
        needs[layout.pool_group_indices[life_cycle_id]] += need
    counts = plan_slot_counts(layout, config, compute_slots_bytes(layout, needs), 0)
    assert list(counts) == needs
