"""An engine written for TensorRT-LLM's KVCacheManagerV2 runs on `compat.tensorrt_llm` as it is: names, calls, what they mean.

`tensorrt_llm_adapter.Adapter` makes its calls; each byte that a layer reads is checked by the fake engine.
"""

import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorrt_llm_adapter import KEY, VALUE, Adapter, Request, attention_layer, state_layer

import kv_cache_manager_v2.compat.tensorrt_llm as runtime
from kv_cache_manager_v2 import HostDevice, LogicError

PROMPT = list(range(100, 137))
LAYERS = [attention_layer(0, 4), attention_layer(1, 4, window=8), attention_layer(2, 4)]


@pytest.mark.parametrize("chunk", [1000, 16, 5])
@pytest.mark.parametrize("host_quota", [0, 1 << 16])
def test_context_and_generation(chunk: int, host_quota: int) -> None:
    """A prompt of 37 tokens by the chunk, ten steps, half of them with drafts of which some are taken back; then the next turn."""
    adapter = Adapter(LAYERS, host_quota=host_quota)
    request = adapter.prefill(Request(7, PROMPT), chunk)
    for step in range(10):
        adapter.generate(request, 500 + step, (1, 2, 3) if step % 2 else (), step % 4 if step % 2 else 0)
    written, returned = adapter.page_row(request, 0)
    assert written == returned and min(returned) >= 0
    windowed = adapter.page_row(request, 1)[1]
    assert windowed[0] == runtime.BAD_PAGE_INDEX and windowed[-1] >= 0
    turn = list(request.tokens)
    adapter.free_resources(request)
    assert request.kv_cache.committed_tokens == turn, "after close() too"
    assert adapter.impl.probe_reuse(runtime.ReuseScope(), turn) == len(turn)
    second = Request(8, [*turn, 9, 9, 9])
    adapter.prefill(second, chunk)
    assert second.kv_cache.cached_tokens_by_level[0] == len(turn)
    adapter.end()


@pytest.mark.parametrize("chunk", [1000, 16])
def test_scratch_slots_leave_with_the_prompt(chunk: int) -> None:
    """Chunks use scratch slots; after the last one the engine switches them off, and generates as without them."""
    adapter = Adapter(LAYERS, swa_scratch_reuse=runtime.SwaScratchReuseConfig())
    request = Request(1, PROMPT)
    adapter.prepare_context(request)
    kv_cache = request.kv_cache
    assert kv_cache.resize(min(chunk, 37), 0) and kv_cache.get_scratch_desc(1) is not None
    assert not kv_cache.supports_index_mode(runtime.PageIndexMode.SHARED)
    while request.position < 37:
        adapter.context_chunk(request, chunk)
        assert kv_cache.get_scratch_desc(1) is None and kv_cache.supports_index_mode(runtime.PageIndexMode.SHARED)
    kv_cache.suspend()
    assert kv_cache.resume(adapter.stream)
    for step in range(6):
        adapter.generate(request, 500 + step, (1, 2), 1)
    kv_cache.capacity = 60
    assert not kv_cache.enable_swa_scratch_reuse and kv_cache.capacity == 60
    adapter.end()


def test_suspended_requests_come_back_with_their_bytes() -> None:
    """Four requests, whose windowed pages level 0 has no room for together: they are suspended, offloaded and resumed in turn."""
    adapter = Adapter(LAYERS, quota=3600, host_quota=1 << 16)
    assert adapter.impl.get_storage_statistics(0)[1].total < 4 * 3
    requests = [Request(number, [1000 * number + token for token in range(20)]) for number in range(4)]
    for request in requests:
        adapter.prefill(request, 4)
        request.kv_cache.suspend()
        adapter.impl.record_request_suspended()
    for _turn in range(3):
        for request in requests:
            assert request.kv_cache.prefetch(target=runtime.CACHE_LEVEL1)
            assert request.kv_cache.resume(adapter.stream)
            adapter.impl.record_request_resumed()
            adapter.generate(request, 5)
            request.kv_cache.suspend()
    assert adapter.impl.get_and_reset_iteration_suspend_resume_stats() == (4, 12)
    assert adapter.impl.get_and_reset_iteration_suspend_resume_stats() == (0, 0)
    stats = adapter.impl.get_and_reset_iteration_stats()
    assert sum(delta.iter_onboard_blocks for delta in stats.values()) > 0
    assert sum(delta.iter_offload_bytes for delta in stats.values()) > 0
    for request in requests:
        adapter.free_resources(request)
    adapter.end()


def test_dummies_are_in_no_statistics_and_steer_nothing() -> None:
    adapter = Adapter(LAYERS)
    dummy = adapter.add_dummy((1 << 63) + 5, 40)
    assert adapter.impl.is_stats_excluded(dummy.id)
    assert adapter.impl.get_dirty_stats_kv_cache_ids() == set()
    assert adapter.free_resources(dummy) == runtime.KVCacheStatsDelta()
    assert not adapter.impl.is_stats_excluded(dummy.id)
    assert adapter.impl.get_committed_stats().empty and adapter.impl.get_and_reset_iteration_stats() == {}
    adapter.end()


def test_statistics_of_requests() -> None:
    """Blocks of 4 in three layers, of which two share a group: 16 tokens are 4 blocks in both groups; of the second request all but
    the last token is found, 15: in each group 3 blocks in full and one in part, of which the windowed group needs those of the last
    8 tokens: at 15 tokens it reads 8..15, blocks 2 and 3."""
    adapter = Adapter(LAYERS)
    first = adapter.prefill(Request(1, PROMPT[:16]))
    assert adapter.impl.get_dirty_stats_kv_cache_ids() == {1}
    assert adapter.free_resources(first) == runtime.KVCacheStatsDelta(8, 8, 0, 8)
    assert adapter.impl.get_dirty_stats_kv_cache_ids() == set()
    assert adapter.impl.get_and_reset_iteration_cached_tokens_by_level() == [0]
    second = adapter.prefill(Request(2, PROMPT[:16]))
    assert second.kv_cache._get_last_cached_token_level() == 0 and second.kv_cache.cached_tokens_by_level == [15]
    assert adapter.impl.get_and_reset_iteration_cached_tokens_by_level() == [15]
    reused = adapter.impl.get_and_reset_iteration_reused_blocks_by_level()
    assert reused == {0: runtime.ReusedBlocksByLevel([3], [1]), 1: runtime.ReusedBlocksByLevel([1], [1])}
    delta = adapter.free_resources(second)
    assert (delta.reused_blocks, delta.missed_blocks) == (6, 0)
    iteration = adapter.impl.get_and_reset_iteration_stats()
    assert set(iteration) == {0, 1}
    assert iteration[0].iter_full_reused_blocks == 3 and iteration[0].iter_partial_reused_blocks == 1
    assert iteration[0].iter_missed_blocks == 4 and iteration[0].iter_cache_hit_rate == 0.5
    total = adapter.impl.get_committed_stats()
    assert (total.missed_blocks, total.reused_blocks) == (8, 6)
    assert adapter.impl.get_and_reset_iteration_stats() == {}
    # A request whose counts are discarded leaves none.
    third = adapter.prefill(Request(3, [9] * 8))
    third.kv_cache.discard_pending_stats()
    adapter.free_resources(third)
    assert adapter.impl.get_committed_stats() == total
    peaks = adapter.impl.get_and_reset_iteration_peak_block_stats_by_level()
    assert [peak.unavailable for peak in peaks[0]] == [4, 4]  # of the first request's prefill
    totals = [figures.total for figures in adapter.impl.get_storage_statistics(0)]
    assert [peak.available + peak.unavailable for peak in peaks[0]] == totals
    assert [peak.unavailable for peak in adapter.impl.get_and_reset_iteration_peak_block_stats(0)] == [0, 0]
    assert adapter.impl.get_life_cycle_pool_group_indices(0) == runtime._introspection.life_cycle_pool_group_indices(adapter.impl)
    assert runtime._introspection.storage_statistics(adapter.impl, 0) == adapter.impl.get_storage_statistics()
    adapter.end()


def test_disaggregated_prefill() -> None:
    """Another machine has computed the prompt: room for it and for one step, then its tokens are committed, then decoding goes on."""
    adapter = Adapter(LAYERS)
    request = Request(3, PROMPT)
    request.kv_cache = adapter.impl.create_kv_cache(None, None, request.id)
    assert request.kv_cache.resume(adapter.stream)
    adapter.requests.append(request)
    assert request.kv_cache.resize(len(PROMPT) + 2, len(PROMPT))
    needed = request.kv_cache.get_aggregated_page_indices(0, valid_only=True)
    assert len(needed) == 10 and len(request.kv_cache.get_aggregated_page_indices(1, 0, True)) == 3
    ranges = adapter.impl.get_aggregated_pages([runtime.BufferId(runtime.LayerId(0), KEY), runtime.BufferId(runtime.LayerId(0), VALUE)])
    assert sum(found.size for found in ranges) == 2 * 4 * 8
    request.kv_cache.commit(PROMPT)
    request.position = len(PROMPT)
    assert request.kv_cache.num_committed_blocks == 9
    adapter.free_resources(request)
    assert adapter.impl.probe_reuse(None, PROMPT) == len(PROMPT)
    adapter.impl.clear_reusable_blocks()
    adapter.end()


def test_kernels_find_their_pages() -> None:
    """The connector's layout: keys and values adjacent, one converter per layer and role; layers without a role say so by KeyError."""
    adapter = Adapter(LAYERS)
    impl = adapter.impl
    for layer in impl.layer_ids:
        base = impl.get_mem_pool_base_address(layer, KEY, runtime.PageIndexMode.SHARED)
        converter = impl.get_page_index_converter(layer, KEY)
        assert impl.get_page_stride(layer, KEY) == 32
        assert impl.get_mem_pool_base_address(layer, VALUE) - base == 32
        assert converter.scale == impl.get_page_index_scale(layer, KEY) > 0
        assert impl.get_page_index_upper_bound(layer, KEY) > 0
        with pytest.raises(KeyError):
            impl.get_mem_pool_base_address(layer, runtime.DataRole("index"))
    assert {buffer.role for buffer in impl.all_buffer_ids} == {KEY, VALUE} and impl.num_layers == 3
    assert [len(group) for group in impl.layer_grouping] == [2, 1]
    assert impl._life_cycles.get_life_cycle(1).get_stale_range(20, 4) == runtime.HalfOpenRange(0, 3)
    assert impl.supports_index_mode(runtime.PageIndexMode.SHARED) is True
    assert impl.clamp_max_seq_len_for_mem(1, 64) == 64 and impl.get_quota(0) == 1 << 16
    assert impl.pool_group_descs[0].num_slots == impl.get_storage_statistics()[0].total
    adapter.end()


def test_block_keys_lead_to_blocks() -> None:
    """A lender publishes blocks by key; a scheduler defers a request whose first new block another one is computing."""
    adapter = Adapter(LAYERS, events=True)
    scope = runtime.ReuseScope(lora_id=3, salt=2**64 - 1)
    chain = list(runtime.sequence_to_blockchain_keys(4, scope, PROMPT))
    assert chain[0][0] == [] and [len(tokens) for tokens, _key in chain[1:]] == [4] * 9 + [1]
    assert adapter.impl.probe_first_new_block_key(scope, PROMPT) == chain[1][1]
    request = adapter.prefill(Request(1, PROMPT, scope))
    assert adapter.impl.probe_first_new_block_key(scope, [*PROMPT, 1, 2, 3, 4]) == [
        key for _tokens, key in runtime.sequence_to_blockchain_keys(4, tuple(scope), [*PROMPT, 1, 2, 3])
    ][10]
    assert adapter.impl.probe_first_new_block_key(scope, PROMPT) is None, "one token does not fill a block"
    adapter.free_resources(request)
    events = adapter.event_manager
    assert events is not None
    events.flush_iteration_events()
    found = events.get_latest_events(0)
    stored = [event for event in found if isinstance(event.data, runtime.KVCacheStoredData) and event.layer_group_id == 0]
    names = [block.block_hash for event in stored for block in event.data.blocks]  # type: ignore[union-attr]
    assert names == [key.hex() for _tokens, key in chain[1:]], "the partial last block as well"
    assert isinstance(found[0].data, runtime.KVCacheCreatedData) and [event.event_id for event in found] == [*range(len(found))]
    assert {type(event.window_size) for event in found} == {int}
    adapter.end()


def test_multimodal_prompts_by_the_chunk() -> None:
    digest = bytes(range(32))
    item = runtime.gen_multimodal_cache_key_tokens(32000, multi_modal_data_digest=digest, num_tokens=10)
    parts = [runtime.gen_multimodal_cache_key_tokens(32000, digest, 3, token_offset=begin) for begin in (0, 3, 6)]
    assert [token for part in parts for token in part] == item[:9] and item == [digest, *range(32001, 32010)]
    named = runtime.gen_multimodal_cache_key_tokens(32000, digest, 1, uuid="picture")
    assert named == [runtime.MmItemContext(digest, "other name")] and named[0].uuid == "picture"
    adapter = Adapter(LAYERS)
    adapter.free_resources(adapter.prefill(Request(1, [1, 2, *item, 3, 4]), 5))
    assert adapter.impl.probe_reuse(None, [1, 2, *named, *item[1:], 3]) == 13
    assert adapter.impl.probe_reuse(None, [1, 2, bytes(32), *item[1:], 3]) == 2
    adapter.end()


def test_conversations_drop_abandoned_prefixes() -> None:
    """A plan that is dropped, and one that is forgotten: both take the published end with them."""
    adapter = Adapter(LAYERS)
    for is_forgotten in (False, True):
        request = adapter.prefill(Request(1, PROMPT[:16]))
        request.kv_cache.stop_committing()
        plan = request.kv_cache.plan_committed_block_drop()
        assert isinstance(plan, runtime.PlannedDropHandle)
        adapter.free_resources(request)
        assert adapter.impl.probe_reuse(None, PROMPT[:16]) == 16
        if not is_forgotten:
            plan.drop()
            plan.drop()
        del plan
        assert adapter.impl.probe_reuse(None, PROMPT[:16]) < 16
        adapter.impl.clear_reusable_blocks()
    adapter.end()


def test_the_end_of_a_prompt_can_be_said() -> None:
    adapter = Adapter(LAYERS)
    request = adapter.prefill(Request(1, PROMPT[:6]))
    assert request.kv_cache.resize(7)
    adapter.engine.execute([])
    request.kv_cache.commit([8], None, True)
    assert adapter.impl.probe_reuse(None, [*PROMPT[:6], 8]) == 7, "published while it runs"
    with pytest.raises(RuntimeError, match="stop_committing"):
        request.kv_cache.commit([9])
    adapter.end()


def test_hybrid_models_reuse_their_state() -> None:
    """Each chunk of a prompt leaves a snapshot at its end: the next turn starts from the last one, an equal prompt from the one before."""
    adapter = Adapter([attention_layer(0, 4), state_layer(1)], quota=1 << 16)
    request = adapter.prefill(Request(1, PROMPT), 36)
    group = adapter.impl.get_layer_group_id(runtime.LayerId(1))
    slot = request.kv_cache.get_ssm_block_base_index(group)
    adapter.generate(request, 5)
    assert request.kv_cache.get_ssm_block_base_index(group) == slot >= 0
    adapter.free_resources(request)
    second = Request(2, [*PROMPT, 9, 9, 9])
    adapter.prepare_context(second)
    assert second.position == 37 and second.kv_cache._get_num_reusable_tokens_before_hybrid_pruning() == 37
    assert second.kv_cache._get_num_reusable_tokens_before_pruning() == 37
    adapter.context_chunk(second, 4)
    found = adapter.impl.get_and_reset_ssm_snapshot_iteration_stats()
    assert list(found) == [group] and found[group].iter_snapshot_hits == 1 and found[group].iter_reused_tokens == 37
    again = Request(3, PROMPT)
    adapter.prepare_context(again)
    assert again.position == 36
    adapter.end()


def test_managers_of_the_process() -> None:
    before = runtime.num_live_managers()
    adapter = Adapter(LAYERS)
    assert runtime.num_live_managers() == before + 1 and runtime.poison_reason() is None and runtime.take_poison() is None
    assert adapter.impl.init_config.commit_min_snapshot and adapter.impl.commit_min_snapshot
    adapter.end()
    assert runtime.num_live_managers() == before
    with pytest.raises(LogicError):
        adapter.impl.get_mem_pool_base_address(runtime.LayerId(0), KEY)


def test_ids_are_marked_by_hand() -> None:
    adapter = Adapter(LAYERS)
    adapter.impl.mark_stats_dirty(5)
    adapter.impl.mark_stats_dirty(("any", "hashable"))
    adapter.impl.mark_stats_dirty(None)
    adapter.impl.mark_stats_excluded(6)
    adapter.impl.mark_stats_dirty(6)
    assert adapter.impl.get_dirty_stats_kv_cache_ids() == {5, ("any", "hashable")}
    adapter.impl.clear_stats_dirty(5)
    adapter.impl.clear_stats_dirty(None)
    assert adapter.impl.get_dirty_stats_kv_cache_ids() == {("any", "hashable")}
    for call in (adapter.impl.mark_stats_dirty, adapter.impl.mark_stats_excluded, adapter.impl.is_stats_excluded):
        with pytest.raises(TypeError, match="kv_cache_id must be hashable.*list"):
            call([1])
    adapter.end()


def test_pages_that_come_from_a_disk_are_counted(tmp_path: Path) -> None:
    """Two prompts of 5 blocks on a level of 8: one is suspended and lies on the disk, and is prefetched."""
    layers = [attention_layer(0, 4)]
    tiers: list[Any] = [runtime.GpuCacheTierConfig(8 * 64), runtime.DiskCacheTierConfig(64 * 64, str(tmp_path))]
    config = runtime.KVCacheManagerConfig(4, tiers, layers)
    with runtime.KVCacheManager(config, device=HostDevice()) as manager:
        first, second = [manager.create_kv_cache(id=number) for number in range(2)]
        assert first.resume() and first.resize(20)
        first.commit(PROMPT[:20])
        first.suspend()
        assert second.resume() and second.resize(20)
        second.close()
        assert manager.get_and_reset_iteration_disk_prefetch_blocks() == 0
        assert first.prefetch(runtime.GPU_LEVEL)
        found = manager.get_and_reset_iteration_disk_prefetch_blocks()
        assert 2 <= found <= 5, "at most 3 of its blocks had room beside the other's 5"
        assert manager.get_and_reset_iteration_disk_prefetch_blocks() == 0
        stats = manager.get_and_reset_iteration_stats()
        assert stats[0].iter_onboard_blocks == found and stats[0].iter_onboard_bytes == found * 64
        with pytest.raises(ValueError, match="target is 2"):
            first.prefetch(2)
        first.close()


def test_cold_pages_and_residency_windows() -> None:
    """Buffers of 4 tokens have 32 numbers in 128 bytes, and pack to 2 + 32; two of them to 80, a multiple of 16. With a window of 5 and
    4 sink tokens blocks 0, 3 and 4 of 20 tokens are locked."""
    codec = runtime.create_default_kv_cache_cold_page_codec("float32", 32)
    assert isinstance(codec, runtime.IKvCacheColdPageCodec) and not codec.is_lossless
    tiers: list[Any] = [runtime.GpuCacheTierConfig(5 * 256), runtime.HostCacheTierConfig(20 * 80)]
    config = runtime.KVCacheManagerConfig(4, tiers, [attention_layer(0, 4, size=32)])
    with runtime.KVCacheManager(config, None, codec, device=HostDevice()) as manager:
        assert manager.get_storage_statistics(runtime.CACHE_LEVEL1)[0].total == 20
        kv_cache = manager.create_kv_cache()
        assert [kv_cache._residency_group] == [None]
        kv_cache._set_residency_window(0, 5, num_sink_tokens=4)
        assert [kv_cache._residency_group] == [0]
        assert kv_cache.resume() and kv_cache.resize(16) and kv_cache.resize(20, 16)
        assert [ordinal for ordinal, slot in enumerate(kv_cache.get_base_page_indices(0)) if slot != runtime.BAD_PAGE_INDEX] == [0, 3, 4]
        kv_cache.suspend()
        kv_cache._set_residency_window(0, None)
        assert [kv_cache._residency_group] == [None]
        kv_cache.close()
    with pytest.raises(ValueError, match="one of float32, float16, bfloat16"):
        runtime.create_default_kv_cache_cold_page_codec("int8")


def test_facts_and_settings() -> None:
    adapter = Adapter(LAYERS, host_quota=1 << 16, swa_scratch_reuse=runtime.SwaScratchReuseConfig(), enable_partial_reuse=False)
    impl = adapter.impl
    assert list(impl.cache_tier_list) == [runtime.CacheTier.GPU_MEM, runtime.CacheTier.HOST_MEM]
    assert not impl.enable_partial_match and impl.allow_seq_rebasing and impl.enable_swa_scratch_reuse
    assert impl.init_config.enable_swa_scratch_reuse and impl.init_config.layers[1].window_size == 8  # type: ignore[union-attr]
    impl.init_config.validate()
    assert impl.supports_index_mode(runtime.PageIndexMode.SHARED) is None
    assert not impl.need_adjustment
    impl.adjust()
    assert impl.resize(runtime.CACHE_LEVEL1, quota=1 << 15, best_efforts=False) and impl.get_quota(1) == 1 << 15
    request = Request(4, PROMPT[:5], runtime.ReuseScope(2))
    adapter.prepare_context(request)
    kv_cache = request.kv_cache
    kv_cache.id = "another"
    assert kv_cache.id == "another" and kv_cache.status is runtime.KvCacheStatus.ACTIVE and kv_cache.reuse_scope == (2, None)
    assert kv_cache.tokens_per_block == 4 and kv_cache.manager is impl and kv_cache.cuda_stream == adapter.stream
    kv_cache.cuda_stream = adapter.stream
    assert kv_cache.text_only is False
    kv_cache.text_only = True
    assert kv_cache.text_only
    assert kv_cache.enable_swa_scratch_reuse and kv_cache.get_scratch_desc(1) is None and not kv_cache.has_scratch_slots
    kv_cache.enable_swa_scratch_reuse = False
    kv_cache.capacity = 6
    kv_cache.history_length = 4
    assert (kv_cache.capacity, kv_cache.history_length, kv_cache.beam_width) == (6, 4, 1)
    kv_cache.beam_width = 2
    assert kv_cache.beam_width == 2
    assert kv_cache.get_base_page_indices(0, beam_idx=1).tolist() == kv_cache.get_base_page_indices(0, beam_id=1).tolist()
    adapter.end()


# -- values ------------------------------------------------------------------------------------------------------------


def test_configurations_can_be_changed_and_replaced() -> None:
    config = runtime.KVCacheManagerConfig(4, [runtime.GpuCacheTierConfig(1 << 16), runtime.HostCacheTierConfig(0)], LAYERS)
    config.max_util_for_resume = 0.5
    other = dataclasses.replace(config, tokens_per_block=2, layers=[attention_layer(0, 2)])
    assert other.max_util_for_resume == 0.5 and config.tokens_per_block == 4 and isinstance(other.layers, list)
    batch = runtime.BatchDesc([runtime.KVCacheDesc(0, 0)])
    wider = dataclasses.replace(batch, kv_caches=[*batch.kv_caches, runtime.KVCacheDesc(4, 2)])
    assert len(wider.kv_caches) == 2 and batch != wider
    config.layers[0].buffers[0].size = -1
    with pytest.raises(ValueError, match="size"):
        runtime.KVCacheManager(config, device=HostDevice())
    config.layers[0].buffers[0].size = 32
    with runtime.KVCacheManager(config, None, None, device=HostDevice()) as manager:
        assert len(manager.cache_tier_list) == 1, "a tier of nothing is left out"
    for tier in (runtime.GpuCacheTierConfig(0), runtime.HostCacheTierConfig(0), runtime.DiskCacheTierConfig(0, "/tmp")):
        with pytest.raises(ValueError, match="quota"):
            tier.assert_valid()
    with pytest.raises(TypeError, match="cold_page_codec"):
        runtime.KVCacheManager(config, None, object(), device=HostDevice())  # type: ignore[arg-type]


def test_names_that_are_not_offered_say_why() -> None:
    events: Any = runtime.KVCacheEventManager(1)
    module: Any = runtime
    for name in (
        "add_stored_event_from_block", "add_stored_block_event_from_block", "add_stored_life_cycle_event_from_block",
        "add_removed_event_from_block", "add_removed_life_cycle_event",
    ):  # fmt: skip
        with pytest.raises(AttributeError, match=f"'{name}': no block leaves the manager.*add_stored_event"):
            getattr(events, name)
    for owner in (events, module):
        with pytest.raises(AttributeError, match="has no 'fetch'$"):
            getattr(owner, "fetch")


def test_the_ratio_is_by_layer_group() -> None:
    """Recurrent state, full attention, then windows as they grow; of the first and the last two the bytes are in one pool group each."""
    layers: list[Any] = [attention_layer(0, 4, window=64, size=16), attention_layer(1, 4, window=8), state_layer(2), attention_layer(3, 4)]
    config = runtime.KVCacheManagerConfig(4, [runtime.GpuCacheTierConfig(1 << 20)], layers, initial_pool_ratio=[0.25, 0.125, 0.125, 0.5])
    with runtime.KVCacheManager(config, device=HostDevice()) as manager:
        groups = manager.get_life_cycle_pool_group_indices()
        figures = manager.get_storage_statistics()
        share = [figures[group].total * sum(figures[group].slot_sizes) / (1 << 20) for group in groups]
        assert [round(part, 2) for part in share] == [0.5, 0.25, 0.25, 0.25]  # of window 64; window 8 with full attention; the state
    with pytest.raises(ValueError, match="4 layer groups"):
        runtime.KVCacheManager(dataclasses.replace(config, initial_pool_ratio=[1.0]), device=HostDevice())


def test_scopes_are_tuples() -> None:
    scope = runtime.ReuseScope(lora_id=7, salt=11)
    assert scope == (7, 11) and list(scope) == [7, 11] and scope[1] == 11 and hash(scope) == hash((7, 11)) and len(scope) == 2
    assert repr(scope) == "ReuseScope(lora_id=7, salt=11)" and runtime.ReuseScope() == (None, None)
    adapter = Adapter(LAYERS)
    adapter.free_resources(adapter.prefill(Request(1, PROMPT, scope)))
    for same in (scope, (7, 11), runtime.ReuseScope(7, 11)):
        assert adapter.impl.probe_reuse(same, PROMPT) == len(PROMPT)
    assert adapter.impl.probe_reuse(7, PROMPT) == adapter.impl.probe_reuse(None, PROMPT) == 0
    with pytest.raises(TypeError, match="reuse_scope"):
        adapter.impl.probe_reuse("7", PROMPT)
    adapter.end()


VALUES: list[Any] = [
    runtime.GpuCacheTierConfig(8),
    runtime.HostCacheTierConfig(8),
    runtime.DiskCacheTierConfig(8, "/tmp"),
    runtime.BufferConfig(KEY, 8),
    *LAYERS,
    state_layer(0),
    runtime.KVCacheDesc(8, 4),
    runtime.BatchDesc([runtime.KVCacheDesc(8, 4)], 4),
    runtime.SwaScratchReuseConfig(2),
    runtime.KVCacheManagerConfig(4, [runtime.GpuCacheTierConfig(1 << 16)], LAYERS),
    runtime.ReuseScope(1, 2),
    runtime.UniqueToken(3),
    runtime.KVCacheCreatedData([1, 2]),
    runtime.KVCacheStoredBlockData(3, [runtime.UniqueToken(1)], 0, 35, [(b"x", 1)], "salt"),
    runtime.KVCacheStoredData(None, [runtime.KVCacheStoredBlockData("ab", [], 0, 35)]),
    runtime.KVCacheRemovedData([1, "2"]),
    runtime.KVCacheEventDiff(0, 1),
    runtime.KVCacheUpdatedData(5, runtime.KVCacheEventDiff(0, 1), None),
    runtime.KVCacheEvent(3, runtime.KVCacheRemovedData([1]), 64, "v2_sha256", 1, 0),
    runtime.KVCacheStatsDelta(1, 2, 3, 4),
    runtime.KVCacheIterationStatsDelta(*range(15)),
    runtime.SsmSnapshotIterationStatsDelta(*range(7)),
    runtime.ReusedBlocksByLevel([1], [2]),
    runtime.PoolGroupPeakBlockStats(1, 2, 3),
    runtime.MmItemContext(b"digest", "uuid"),
]


@pytest.mark.parametrize("value", VALUES, ids=[type(value).__name__ + str(number) for number, value in enumerate(VALUES)])
def test_values_are_copied_compared_and_pickled(value: Any) -> None:
    for other in (copy.copy(value), copy.deepcopy(value), *[pickle.loads(pickle.dumps(value, protocol)) for protocol in range(2, 6)]):
        assert other == value and type(other) is type(value) and repr(other) == repr(value)
    assert value != object() and value in [value]


def test_handles_are_neither_copied_nor_pickled() -> None:
    adapter = Adapter(LAYERS, events=True)
    request = adapter.prefill(Request(1, PROMPT[:8]))
    request.kv_cache.stop_committing()
    plan = request.kv_cache.plan_committed_block_drop()
    for handle in (adapter.impl, request.kv_cache, adapter.event_manager, plan):
        for act in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="neither copied nor pickled"):
                act(handle)
        assert repr(handle)
    adapter.end()


def test_deltas_add_up() -> None:
    delta = runtime.KVCacheIterationStatsDelta(iter_reused_blocks=3, iter_missed_blocks=1)
    assert runtime._KV_CACHE_ITERATION_STATS_DELTA_FIELDS == runtime.KVCacheIterationStatsDelta._field_names  # type: ignore[attr-defined]
    assert len(runtime._KV_CACHE_ITERATION_STATS_DELTA_FIELDS) == 15
    other: Any = delta.copy()
    other.add(delta)
    assert (other.iter_reused_blocks, other.iter_missed_blocks, delta.iter_reused_blocks) == (6, 2, 3)
    other.subtract(delta)
    assert other == delta and not other.empty and delta.iter_cache_hit_rate == 0.75
    other.iter_gen_alloc_blocks = 9
    other.clear()
    assert other.empty and other.iter_cache_hit_rate == 0.0
    with pytest.raises(TypeError, match="KVCacheIterationStatsDelta"):
        other.add(runtime.KVCacheStatsDelta())
    found = runtime.SsmSnapshotIterationStatsDelta(4, 3)
    assert found.iter_snapshot_hit_rate == 0.75
    levels = runtime.ReusedBlocksByLevel()
    levels.add(runtime.ReusedBlocksByLevel([1], [0, 2]))
    assert levels == runtime.ReusedBlocksByLevel([1], [0, 2]) and not levels.empty and runtime.ReusedBlocksByLevel().empty


def test_small_names() -> None:
    assert runtime.CACHE_LEVEL1 == 1 and runtime.GPU_LEVEL == 0 and runtime.BACKEND == "cpp" and runtime._cpp_introspection is not None
    assert runtime.exact_div(12, 4) == 3 and runtime.typed_range(2, 8, 3) == range(2, 8, 3) and runtime.typed_range(np.int64(2)) == range(2)
    with pytest.raises(ValueError, match="must divide"):
        runtime.exact_div(12, 5)
    assert runtime._KVCache.Status is runtime.KvCacheStatus and runtime.KvCacheStatus.ACTIVE.name == "ACTIVE"
    assert [status.name for status in runtime.PageStatus] == ["LOCKED", "HELD", "DROPPABLE"]
    assert issubclass(runtime.OutOfPagesError, runtime.OutOfMemoryError) and issubclass(runtime.LogicError, RuntimeError)
    assert runtime._Status is runtime.KvCacheStatus
    kinds: tuple[Any, ...] = (runtime.EventBlockHash, runtime.BlockHashLike, runtime.EventTokenId, runtime.IndexSeq)
    assert all(isinstance(value, kind) for value, kind in zip((7, b"key", "ab", memoryview(b"")), kinds, strict=True))
    assert all(hasattr(runtime, name) for name in runtime.__all__)
