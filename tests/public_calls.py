"""Every public call with arguments that are right, for tests that make one of them wrong; found by walking the package.

`find_calls` reads what the package exports: each class's constructor, methods and settable properties, and each function. `CALLS` has
an example of each, by name; what has none and is not left out here with a reason fails the test that walks.
"""

import ast
import asyncio
import enum
import inspect
import logging
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, TypeVar

import hybrid_models
import kv_cache_manager_v2 as library
import numpy as np
from kv_cache_manager_v2 import testing
from small_models import BYTES_PER_TOKEN, attention_layers, config_of

from kv_cache_manager_v2 import (
    AttnLifeCycle,
    BatchDesc,
    BatchPageTable,
    BlockHash,
    BufferConfig,
    BufferId,
    DataRole,
    DecodeBatch,
    DropReason,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheDesc,
    KVCacheEventIndex,
    KVCacheEventManager,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    LogicError,
    PageIndexMode,
    RebalanceConfig,
    RetentionConfig,
    ReuseScope,
    SnapshotPolicy,
    SsmLifeCycle,
    StatisticsClock,
    StridedPages,
    SwaScratchReuseConfig,
    TokenRangeRetention,
    compute_block_hashes,
    plan_capacity,
)
from kv_cache_manager_v2.config.learned_prior import NUM_PRIOR_WEIGHTS, encode_prior
from kv_cache_manager_v2.testing import FakeEngine, SimulatedDevice

BLOCK = 4
T = TypeVar("T")


class Clock(StatisticsClock):
    def seconds(self) -> float:
        return 0.0


class World:
    """What the examples work on. Made when it is asked for, since most wrong calls need little of it, or nothing."""

    make_device: Callable[[], library.Device] = HostDevice

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._managers: list[KVCacheManager] = []

    def _once(self, name: str, make: Callable[[], T]) -> T:
        if name not in self._made:
            self._made[name] = make()
        made: T = self._made[name]
        return made

    def _open(self, config: KVCacheManagerConfig, **arguments: Any) -> KVCacheManager:
        manager = KVCacheManager(config, device=type(self).make_device(), **arguments)
        self._managers.append(manager)
        return manager

    @property
    def config(self) -> KVCacheManagerConfig:
        slot_bytes = 2 * BYTES_PER_TOKEN * BLOCK
        tiers: list[Any] = [GpuCacheTierConfig(64 * slot_bytes), HostCacheTierConfig(64 * slot_bytes)]
        config = KVCacheManagerConfig(BLOCK, tiers, attention_layers([None, 8], BLOCK))
        return self._once("config", lambda: config)

    @property
    def manager(self) -> KVCacheManager:
        return self._once("manager", lambda: self._open(self.config, event_manager=KVCacheEventManager(100)))

    @property
    def listing(self) -> KVCacheManager:
        """Its copies are executed by workers."""
        tiers = [library.ExternalCacheTierConfig([64], copy_workers=1)]

        def make() -> KVCacheManager:
            manager = KVCacheManager(KVCacheManagerConfig(BLOCK, tiers, attention_layers([None, 8], BLOCK)))
            self._managers.append(manager)
            manager.take_copies(0)
            return manager

        return self._once("listing", make)

    def _run(self, manager: KVCacheManager, tokens: list[int], capacity: int) -> KVCache:
        kv_cache = manager.create_kv_cache(input_tokens=tokens)
        assert kv_cache.resume() and kv_cache.resize(capacity)
        kv_cache.commit(tokens[kv_cache.num_committed_tokens :])
        return kv_cache

    @property
    def empty(self) -> KVCache:
        """Active, 8 tokens of room, and none committed."""
        return self._once("empty", lambda: self._run(self.manager, [], 8))

    @property
    def active(self) -> KVCache:
        """8 blocks of room, of which 6 tokens are committed."""
        return self._once("active", lambda: self._run(self.manager, [1, 2, 3, 4, 5, 6], 32))

    @property
    def suspended(self) -> KVCache:
        def make() -> KVCache:
            kv_cache = self._run(self.manager, [9, 8, 7], 8)
            kv_cache.suspend()
            return kv_cache

        return self._once("suspended", make)

    @property
    def foreign(self) -> KVCache:
        """Of another manager."""
        return self._once("foreign", lambda: self._run(self._open(config_of()), [1, 2], 8))

    @property
    def hybrid(self) -> KVCache:
        return self._once("hybrid", lambda: self._run(self._open(hybrid_models.hybrid_config()), [1, 2, 3], 8))

    @property
    def scratch(self) -> KVCache:
        def make() -> KVCache:
            manager = self._open(config_of([None, 8], swa_scratch_reuse=SwaScratchReuseConfig()))
            kv_cache = manager.create_kv_cache()
            assert kv_cache.resume()
            return kv_cache

        return self._once("scratch", make)

    @property
    def lease(self) -> Any:
        return self._once("lease", lambda: self.active.reserve_transfer(0, 1))

    @property
    def table(self) -> BatchPageTable:
        def make() -> BatchPageTable:
            table = BatchPageTable(self.manager, 4, 16)
            table.add(self.active)
            return table

        return self._once("table", make)

    @property
    def device(self) -> SimulatedDevice:
        return self._once("device", lambda: SimulatedDevice(1))

    @property
    def engine(self) -> FakeEngine:
        return self._once("engine", lambda: FakeEngine(self.config, self.manager.device))

    @property
    def index(self) -> KVCacheEventIndex:
        def make() -> KVCacheEventIndex:
            assert self.active.is_active
            index = KVCacheEventIndex()
            index.apply_snapshot(event_manager(self).snapshot())
            return index

        return self._once("index", make)

    def fingerprint(self) -> Any:
        """What no refused call may change."""
        managers = [(manager.state_digest(), manager.describe()) for manager in self._managers]
        sequences = [
            (name, made.status, made.capacity, made.history_length, made.committed_tokens, made.cuda_stream, made.beam_width)
            for name, made in self._made.items()
            if isinstance(made, KVCache)
        ]
        return managers, sequences

    def close(self) -> None:
        for manager in self._managers:
            for lease in manager.open_leases:
                lease.settle()
            for kv_cache in manager.open_kv_caches:
                kv_cache.close()
            manager.shutdown()
        if "device" in self._made:
            self._made["device"].close()


_STALE: dict[str, Any] = {"history_length": 20, "tokens_per_block": 4}
Example = tuple[Callable[..., Any], dict[str, Any]]


def set_property(owner: Any, name: str) -> Callable[..., Any]:
    def assign(**arguments: Any) -> None:
        (value,) = arguments.values()
        setattr(owner, name, value)

    return assign


def _config_fields(world: World, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "tokens_per_block": BLOCK,
        "cache_tiers": world.config.cache_tiers,
        "layers": world.config.layers,
        "max_util_for_resume": 0.9,
        "enable_partial_reuse": True,
        "constraints": [BatchDesc([KVCacheDesc(4, 0)])],
        "typical_step": BatchDesc([KVCacheDesc(4, 0)]),
        "initial_pool_ratio": [1.0],
        "swa_scratch_reuse": SwaScratchReuseConfig(),
        "reuse_match_backoff": 0,
        "reserve_null_slot": False,
        "enable_stats": True,
        "block_times_sampling": 0.5,
        "snapshot_policy": SnapshotPolicy(),
        "max_state_replay_tokens": 0,
        "state_checkpoints": 0,
        "rebalance": RebalanceConfig(),
        "max_pinned_share": 0.5,
        "min_offload_priority": 0,
        "write_policy": "back",
        "max_sequence_length": 4096,
        "allow_seq_rebasing": False,
        "max_slot_padding": 0.5,
        "learned_prior": encode_prior([0.25] * NUM_PRIOR_WEIGHTS),
    }
    return fields | changes


def _with_input(world: World) -> KVCache:
    kv_cache = world.manager.create_kv_cache(input_tokens=[31, 32, 33])
    assert kv_cache.resume() and kv_cache.resize(8)
    return kv_cache


def decode_batch(world: World) -> DecodeBatch:
    batch = DecodeBatch(world.manager, 4, 16)
    batch.join(world.active)
    return batch


_CURVE = "kv" * 20
_SHARED = PageIndexMode.SHARED
_KEY = DataRole("key")
_GROUP = {"layer_group_id": 0, "beam_id": 0}
_LAYER = {"layer_id": 0, "data_role": _KEY}

_EXAMPLES: dict[str, Callable[[World], Example | dict[str, Any]]] = {
    # -- configuration ------------------------------------------------------------------------------------------------
    "KVCacheManagerConfig": lambda w: _config_fields(w),
    "GpuCacheTierConfig": lambda w: {"quota": 4096, "eviction_policy": library.EvictionPolicy.LRU, "max_quota": 8192},
    "ExternalCacheTierConfig": lambda w: {
        "slot_counts": [64], "eviction_policy": library.EvictionPolicy.LRU, "copy_workers": 1, "tier": library.CacheTier.GPU_MEM,
    },
    "HostCacheTierConfig": lambda w: {
        "quota": 4096, "eviction_policy": library.EvictionPolicy.LRU, "max_quota": 8192, "min_reuse_probability": 0.5,
    },
    "DiskCacheTierConfig": lambda w: {
        "quota": 4096, "path": "/tmp", "eviction_policy": library.EvictionPolicy.LRU, "durable": True,
        "model_id": library.ModelId("a model"), "min_reuse_probability": 0.0, "more_paths": ("/var",), "read_only": True,
    },
    "ModelId": lambda w: {
        "name": "a model", "revision": "r7", "dtype": "bf16", "details": {"rope": "yarn"}, "salt_domain": "a tenant", "heads": (0, 8),
    },
    "BufferConfig": lambda w: {"role": _KEY, "size": 64, "tokens_per_block_override": 2},
    "BufferConfig.expansion": lambda w: (BufferConfig(_KEY, 8).expansion, {"tokens_per_block": 4}),
    "AttentionLayerConfig": lambda w: {
        "layer_id": LayerId(0), "buffers": [BufferConfig(_KEY, 64)], "sliding_window_size": 8, "num_sink_tokens": 1, "part": 2,
    },
    "SsmLayerConfig": lambda w: {"layer_id": LayerId(0), "buffers": [BufferConfig(_KEY, 64)]},
    "SnapshotPolicy": lambda w: {
        "every_num_blocks": 2, "at_prompt_end": True, "at_branches": True, "max_per_path": 3, "at_close": False, "at_commits": True,
        "placement": "learned",
    },
    "RebalanceConfig": lambda w: {"threshold": 0.1, "cool_down_seconds": 1.0, "min_samples": 2, "smoothing": 0.1},
    "SwaScratchReuseConfig": lambda w: {"max_rewind_len": 2},
    "TokenRangeRetention": lambda w: {"begin": 0, "end": 8, "priority": 50, "duration_seconds": 1.0, "kind": 3},
    "RetentionConfig": lambda w: {"ranges": [TokenRangeRetention(0, 4, 50)], "generated_priority": 40, "generated_duration_seconds": 1.0},
    "KVCacheDesc": lambda w: {"capacity": 8, "history_length": 4},
    "BatchDesc": lambda w: {"kv_caches": [KVCacheDesc(8, 4)], "system_prompt_length": 4},
    "ReuseScope": lambda w: {"lora_id": 3, "salt": "a"},
    "HalfOpenRange": lambda w: {"beg": 1, "end": 4},
    # -- the manager --------------------------------------------------------------------------------------------------
    "KVCacheManager": lambda w: {
        "config": w.config, "device": HostDevice(), "journal": None, "debug_fill": [*library.DebugFill][0],
        "event_manager": KVCacheEventManager(4), "cold_page_codec": None,
    },
    "KVCacheManager.create_kv_cache": lambda w: {
        "reuse_scope": ReuseScope(1), "input_tokens": [1, 2, 3], "id": 7, "custom_priority_callback": lambda ordinal, life_cycle: 35,
        "expected_prompt_length": 3, "count_in_statistics": True, "snapshot_positions": [2], "retention": RetentionConfig(),
        "exact": True,
    },
    "KVCacheManager.ready": lambda w: (lambda **given: asyncio.run(w.manager.ready(**given)), {"kv_cache": w.active}),
    "KVCacheManager.resize_batch": lambda w: {"kv_caches": [w.active], "capacities": [33], "history_lengths": [6]},
    "KVCacheManager.find_refusal": lambda w: {"kv_caches": [w.active], "capacities": [33], "history_lengths": [6]},
    "KVCacheManager.can_finish": lambda w: {"sequences": [w.active], "remaining_tokens": [33], "max_step": 6},
    "KVCacheManager.commit_batch": lambda w: {"kv_caches": [w.active], "tokens": [7]},
    "KVCacheManager.probe_reuse": lambda w: {"reuse_scope": None, "input_tokens": [1, 2, 3], "include_planned": True},
    "KVCacheManager.probe_reuse_batch": lambda w: {"prompts": [[1, 2, 3]], "reuse_scopes": [None], "include_planned": True},
    "KVCacheManager.retain": lambda w: {"input_tokens": [1, 2, 3, 4], "reuse_scope": None, "priority": 50, "duration_seconds": 1.0},
    "KVCacheManager.release": lambda w: {"input_tokens": [1, 2], "reuse_scope": None},
    "KVCacheManager.demote": lambda w: {"input_tokens": [1, 2], "reuse_scope": None},
    "KVCacheManager.prefetch": lambda w: {"input_tokens": [1, 2], "reuse_scope": None, "target_level": 0},
    "KVCacheManager.invalidate_reuse_scope": lambda w: {"reuse_scope": ReuseScope(5)},
    "KVCacheManager.keep_restored": lambda w: {"names": []},
    "KVCacheManager.take_copies": lambda w: (w.listing.take_copies, {"after": 1}),
    "KVCacheManager.report_copies": lambda w: (w.listing.report_copies, {"number": 1, "worker": 0, "layout": w.listing.copy_layout}),
    "KVCacheManager.advance_clock": lambda w: {"seconds": 0.5},
    "KVCacheManager.get_quota": lambda w: {"level": 0},
    "KVCacheManager.resize": lambda w: {"cache_level": 0, "quota": w.manager.get_quota(0), "best_efforts": False},
    "KVCacheManager.record_block_times": lambda w: {"clock": Clock()},
    "KVCacheManager.get_storage_statistics": lambda w: {"level": 0},
    "KVCacheManager.get_pool_group_descs": lambda w: {"level": 0},
    "KVCacheManager.get_layer_group_id": lambda w: {"layer_id": 0},
    "KVCacheManager.state_layer_group_id": lambda w: (w.hybrid.manager.state_layer_group_id, {"layer_id": hybrid_models.FIRST_STATE_LAYER}),
    "KVCacheManager.life_cycle_of_group": lambda w: {"layer_group_id": 0},
    "KVCacheManager.get_mem_pool_base_address": lambda w: _LAYER | {"index_mode": _SHARED},
    "KVCacheManager.get_page_stride": lambda w: _LAYER,
    "KVCacheManager.get_page_index_scale": lambda w: _LAYER,
    "KVCacheManager.get_page_index_upper_bound": lambda w: _LAYER,
    "KVCacheManager.get_page_index_converter": lambda w: _LAYER,
    "KVCacheManager.shutdown": lambda w: {"drain_seconds": 1.5},
    "KVCacheManager.supports_index_mode": lambda w: {"mode": _SHARED},
    "KVCacheManager.get_aggregated_pages": lambda w: {"buffer_ids": [BufferId(LayerId(0), _KEY)]},
    "KVCacheManager.pool_view": lambda w: _LAYER | {"dtype": "uint8", "index_mode": _SHARED, "by_slot": False},
    "KVCacheManager.clamp_max_seq_len_for_mem": lambda w: {"batch_size": 2, "token_num_upper_bound": 100},
    # -- sequences ----------------------------------------------------------------------------------------------------
    "KVCache.resume": lambda w: (w.suspended.resume, {"cuda_stream": 0, "wait": True}),
    "KVCache.prefetch": lambda w: (w.suspended.prefetch, {"target_level": 0}),
    "KVCache.rewind": lambda w: (w.suspended.rewind, {"num_tokens": 3}),
    "KVCache.close": lambda w: (w.suspended.close, {"continues": True}),
    "KVCache.stop_committing": lambda w: {"continues": False},
    "KVCache.fork": lambda w: {"id": 5},
    "KVCache.set_residency_window": lambda w: (
        w.suspended.set_residency_window, {"layer_group_id": 0, "window_size": None, "num_sink_tokens": 0}
    ),
    "KVCache.get_residency_window": lambda w: {"layer_group_id": 0},
    "KVCache.require_blocks": lambda w: {"layer_group_id": 0, "ordinals": [0]},
    "KVCache.get_block_levels": lambda w: {"layer_group_id": 0},
    "KVCache.get_block_slots": lambda w: {"layer_group_id": 0},
    "KVCache.resize": lambda w: {"capacity": 33, "history_length": 7},
    "KVCache.find_refusal": lambda w: {"capacity": 33, "history_length": 7},
    "KVCache.capacity=": lambda w: {"capacity": 33},
    "KVCache.history_length=": lambda w: {"history_length": 7},
    "KVCache.cuda_stream=": lambda w: {"cuda_stream": 0},
    "KVCache.beam_width=": lambda w: {"beam_width": 2},
    "KVCache.enable_swa_scratch_reuse=": lambda w: (set_property(w.scratch, "enable_swa_scratch_reuse"), {"enable": False}),
    "KVCache.reorder_beams": lambda w: {"parents": [0]},
    "KVCache.commit": lambda w: {"accepted_input_tokens": [7], "beam_search_indices": [0], "num_heads": 1, "is_end": True},
    "KVCache.publish_planned": lambda w: (_with_input(w).publish_planned, {"tokens": [4, 5, 6, 7]}),
    "KVCache.commit_input": lambda w: (_with_input(w).commit_input, {"num_tokens": 2}),
    "KVCache.commit_tree": lambda w: {"tokens": [7], "accepted_positions": [6], "num_heads": 1},
    "KVCache.reserve_transfer": lambda w: {"begin_block": 0, "end_block": 1},
    "KVCache.take_changed_blocks": lambda w: _GROUP,
    "KVCache.get_base_page_indices": lambda w: _GROUP,
    "KVCache.set_base_page_index_buf": lambda w: _GROUP | {"buf": np.zeros(16, np.int32)},
    "KVCache.get_aggregated_page_indices": lambda w: _GROUP | {"valid_only": False},
    "KVCache.get_ssm_block_base_index": lambda w: (
        w.hybrid.get_ssm_block_base_index,
        {"layer_group_id": w.hybrid.manager.get_layer_group_id(hybrid_models.FIRST_STATE_LAYER), "beam_id": 0, "length": 3},
    ),
    "KVCache.supports_index_mode": lambda w: {"mode": _SHARED},
    "KVCache.get_scratch_desc": lambda w: {"layer_group_id": 0},
    "TransferLease.get_page_indices": lambda w: {"layer_group_id": 0},
    "TransferLease.settle": lambda w: {"cuda_stream": 0},
    # -- kernels ------------------------------------------------------------------------------------------------------
    "BatchPageTable": lambda w: {
        "manager": w.manager, "max_num_sequences": 4, "max_num_blocks": 16, "seq_lens": np.zeros(4, np.int32),
        "query_start_loc": np.zeros(5, np.int32), "kv_start_loc": np.zeros(5, np.int32), "buffers": 1,
    },
    "BatchPageTable.add_block_table": lambda w: {"pages": StridedPages(0), "filler": 0, "out": np.zeros((4, 16), np.int32)},
    "BatchPageTable.add_csr": lambda w: {
        "pages": StridedPages(0), "max_num_pages": 64, "indptr": np.zeros(5, np.int32), "indices": np.zeros(64, np.int32),
        "last_page_len": np.zeros(4, np.int32),
    },
    "BatchPageTable.add_slot_mapping": lambda w: {"pages": StridedPages(0), "max_num_input_tokens": 64, "out": np.zeros(64, np.int64)},
    "BatchPageTable.add_offset_table": lambda w: {"key_role": _KEY, "value_role": DataRole("value"), "scale_role": None, "out": None},
    "BatchPageTable.add": lambda w: (BatchPageTable(w.manager, 4, 16).add, {"kv_cache": w.active, "beam_id": 0}),
    "BatchPageTable.remove": lambda w: {"kv_cache": w.active, "beam_id": 0},
    "BatchPageTable.row_of": lambda w: {"kv_cache": w.active, "beam_id": 0},
    "BatchPageTable.swap_rows": lambda w: {"first": 0, "second": 0},
    "BatchPageTable.update": lambda w: {"num_input_tokens": [2]},
    "DecodeBatch": lambda w: {"manager": w.manager, "max_num_sequences": 4, "max_num_blocks": 16},
    "DecodeBatch.join": lambda w: (DecodeBatch(w.manager, 4, 16).join, {"kv_cache": w.active}),
    "DecodeBatch.leave": lambda w: (decode_batch(w).leave, {"kv_cache": w.active}),
    "DecodeBatch.step": lambda w: (decode_batch(w).step, {"tokens": [7], "num_inputs": 1}),
    "StridedPages": lambda w: {"layer_group_id": 0},
    "DensePages": lambda w: _LAYER | {"index_mode": _SHARED},
    "PageIndexConverter": lambda w: {"scale": 4, "expansion": 1, "layer_offset": 1, "scratch_pages_per_block": 1},
    "PageIndexConverter.convert_into": lambda w: (
        w.manager.get_page_index_converter(0, _KEY).convert_into,
        {"base_indices": np.zeros(4, np.int32), "out": np.zeros(4, np.int32), "index_mode": _SHARED, "scratch": None},
    ),
    "PageIndexConverter.convert_batch_into": lambda w: (
        w.manager.get_page_index_converter(0, _KEY).convert_batch_into,
        {
            "base_indices": np.zeros((2, 4), np.int32),
            "out": np.zeros((2, 4), np.int32),
            "index_mode": _SHARED,
            "scratch": [None, None],
        },
    ),
    # -- events -------------------------------------------------------------------------------------------------------
    "KVCacheEventManager": lambda w: {"max_kv_event_entries": 8, "hash_algo": "sha256", "attention_dp_rank": 1, "partial_blocks": True},
    "KVCacheEventManager.get_latest_events": lambda w: (KVCacheEventManager(8).get_latest_events, {"timeout_ms": 0.0}),
    "KVCacheEventManager.snapshot": lambda w: (event_manager(w).snapshot, {"flush": True}),
    "KVCacheEventIndex": lambda w: {"max_waiting_events": 8},
    "KVCacheEventIndex.apply": lambda w: {"events": []},
    "KVCacheEventIndex.apply_snapshot": lambda w: {"snapshot": event_manager(w).snapshot()},
    "KVCacheEventIndex.find": lambda w: {"block_hash": _block_hash()},
    "KVCacheEventIndex.count_leading_blocks": lambda w: {"block_hashes": [_block_hash()], "layer_group_id": 0},
    # -- functions ----------------------------------------------------------------------------------------------------
    "compute_block_hashes": lambda w: {"tokens": [1, 2], "tokens_per_block": 2, "reuse_scope": None, "hash_algo": "sha256"},
    "gen_multimodal_cache_key_tokens": lambda w: {"id_offset": 100, "multimodal_data_digest": b"digest", "num_tokens": 3},
    "config_from_model": lambda w: {
        "source": {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32},
        "cache_tiers": [GpuCacheTierConfig(1 << 20)], "tokens_per_block": 4, "dtype": "bf16", "tensor_parallel": 1, "pipeline_parallel": 1,
        "pipeline_stage": None, "family": None, "num_sink_tokens": 0,
    },
    "load_config": lambda w: {"path": str(Path(__file__).with_name("small_config.json"))},
    "plan_capacity": lambda w: {"config": w.config, "batch": BatchDesc([KVCacheDesc(4, 0)]), "cold_page_codec": None},
    "CapacityPlan.max_batch_size": lambda w: (
        plan_capacity(w.config).max_batch_size,
        {"capacity": 8, "history_length": 4, "system_prompt_length": 0},
    ),
    "CapacityPlan.max_mixes": lambda w: (plan_capacity(w.config).max_mixes, {"batch": BatchDesc([KVCacheDesc(8, 7), KVCacheDesc(4, 3)])}),
    "compute_scratch_range": lambda w: {
        "history_length": 0, "capacity": 16, "life_cycle": w.manager.life_cycle_of_group(0), "tokens_per_block": 4, "max_rewind_len": 0,
    },
    "AttnLifeCycle.make": lambda w: (AttnLifeCycle.make, {"window_size": 8, "num_sink_tokens": 4, "tokens_per_block": 4, "part": 1}),
    "AttnLifeCycle.compute_stale_range": lambda w: (AttnLifeCycle(8).compute_stale_range, _STALE),
    "AttnLifeCycle.get_stale_range": lambda w: (AttnLifeCycle(8).get_stale_range, _STALE),
    "SsmLifeCycle.compute_stale_range": lambda w: (SsmLifeCycle().compute_stale_range, _STALE),
    "SsmLifeCycle.get_stale_range": lambda w: (SsmLifeCycle().get_stale_range, _STALE),
    "UsageStatistics.count_transfers": lambda w: (w.manager.get_statistics().count_transfers, {"kind": "copied"}),
    "UsageStatistics.count_drops": lambda w: (w.manager.get_statistics().count_drops, {"reason": DropReason.CAPACITY}),
    "StatisticsLog": lambda w: {"manager": w.manager, "logger": logging.getLogger("mine"), "level": logging.INFO},
    "PrometheusExporter": lambda w: {
        "manager": w.manager, "registry": registry(), "labels": {"rank": "0"}, "event_manager": event_manager(w), "shared_level": None,
        "clock": Clock(),
    },
    "KVCacheEventPublisher": lambda w: {
        "event_manager": event_manager(w), "bind": "inproc://unused", "endpoint": "inproc://events", "replay_endpoint": "inproc://replay",
        "snapshot_endpoint": "inproc://snapshots", "connect": "inproc://router", "curve": _CURVE, "curve_consumers": [_CURVE],
        "heartbeat_seconds": 1.0, "topic": "a", "data_parallel_rank": 0, "dialect": "map", "first_sequence": 0, "buffer_batches": 4,
        "high_water_mark": 8, "lora_names": {1: "an adapter"}, "linger_ms": 0,
    },
    "default_device": lambda w: {"driver": None, "gpu_folder": str(Path(__file__).parent)},
    # -- testing ------------------------------------------------------------------------------------------------------
    "HostDevice": lambda w: {"granularity_bytes": 4096, "files": None, "num_disk_threads": 2, "clock": None, "calls_wait_for_disk": True},
    "SimulatedDevice": lambda w: {
        "seed": 1, "eager": None, "total_bytes": 1 << 20, "granularity_bytes": 64, "log_length": 16, "is_external": False,
    },
    "SimulatedDevice.step": lambda w: {"max_operations": 1},
    "FakeEngine": lambda w: {"config": w.config, "device": w.manager.device, "raise_on_mismatch": True, "index_mode": _SHARED},
    "FakeEngine.execute": lambda w: {"steps": [], "stream": 0},
    "FakeEngine.prefill": lambda w: {"kv_cache": w.empty, "prompt": [21, 22, 23, 24, 25, 26, 27, 28], "chunk_tokens": 3},
    "FakeEngine.replay_states": lambda w: {"kv_cache": w.active, "tokens": [1, 2], "state_tokens": 2, "stream": 0},
    "Step": lambda w: {"kv_cache": w.active, "input": [7], "history": [1, 2, 3, 4, 5, 6], "parents": [-1]},
}


_OWNERS = {
    "KVCacheManager": "manager", "KVCache": "active", "TransferLease": "lease", "BatchPageTable": "table", "KVCacheEventIndex": "index",
    "SimulatedDevice": "device", "FakeEngine": "engine",
}


def _example(name: str, world: World) -> Example:
    """An example that has no function of its own is a call of what `_OWNERS` names, or of a public name."""
    found = _EXAMPLES[name](world)
    if isinstance(found, tuple):
        return found
    owner, _dot, member = name.partition(".")
    if member == "":
        return getattr(library, name, None) or getattr(testing, name), found
    handle = getattr(world, _OWNERS[owner])
    return set_property(handle, member[:-1]) if member.endswith("=") else getattr(handle, member), found


CALLS: dict[str, Callable[[World], Example]] = {name: partial(_example, name) for name in _EXAMPLES}


def event_manager(world: World) -> KVCacheEventManager:
    manager = world.manager.event_manager
    assert manager is not None
    return manager


def registry() -> Any:
    return __import__("prometheus_client").CollectorRegistry()


def _block_hash() -> BlockHash:
    return compute_block_hashes([1, 2, 3, 4], 4)[0]


_RESULT = "made by the library, and given to the user"
_PORT = "a device is called by the library; tests/contract says how"
_INSIDE = "called by the library only"
_OPTIONAL = "needs a GPU; its own tests give it wrong arguments"

LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(
        (
            "AggregatedPageDesc AttnLifeCycle BlockStatistics BlockTimes CapacityPlan CoalescedBuffer CommittedBlockDrop DropStatistics "
            "ExpandedBuffer FinishPlan HintResult IndexedBlock KVCache KVCacheCreatedData KVCacheEvent "
            "KVCacheEventData KVCacheEventDiff KVCacheEventSnapshot KVCacheRemovedData KVCacheStoredBlockData KVCacheStoredData "
            "KVCacheUpdatedData LevelCapacity "
            "LifeCycleRegistry MatchedTokens PoolDesc PoolGroupCapacity PoolGroupDesc "
            "PoolView PromptStatistics Refusal ScratchDesc SlotDesc SlotDescVariant SsmLifeCycle StorageStatistics "
            "TransferStatistics TransferTimes UsageStatistics AllBlocksCleared BlockRemoved BlockStored WireBatch TransferLease "
            "BlockTable CsrTable OffsetTable SlotMapping TimeHistogram Wakeup"
        ).split(),
        _RESULT,
    ),
    **dict.fromkeys(("CopyBatch", "CopyLog", "MemoryAccess"), _PORT),
    **dict.fromkeys(("CudaDevice", "DevicePageIndices"), _OPTIONAL),
}
"""Constructors and functions, and of the classes of `_METHODS_LEFT_OUT` everything."""

_METHODS_LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(("CopyBatch", "CopyLog", "CudaDevice", "ExternalDevice", "HostDevice", "Device"), _PORT),
    **dict.fromkeys(
        (
            "BlockTable CsrTable OffsetTable SlotMapping BlockTimes TransferTimes LifeCycleRegistry TimeHistogram"
        ).split(),
        _INSIDE,
    ),
    "DevicePageIndices": _OPTIONAL,
}

_SINGLE_METHODS_LEFT_OUT: dict[str, str] = {
    "KVCacheEventManager.bind": _INSIDE,
    **dict.fromkeys([f"{kind}.compute_stale_{end}" for kind in ("AttnLifeCycle", "SsmLifeCycle") for end in ("beg", "end")], _INSIDE),
    **dict.fromkeys(
        [f"SimulatedDevice.{name}" for name in dir(library.Device)]
        + ["SimulatedDevice." + name for name in "hold release hold_stream release_stream".split()]
        + ["SimulatedDevice." + name for name in "set_memory_limit mapped_bytes record_host_access host_read host_write copy_own".split()],
        _PORT,
    ),
}


@dataclass(frozen=True)
class Parameter:
    name: str
    annotation: str


@dataclass(frozen=True)
class Call:
    name: str
    parameters: tuple[Parameter, ...]


@cache
def _parsed(module: str) -> ast.Module:
    source = Path(library.__file__ or "").parent.parent / (module.replace(".", "/") + ".py")
    return ast.parse(source.read_text())


def _class_node(cls: type) -> ast.ClassDef | None:
    for node in _parsed(cls.__module__).body:
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            return node
    return None


def _is_abstract(cls: type) -> bool:
    """For users to fill in. Compiled classes do not say so."""
    node = _class_node(cls)
    return node is not None and "abstractmethod" in ast.unparse(node)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, is_method: bool) -> tuple[Parameter, ...]:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return tuple(
        [Parameter(one.arg, "object" if one.annotation is None else ast.unparse(one.annotation)) for one in arguments[is_method:]]
    )


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any(["dataclass" in ast.unparse(decorator) for decorator in node.decorator_list])


def calls_of_class(cls: type) -> dict[str, Call]:
    found: dict[str, Call] = {}
    for base in reversed([base for base in cls.__mro__ if base.__module__.startswith(library.__name__)]):
        node = _class_node(base)
        if node is None:
            continue
        if _is_dataclass(node):
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and "ClassVar" not in ast.unparse(one.annotation)]
            parameters = tuple([Parameter(ast.unparse(one.target), ast.unparse(one.annotation)) for one in fields])
            found[cls.__name__] = Call(cls.__name__, parameters)
        for member in node.body:
            if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            decorators = [ast.unparse(decorator) for decorator in member.decorator_list]
            if member.name == "__init__":
                found[cls.__name__] = Call(cls.__name__, _parameters(member, True))
            elif any([decorator.endswith(".setter") for decorator in decorators]):
                name = f"{cls.__name__}.{member.name}="
                found[name] = Call(name, _parameters(member, True))
            elif not member.name.startswith("_") and "property" not in decorators:
                name = f"{cls.__name__}.{member.name}"
                found[name] = Call(name, _parameters(member, "staticmethod" not in decorators))
    return found


def _handles(world: World) -> dict[str, Any]:
    """One of each class that uses a manager, all of the same one."""
    manager = world.manager
    world.suspended.stop_committing()
    return {
        "KVCacheManager": manager,
        "KVCache": world.active,
        "TransferLease": world.lease,
        "CommittedBlockDrop": world.suspended.plan_committed_block_drop(),
        "PoolView": manager.pool_view(LayerId(0), _KEY),
        "BatchPageTable": world.table,
        "DecodeBatch": decode_batch(world),
        "KVCacheEventManager": event_manager(world),
        "StatisticsLog": library.StatisticsLog(manager),
        "PrometheusExporter": library.PrometheusExporter(manager, registry=registry()),
    }


def find_served(uses: dict[str, Callable[[], object]], reason: str, answered: Container[str]) -> list[str]:
    """Calls each; those that are not refused with a `LogicError` that names the reason. Properties, and what is ``answered``, may be."""
    wrong: list[str] = []
    for name, use in uses.items():
        try:
            use()
        except LogicError as error:
            if reason not in str(error):
                wrong.append(f"{name}: {error}")
        except BaseException as error:
            wrong.append(f"{name}: {error!r}")
        else:
            if name not in answered and not name.endswith("(property)"):
                wrong.append(f"{name} was served")
    return wrong


def make_uses(world: World) -> dict[str, Callable[[], Any]]:
    """Every public call and property of what works with one manager, ready to be called, by name; constructors that take it too."""
    uses: dict[str, Callable[[], Any]] = {}
    for class_name, handle in _handles(world).items():
        for name, call in calls_of_class(type(handle)).items():
            member = name.partition(".")[2].rstrip("=")
            if member == "" or name in ("KVCacheEventManager.bind", "KVCacheEventManager.require_unbound"):
                continue
            arguments = CALLS[name](world)[1] if name in CALLS else {}
            uses[name] = partial(set_property(handle, member) if name.endswith("=") else getattr(handle, member), **arguments)
        for member in [member for member in dir(type(handle)) if not member.startswith("_")]:
            if isinstance(inspect.getattr_static(handle, member), property | GetSetDescriptorType | MemberDescriptorType):
                uses[f"{class_name}.{member} (property)"] = partial(getattr, handle, member)
    for name in ("BatchPageTable", "DecodeBatch"):
        function, arguments = CALLS[name](world)
        uses[name] = partial(function, **arguments)
    uses["KVCacheManager.state_layer_group_id"] = partial(world.hybrid.manager.state_layer_group_id, hybrid_models.FIRST_STATE_LAYER)
    uses["KVCacheManager.ready"] = lambda: asyncio.run(world.manager.ready(world.active))
    return uses


def _is_left_out(name: str) -> bool:
    return name in LEFT_OUT or name in _SINGLE_METHODS_LEFT_OUT or ("." in name and name.split(".")[0] in _METHODS_LEFT_OUT)


def find_calls() -> list[Call]:
    """Every public call with a parameter that is not left out, by name."""
    found: dict[str, Call] = {}
    for module in (library, testing):
        names = getattr(module, "__all__", None) or [name for name in vars(module) if name[0].isupper()]
        for name in names:
            value = getattr(module, name)
            if inspect.isclass(value) and value.__name__ == name and value.__module__.startswith(library.__name__):
                if not issubclass(value, (BaseException, enum.Enum)) and not _is_abstract(value):
                    found.update(calls_of_class(value))
            elif callable(value) and getattr(value, "__module__", "").startswith(library.__name__) and not inspect.isclass(value):
                for node in _parsed(value.__module__).body:
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                        found[name] = Call(name, _parameters(node, False))
    return sorted([call for call in found.values() if call.parameters and not _is_left_out(call.name)], key=lambda call: call.name)
