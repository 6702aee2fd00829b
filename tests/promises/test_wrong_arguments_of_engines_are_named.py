"""An engine written for TensorRT-LLM that gives a wrong argument is told which: each callable and setter of `compat.tensorrt_llm`, as
docs/tensorrt-llm.md lists them, with an object of no use, a float and a text for each of its arguments."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorrt_llm_adapter import KEY, Adapter, Request, attention_layer, state_layer

import kv_cache_manager_v2 as core
import kv_cache_manager_v2.compat.tensorrt_llm as runtime
from kv_cache_manager_v2 import LogicError, OutOfPagesError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tensorrt-llm.md"
ROW = re.compile(r"\| `(\w+)` \| yes \| (`\(.*\)`|attribute, can be set) \| `test_\w+` \|")


def test_misspelled_fields_are_named() -> None:
    """Of each configuration, where they are set: no engine runs with a default that it meant to change."""
    layer = attention_layer(0, 4)
    config = runtime.KVCacheManagerConfig(4, [runtime.GpuCacheTierConfig(1 << 20), runtime.DiskCacheTierConfig(0, "/tmp")], [layer])
    parts = [config, *config.cache_tiers, layer, *layer.buffers, runtime.HostCacheTierConfig(1), runtime.SwaScratchReuseConfig()]
    for part in [*parts, state_layer(1), runtime.KVCacheDesc(2, 1), runtime.BatchDesc([runtime.KVCacheDesc(2, 1)])]:
        with pytest.raises(AttributeError, match=f"{type(part).__name__} has no field qouta; its fields are "):
            part.qouta = 3


def test_objects_of_the_library_itself_are_told_from_the_runtime_s() -> None:
    loose: Any = runtime
    buffers = [loose.BufferConfig("key", 64)]
    own = "it must be that of kv_cache_manager_v2.compat.tensorrt_llm"
    tier = loose.GpuCacheTierConfig(1 << 20)
    config = loose.KVCacheManagerConfig(4, [tier], [loose.AttentionLayerConfig(0, buffers)])
    with pytest.raises(TypeError, match=f"event_manager must be .*, not kv_cache_manager_v2.events.*; {own}"):
        loose.KVCacheManager(config, core.KVCacheEventManager(3))
    with pytest.raises(TypeError, match=f"config must be .*, not kv_cache_manager_v2.config.*; {own}"):
        loose.KVCacheManager(config.to_core())
    with pytest.raises(TypeError, match=f"layers.0. must be .*, not kv_cache_manager_v2.config.*; {own}"):
        loose.KVCacheManagerConfig(4, [tier], [core.AttentionLayerConfig(core.LayerId(0), [core.BufferConfig("key", 64)])])
    with pytest.raises(TypeError, match=f"cache_tiers.0. must be .*, not kv_cache_manager_v2.config.*; {own}"):
        loose.KVCacheManagerConfig(4, [core.GpuCacheTierConfig(1 << 20)], [loose.AttentionLayerConfig(0, buffers)])
    with pytest.raises(TypeError, match=f"buffers must be .*, not kv_cache_manager_v2.config.*; {own}"):
        loose.AttentionLayerConfig(0, [core.BufferConfig("key", 64)])
    with pytest.raises(TypeError, match=f"swa_scratch_reuse must be .*, not kv_cache_manager_v2.config.*; {own}"):
        loose.KVCacheManagerConfig(4, [tier], config.layers, swa_scratch_reuse=core.SwaScratchReuseConfig())


def test_a_manager_keeps_its_own_configuration() -> None:
    config: Any = runtime.KVCacheManagerConfig(4, [runtime.GpuCacheTierConfig(1 << 20)], [attention_layer(0, 4)])
    with runtime.KVCacheManager(config) as manager:
        before = repr(config)
        config.tokens_per_block = 16
        config.layers.append(attention_layer(1, 4))
        config.cache_tiers[0].quota = 5
        assert repr(manager.init_config) == before


def test_messages_call_a_sequence_what_the_engine_calls_it() -> None:
    config = runtime.KVCacheManagerConfig(4, [runtime.GpuCacheTierConfig(1 << 20)], [attention_layer(0, 4)])
    with runtime.KVCacheManager(config) as manager:
        for name, shown in ((4711, "4711"), (-3, "-3"), ("a request", "1"), (1 << 80, "1"), (True, "1"), (None, "1")):
            kv_cache = manager.create_kv_cache(id=name)
            assert kv_cache.id is name
            with pytest.raises(LogicError, match=f"sequence {'[0-9]+' if shown == '1' else shown}: resize"):
                kv_cache.resize(3)
            kv_cache.close()


class Useless:
    """An object that is of no type that any call takes."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "<useless>"


def find_callables() -> list[tuple[str, str, list[str]]]:
    """(class or "", name, arguments) of each row of the page that can be called or set."""
    found: list[tuple[str, str, list[str]]] = []
    owner = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"### `(\w+)`", line):
            owner = heading[1]
        elif line.startswith("## "):
            owner = ""
        elif row := ROW.fullmatch(line):
            inside = row[2][2:-2] if row[2].startswith("`(") else row[1]
            names = [part.partition("=")[0].strip().lstrip("*") for part in re.sub(r"\(\)", "", inside).split(",")]
            found.append((owner, row[1], [name for name in names if name]))
    return found


class World:
    """An adapter with one request in the middle of its prompt; what the examples are called on."""

    def __init__(self) -> None:
        self.adapter = Adapter([attention_layer(0, 4), attention_layer(1, 4, window=8), state_layer(2)], host_quota=1 << 16, events=True)
        self.request = Request(1, list(range(20)))
        self.adapter.prepare_context(self.request)
        self.adapter.context_chunk(self.request, 8)
        self.events: Any = self.adapter.event_manager

    def end(self) -> None:
        self.adapter.event_manager = None
        if self.request.kv_cache.status is not runtime.KvCacheStatus.CLOSED:
            self.request.kv_cache.close()
        self.adapter.impl.shutdown()
        self.adapter.device.close()


CONFIG: dict[str, Any] = {
    "tokens_per_block": 4, "cache_tiers": [runtime.GpuCacheTierConfig(1 << 16)], "layers": [attention_layer(0, 4)],
    "max_util_for_resume": 0.9, "enable_partial_reuse": True, "reuse_match_backoff": 0, "constraints": [], "typical_step": None,
    "initial_pool_ratio": None, "swa_scratch_reuse": None, "commit_min_snapshot": True, "enable_stats": True, "text_only": False,
    "rebalance_min_sampled_kv_caches": 5, "rebalance_cooldown_secs": 1.0, "rebalance_target_ratio_update_interval": 5,
    "rebalance_ratio_threshold": 1.5, "rebalance_moving_average_decay": 0.5,
}  # fmt: skip
GROUP: dict[str, Any] = {"layer_group_id": 0, "beam_idx": 0, "beam_id": 0}
BUFFER: dict[str, Any] = {"layer_id": runtime.LayerId(0), "data_role": KEY}
HASH = b"\1" * 32

EXAMPLES: dict[tuple[str, str], dict[str, Any]] = {
    ("", "AttentionLayerConfig"): {
        "layer_id": runtime.LayerId(0), "buffers": [runtime.BufferConfig(KEY, 32)], "sliding_window_size": 8, "num_sink_tokens": 1
    },
    ("", "AttnLifeCycle"): {"window_size": 8, "num_sink_blocks": 1, "part": 2},
    ("", "BatchDesc"): {"kv_caches": [runtime.KVCacheDesc(8, 0)], "system_prompt_length": 4},
    ("", "BufferConfig"): {"role": KEY, "size": 32, "tokens_per_block_override": 2},
    ("", "create_default_kv_cache_cold_page_codec"): {"dtype": "float16", "values_per_scale": 32, "roles": ["key"]},
    ("", "DiskCacheTierConfig"): {"quota": 4096, "path": "/tmp"},
    ("", "exact_div"): {"x": 8, "y": 4},
    ("", "gen_multimodal_cache_key_tokens"): {
        "id_offset": 1000, "multi_modal_data_digest": HASH, "num_tokens": 3, "token_offset": 0, "uuid": "a"
    },
    ("", "GpuCacheTierConfig"): {"quota": 4096},
    ("", "HostCacheTierConfig"): {"quota": 4096},
    ("", "KVCacheDesc"): {"capacity": 8, "history_length": 4},
    ("", "KVCacheEventManager"): {
        "max_kv_event_entries": 10, "window_size": 0, "attention_dp_rank": 0, "attention_dp_gather": None, "hash_algo": "v2_sha256",
        "window_size_by_layer_group": {0: 8}, "mm_token_id_offset": 1000,
    },
    ("", "KVCacheManagerConfig"): CONFIG,
    ("", "sequence_to_blockchain_keys"): {"tokens_per_block": 4, "reuse_scope": None, "tokens": [1, 2, 3, 4]},
    ("", "SsmLayerConfig"): {"layer_id": runtime.LayerId(0), "buffers": [runtime.BufferConfig(KEY, 32)]},
    ("", "SwaScratchReuseConfig"): {"max_rewind_len": 2},
    ("KVCacheEventManager", "add_created_event"): {"num_blocks_per_cache_level": [1], "layer_group_ids": [0]},
    ("KVCacheEventManager", "add_stored_event"): {"parent_hash": None, "blocks": [], "layer_group_id": 0},
    ("KVCacheEventManager", "add_updated_event"): {
        "block_hash": HASH, "cache_level": runtime.KVCacheEventDiff(0, 1), "priority": None, "layer_group_id": 0
    },
    ("KVCacheEventManager", "add_removed_event"): {"block_hashes": [HASH]},
    ("KVCacheEventManager", "get_latest_events"): {"timeout_ms": 0},
    ("KVCacheEventManager", "set_layer_group_window_sizes"): {"window_sizes": {0: 8}},
    ("KVCacheManager", "clamp_max_seq_len_for_mem"): {"batch_size": 1, "token_num_upper_bound": 100},
    ("KVCacheManager", "clear_stats_dirty"): {"kv_cache_id": 7},
    ("KVCacheManager", "clear_stats_excluded"): {"kv_cache_id": 7},
    ("KVCacheManager", "create_kv_cache"): {
        "reuse_scope": None, "input_tokens": [1, 2, 3], "id": 7, "custom_priority_callback": None, "expected_prompt_length": 4,
        "text_only": False, "enable_request_stats": True,
    },
    ("KVCacheManager", "get_aggregated_pages"): {"buffers": [runtime.BufferId(runtime.LayerId(0), KEY)]},
    ("KVCacheManager", "get_and_reset_iteration_peak_block_stats"): {"cache_level": 0},
    ("KVCacheManager", "get_layer_group_id"): {"layer_id": runtime.LayerId(0)},
    ("KVCacheManager", "get_life_cycle_pool_group_indices"): {"cache_level": 0},
    ("KVCacheManager", "get_mem_pool_base_address"): {**BUFFER, "index_mode": runtime.PageIndexMode.SHARED},
    ("KVCacheManager", "get_page_index_converter"): BUFFER,
    ("KVCacheManager", "get_page_index_scale"): BUFFER,
    ("KVCacheManager", "get_page_index_upper_bound"): BUFFER,
    ("KVCacheManager", "get_page_stride"): BUFFER,
    ("KVCacheManager", "get_quota"): {"cache_level": 0},
    ("KVCacheManager", "get_storage_statistics"): {"cache_level": 0},
    ("KVCacheManager", "is_stats_excluded"): {"kv_cache_id": 7},
    ("KVCacheManager", "mark_stats_dirty"): {"kv_cache_id": 7},
    ("KVCacheManager", "mark_stats_excluded"): {"kv_cache_id": 7},
    ("KVCacheManager", "probe_first_new_block_key"): {"reuse_scope": None, "input_tokens": [1, 2, 3]},
    ("KVCacheManager", "probe_reuse"): {"reuse_scope": None, "input_tokens": [1, 2, 3]},
    ("KVCacheManager", "resize"): {"cache_level": 1, "quota": 1 << 16, "best_efforts": False},
    ("KVCacheManager", "supports_index_mode"): {"mode": runtime.PageIndexMode.SHARED},
    ("_KVCache", "_set_residency_window"): {"layer_group_id": 0, "window_size": None, "num_sink_tokens": 0},
    ("_KVCache", "close"): {"continues": True},
    ("_KVCache", "commit"): {"accepted_input_tokens": [], "beam_search_indices": None, "is_end": False},
    ("_KVCache", "get_aggregated_page_indices"): {**GROUP, "valid_only": True},
    ("_KVCache", "get_base_page_indices"): GROUP,
    ("_KVCache", "get_scratch_desc"): {"layer_group_id": 0},
    ("_KVCache", "get_ssm_block_base_index"): {"layer_group_id": 2, "beam_id": 0, "length": 8},
    ("_KVCache", "prefetch"): {"target": 1},
    ("_KVCache", "resize"): {"capacity": 12, "history_length": 8},
    ("_KVCache", "resume"): {"cuda_stream": 0},
    ("_KVCache", "set_base_page_index_buf"): {"beam_idx": 0, "layer_group_id": 0, "buf": None},
    ("_KVCache", "stop_committing"): {"continues": True},
    ("_KVCache", "supports_index_mode"): {"mode": runtime.PageIndexMode.SHARED},
    ("_KVCache", "beam_width"): {"beam_width": 1},
    ("_KVCache", "capacity"): {"capacity": 12},
    ("_KVCache", "cuda_stream"): {"cuda_stream": 0},
    ("_KVCache", "enable_swa_scratch_reuse"): {"enable_swa_scratch_reuse": False},
    ("_KVCache", "history_length"): {"history_length": 8},
    ("_KVCache", "text_only"): {"text_only": True},
}
RECORDS = re.compile(
    r"\w+(Data|Diff|Delta|Desc|DescVariant|Stats|Statistics|Event|Buffer|Converter|ByLevel|Token|Context|Range|Id|Manager)|typed_range"
)
"""Values that the library makes for the engine to read, and what takes a manager's own values: the core's walk has these."""
OTHER_NAMES = {
    "accepted_input_tokens": "tokens?", "input_tokens": "tokens?", "enable_swa_scratch_reuse": "enable_swa_scratch_reuse|enable",
    "kv_cache_id": "kv_cache_id|id", "data_role": "data_role|role", "buffers": "buffers?",
    "block_hashes": "block_hash(es)?", "window_sizes": "window_sizes?", "window_size_by_layer_group": "window_sizes?(_by_layer_group)?",
}  # fmt: skip
"""What a message may call it as well."""

CALLABLES = [
    (owner, name, parameters)
    for owner, name, parameters in find_callables()
    if parameters and ((owner, name) in EXAMPLES or not (owner == "" and RECORDS.fullmatch(name)))
]
SKIPPED = {("", "ReuseScope")}
"""A tuple, which is checked where it is given to a call."""
CASES = [case for case in CALLABLES if case[:2] not in SKIPPED and "add" != case[1] and "subtract" != case[1]]


MANY: Any = 99
"""An int that is right for some arguments, which there is no room or no stream for then."""
WRONG: list[Any] = [
    Useless(), 1.5, "seven", [Useless()], memoryview(bytearray(b"ab")), np.True_, np.complex64(0.5 + 3j), "\ud800", MANY, 2**70
]  # fmt: skip


def call(world: World, owner: str, name: str, arguments: dict[str, Any]) -> None:
    handles: dict[str, Any] = {"": runtime, "KVCacheManager": world.adapter.impl, "_KVCache": world.request.kv_cache}
    handle = world.events if owner == "KVCacheEventManager" else handles[owner]
    if (owner, name) in {("_KVCache", "resume"), ("_KVCache", "prefetch"), ("_KVCache", "_set_residency_window")}:
        handle.suspend()
    if [name] == [*arguments]:
        setattr(handle, name, arguments[name])
        return
    function: Callable[..., Any] = getattr(handle, name)
    made = function(**arguments)
    if name == "create_kv_cache":
        made.close()


def test_every_callable_has_an_example() -> None:
    assert [case[:2] for case in CASES if case[:2] not in EXAMPLES] == []
    for owner, name, parameters in CASES:
        assert {*EXAMPLES[owner, name]} == {*parameters}, (owner, name)


@pytest.mark.parametrize(("owner", "name"), [case[:2] for case in CASES], ids=[f"{owner}.{name}" for owner, name, _ in CASES])
def test_a_wrong_argument_is_named(owner: str, name: str) -> None:
    world = World()
    call(world, owner, name, EXAMPLES[owner, name])
    failures = []
    for parameter in EXAMPLES[owner, name]:
        named = re.compile(rf"\b({parameter}|{OTHER_NAMES.get(parameter, parameter)})\b")
        for value in WRONG:
            world.end()
            world = World()
            digest = world.adapter.impl.core.state_digest()
            arguments = {**EXAMPLES[owner, name], parameter: value}
            if parameter == "beam_idx":
                arguments.pop("beam_id", None)  # another name of it
            try:
                call(world, owner, name, arguments)
            except (TypeError, ValueError, LogicError, OutOfPagesError) as error:
                must_be_named = isinstance(error, (TypeError, ValueError)) or value is not MANY
                if (must_be_named and not named.search(str(error))) or "object expected" in str(error):
                    failures.append(f"{parameter}={value!r}: unnamed: {type(error).__name__}: {error}")
                if world.adapter.impl.core.state_digest() != digest:
                    failures.append(f"{parameter}={value!r}: changed something")
            except Exception as error:
                failures.append(f"{parameter}={value!r}: {type(error).__name__}: {error}")
            else:
                if isinstance(value, Useless):
                    failures.append(f"{parameter}={value!r}: taken")
    world.end()
    assert failures == []


@pytest.mark.parametrize("field", CONFIG)
def test_a_field_that_was_set_wrongly_is_named_when_the_manager_is_made(field: str) -> None:
    config = runtime.KVCacheManagerConfig(**CONFIG)
    setattr(config, field, Useless())
    with pytest.raises((TypeError, ValueError), match=field):
        runtime.KVCacheManager(config)


@pytest.mark.parametrize("field", ["buffers", "kv_caches"])
def test_a_list_inside_that_was_set_wrongly_is_named_too(field: str) -> None:
    layer, step = attention_layer(0, 4), runtime.BatchDesc([runtime.KVCacheDesc(8, 0)])
    config = runtime.KVCacheManagerConfig(**{**CONFIG, "layers": [layer], "typical_step": step})
    made: Any = layer if field == "buffers" else step
    setattr(made, field, Useless())
    with pytest.raises(TypeError, match=field):
        runtime.KVCacheManager(config)


@pytest.mark.parametrize("field", ["lora_id", "salt"])
def test_a_wrong_scope_is_named_where_it_is_given(field: str) -> None:
    world = World()
    fields: dict[str, Any] = {field: Useless()}
    wrong: Any = runtime.ReuseScope(**fields)
    for ask in (world.adapter.impl.create_kv_cache, world.adapter.impl.probe_reuse):
        with pytest.raises(TypeError, match=field):
            ask(wrong, [1, 2])
    world.end()


def counts_of(record: Any) -> dict[str, Any]:
    return dict.fromkeys(record.__dataclass_fields__, 3)


BLOCK = runtime.KVCacheStoredBlockData(7, [runtime.UniqueToken(1)], 0, 35)
RECORD_EXAMPLES: dict[str, dict[str, Any]] = {
    "KVCacheCreatedData": {"num_blocks_per_cache_level": [4, 2]},
    "KVCacheEvent": {
        "event_id": 1, "data": runtime.KVCacheCreatedData([4]), "window_size": 8, "hash_algo": "v2_sha256", "attention_dp_rank": 0,
        "layer_group_id": 0,
    },
    "KVCacheEventDiff": {"old_value": 0, "new_value": 1},
    "KVCacheIterationStatsDelta": counts_of(runtime.KVCacheIterationStatsDelta),
    "KVCacheRemovedData": {"block_hashes": [HASH]},
    "KVCacheStatsDelta": counts_of(runtime.KVCacheStatsDelta),
    "KVCacheStoredBlockData": {
        "block_hash": HASH, "tokens": [runtime.UniqueToken(1)], "cache_level": 0, "priority": 35, "mm_keys": [], "cache_salt": None
    },
    "KVCacheStoredData": {"parent_hash": HASH, "blocks": [BLOCK]},
    "KVCacheUpdatedData": {"block_hash": HASH, "cache_level": runtime.KVCacheEventDiff(0, 1), "priority": None},
    "MmItemContext": {"digest": HASH, "uuid": "a"},
    "PoolGroupPeakBlockStats": {"available": 1, "unavailable": 2, "evictable": 3},
    "ReusedBlocksByLevel": {"full": [1], "partial": [2]},
    "SsmSnapshotIterationStatsDelta": counts_of(runtime.SsmSnapshotIterationStatsDelta),
    "UniqueToken": {"token_id": 1, "token_extra_id": 0},
}  # fmt: skip
"""Records that the engine makes itself."""
MADE_BY_THE_LIBRARY = (
    "AggregatedPageDesc BufferId CoalescedBuffer ExpandedBuffer HalfOpenRange PageIndexConverter PoolDesc PoolGroupDesc ScratchDesc "
    "SlotDesc SlotDescVariant StorageStatistics typed_range KVCacheManager ReuseScope"
).split()
"""Those, and what other tests give wrong arguments."""


def test_every_record_has_an_example() -> None:
    with_arguments = [found for found in find_callables() if found[0] == "" and found[2]]
    records = {name: parameters for owner, name, parameters in with_arguments if (owner, name) not in EXAMPLES}
    assert {*records} == {*RECORD_EXAMPLES, *MADE_BY_THE_LIBRARY}
    for name, example in RECORD_EXAMPLES.items():
        assert {*example} == {*records[name]}, name
        getattr(runtime, name)(**example)


@pytest.mark.parametrize("name", RECORD_EXAMPLES)
def test_a_wrong_field_of_a_record_is_named(name: str) -> None:
    """An object of no use in every field; a fraction and a text in those that are numbers."""
    failures = []
    for field, right in RECORD_EXAMPLES[name].items():
        named = re.compile(rf"\b({field}|{OTHER_NAMES.get(field, field)})\b")
        wrong: list[Any] = [Useless()]
        if isinstance(right, int) and (name, field) != ("UniqueToken", "token_id"):
            wrong += [1.5, "seven"]
        for value in wrong:
            try:
                getattr(runtime, name)(**{**RECORD_EXAMPLES[name], field: value})
            except (TypeError, ValueError) as error:
                if not named.search(str(error)) or "object expected" in str(error):
                    failures.append(f"{field}={value!r}: unnamed: {error}")
            else:
                failures.append(f"{field}={value!r}: taken")
    assert failures == []


@pytest.mark.parametrize("name", [name for name in RECORD_EXAMPLES if hasattr(getattr(runtime, name), "add")])
def test_counts_are_added_to_their_own_kind_only(name: str) -> None:
    record = getattr(runtime, name)(**RECORD_EXAMPLES[name])
    before = repr(record)
    for wrong in (Useless(), 1, "seven", None, runtime.KVCacheEventDiff(0, 1)):
        for call_name in [one for one in ("add", "subtract") if hasattr(record, one)]:
            with pytest.raises(TypeError, match="other must be a"):
                getattr(record, call_name)(wrong)
    assert repr(record) == before
