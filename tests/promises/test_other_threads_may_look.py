"""Other threads may look while one serves: probes, statistics and scrapes never see half a call, and change no decision.

What a thread finds while a call runs: a probe says that the manager is busy, statistics are those of the call's end. A call that begins
meanwhile waits; it is never refused because another thread looks.
"""

import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from random import Random
from types import GetSetDescriptorType
from typing import Any

import pytest
from kv_cache_manager_v2 import (
    BufferId, BusyError, DataRole, HostDevice, KVCache, KVCacheManager, LayerGroupId, LayerId, LogicError, PageIndexMode,
)  # fmt: skip
from kv_cache_manager_v2.testing.journal_rerun import rerun
from small_models import config_of, manager_of, run_prompt
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config
from unit.device.fake_files import FakeFiles

NUM_REQUESTS = 60


@contextmanager
def threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def serve(manager: KVCacheManager) -> bytes:
    """Requests with shared beginnings in a pool that is too small for them; returns the digest of all decisions."""
    random = Random(7)
    for _ in range(NUM_REQUESTS):
        prompt = [random.randrange(3)] * random.randrange(1, 40)
        with manager.create_kv_cache(input_tokens=prompt) as sequence:
            assert sequence.resume() and sequence.resize(len(prompt) + 8)
            sequence.commit(prompt[sequence.num_committed_tokens :])
            for token in range(8):
                sequence.commit([token])
    return manager.state_digest()


def look(manager: KVCacheManager) -> None:
    usage = manager.get_statistics()
    prompts = usage.prompts
    assert prompts.tokens == sum(prompts.hit_tokens) + sum(prompts.missed_tokens.values())
    for group in manager.get_storage_statistics():
        assert group.total == group.free + group.evictable + group.unavailable
    try:
        manager.probe_reuse(None, [1] * 40)
    except BusyError:
        pass


def serve_watched(
    manager: KVCacheManager, questions: Sequence[Callable[[KVCacheManager], None]], serve: Callable[[KVCacheManager], bytes] = serve
) -> bytes:
    """``serve``, while each question is asked over and over again, from a thread of its own."""
    errors: list[BaseException] = []
    is_over = threading.Event()
    begun = threading.Barrier(len(questions) + 1)

    def watch(ask: Callable[[KVCacheManager], None]) -> None:
        begun.wait()
        try:
            while True:
                ask(manager)
                if is_over.is_set():
                    return
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=watch, args=(ask,)) for ask in questions]
    for thread in threads:
        thread.start()
    begun.wait()
    try:
        digest = serve(manager)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not errors, errors
    return digest


def test_looking_from_other_threads_changes_nothing(tmp_path: Path) -> None:
    config = config_of([None, 8], num_slots=24, block_times_sampling=1.0)
    with KVCacheManager(config, device=HostDevice()) as manager:
        expected = serve(manager)
        usage = manager.get_statistics()
    journal = tmp_path / "watched.kvj"
    with threads_take_turns_often():
        with KVCacheManager(config, device=HostDevice(), journal=journal) as manager:
            assert serve_watched(manager, [look, look, look]) == expected
            assert manager.get_statistics() == usage
            manager.check_invariants()
    # The probes are among what was recorded, each between two calls.
    assert rerun(journal, HostDevice()).num_calls > 10 * NUM_REQUESTS


def list_facts(handle: type) -> list[str]:
    names = [name for name in dir(handle) if name[0] != "_"]
    return [name for name in names if isinstance(getattr(handle, name), (property, GetSetDescriptorType))]


KEY = DataRole("key")
LOOKS: dict[str, Callable[[KVCacheManager], object]] = {
    **{f"KVCacheManager.{name}": attrgetter(name) for name in list_facts(KVCacheManager)},
    "KVCacheManager.check_invariants": KVCacheManager.check_invariants,
    "KVCacheManager.clamp_max_seq_len_for_mem": lambda manager: manager.clamp_max_seq_len_for_mem(2, 100),
    "KVCacheManager.describe": KVCacheManager.describe,
    "KVCacheManager.get_aggregated_pages": lambda manager: list(manager.get_aggregated_pages([BufferId(LayerId(0), KEY)])),
    "KVCacheManager.get_layer_group_id": lambda manager: manager.get_layer_group_id(LayerId(0)),
    "KVCacheManager.get_mem_pool_base_address": lambda manager: manager.get_mem_pool_base_address(LayerId(0), KEY),
    "KVCacheManager.get_page_index_converter": lambda manager: manager.get_page_index_converter(LayerId(0), KEY),
    "KVCacheManager.get_page_index_scale": lambda manager: manager.get_page_index_scale(LayerId(0), KEY),
    "KVCacheManager.get_page_index_upper_bound": lambda manager: manager.get_page_index_upper_bound(LayerId(0), KEY),
    "KVCacheManager.get_page_stride": lambda manager: manager.get_page_stride(LayerId(0), KEY),
    "KVCacheManager.get_pool_group_descs": lambda manager: manager.get_pool_group_descs(0),
    "KVCacheManager.get_quota": lambda manager: manager.get_quota(0),
    "KVCacheManager.get_statistics": KVCacheManager.get_statistics,
    "KVCacheManager.get_storage_statistics": KVCacheManager.get_storage_statistics,
    "KVCacheManager.life_cycle_of_group": lambda manager: manager.life_cycle_of_group(LayerGroupId(0)),
    "KVCacheManager.probe_reuse": lambda manager: manager.probe_reuse(None, [1] * 40),
    "KVCacheManager.probe_reuse_batch": lambda manager: manager.probe_reuse_batch([[1] * 40, [2] * 40]),
    "KVCacheManager.state_digest": KVCacheManager.state_digest,
    "KVCacheManager.supports_index_mode": lambda manager: manager.supports_index_mode(PageIndexMode.PER_LAYER),
}
"""Each fact of a manager and of its open sequences, and each call that looks, by name."""


def of_each_sequence(look: Callable[[KVCache], object]) -> Callable[[KVCacheManager], object]:
    return lambda manager: [look(sequence) for sequence in manager.open_kv_caches]


LOOKS.update({f"KVCache.{name}": of_each_sequence(attrgetter(name)) for name in list_facts(KVCache)})
LOOKS["KVCache.get_aggregated_page_indices"] = of_each_sequence(
    lambda sequence: list(sequence.get_aggregated_page_indices(LayerGroupId(0)))
)
LOOKS["KVCache.get_base_page_indices"] = of_each_sequence(lambda sequence: list(sequence.get_base_page_indices(LayerGroupId(1))))
LOOKS["KVCache.get_scratch_desc"] = of_each_sequence(lambda sequence: sequence.get_scratch_desc(LayerGroupId(1)))
LOOKS["KVCache.supports_index_mode"] = of_each_sequence(lambda sequence: sequence.supports_index_mode(PageIndexMode.PER_LAYER))

CALLS_OF_THE_ENGINE = {
    "KVCacheManager": (
        "adjust advance_clock can_finish clear_reusable_blocks commit_batch create_kv_cache demote find_refusal flush_journal freeze "
        "get_iteration_statistics invalidate_reuse_scope keep_restored pool_view prefetch ready record_block_times release resize "
        "report_copies reset_copies resize_batch restored retain shutdown state_layer_group_id take_copies time_transfers"
    ),
    "KVCache": (
        "Status close commit commit_input commit_tree find_refusal fork get_ssm_block_base_index plan_committed_block_drop prefetch "
        "get_block_levels get_block_slots get_residency_window require_blocks set_residency_window "
        "publish_planned reorder_beams reserve_transfer resize resume rewind set_base_page_index_buf stop_committing suspend "
        "take_changed_blocks"
    ),
}
"""They change something, or take the whole manager while they answer. (The two of recurrent state: these layers have none.)"""


def test_each_public_name_looks_or_is_a_call_of_the_engine() -> None:
    for handle in (KVCacheManager, KVCache):
        calls = {f"{handle.__name__}.{name}" for name in CALLS_OF_THE_ENGINE[handle.__name__].split()}
        looks = {name for name in LOOKS if name.startswith(handle.__name__ + ".")}
        assert not calls & looks
        assert calls | looks == {f"{handle.__name__}.{name}" for name in dir(handle) if name[0] != "_"}


def test_calls_that_look_see_no_half_call() -> None:
    """Each fact and each call that looks answers, or says that a call runs; none takes what it sees for a corrupted manager."""
    num_answers = dict.fromkeys(LOOKS, 0)

    def look_everywhere(manager: KVCacheManager) -> None:
        for name, ask in LOOKS.items():
            try:
                ask(manager)
                num_answers[name] += 1
            except LogicError as error:
                # Between two facts of a sequence the engine may have suspended it, too.
                assert re.search(r"another call|another thread|close\(\)|is closed|is ACTIVE", str(error)), name

    with threads_take_turns_often(), manager_of([None, 8], num_slots=24) as manager:
        expected = serve(manager)
    with threads_take_turns_often(), manager_of([None, 8], num_slots=24) as manager:
        assert serve_watched(manager, [look_everywhere, look_everywhere]) == expected
        manager.check_invariants()
        assert sum([count > 0 for count in num_answers.values()]) > len(LOOKS) // 2
        # Some may have met a call each time; between two calls all answer.
        for ask in LOOKS.values():
            ask(manager)


def test_other_threads_ask_whether_a_sequence_is_ready() -> None:
    """Its pages come from a disk. Once the answer is yes, the bytes are there; asking changes no decision."""
    answers: list[bool] = []

    def are_ready(manager: KVCacheManager) -> None:
        for sequence in manager.open_kv_caches:
            try:
                answers.append(sequence.ready)
            except LogicError as error:
                assert isinstance(error, BusyError) or "is ACTIVE" in str(error), error

    def serve_from_disk(num_watchers: int) -> bytes:
        files = FakeFiles()
        with Bench(tiered_config(8, [("disk", 40)]), HostDevice(files=files)) as bench:
            sequences = [bench.suspended(number, 5 * TOKENS_PER_BLOCK) for number in range(6)]

            def bring_up(manager: KVCacheManager) -> bytes:
                for sequence in sequences * 3:
                    files.hold()
                    assert sequence.resume(wait=False)
                    del answers[:]
                    while num_watchers > 0 and False not in answers:
                        sys.stdout.flush()
                    files.let_go()
                    while not sequence.ready:
                        sys.stdout.flush()
                    bench.check(sequence)
                    sequence.suspend()
                return manager.state_digest()

            digest = serve_watched(bench.manager, [are_ready] * num_watchers, bring_up)
            bench.manager.check_invariants()
        return digest

    with threads_take_turns_often():
        assert serve_from_disk(2) == serve_from_disk(0)


def test_scrapes_come_from_other_threads() -> None:
    prometheus_client = pytest.importorskip("prometheus_client", reason="the extra metrics is not installed")
    from kv_cache_manager_v2 import PrometheusExporter

    def scrape(manager: KVCacheManager) -> None:
        text = prometheus_client.generate_latest(registry).decode()
        assert "kvcm_requests_total " in text

    registry = prometheus_client.CollectorRegistry()
    with threads_take_turns_often(), manager_of(num_slots=24, block_times_sampling=1.0) as manager:
        exporter = PrometheusExporter(manager, registry=registry)
        serve_watched(manager, [scrape, scrape])
        text = prometheus_client.generate_latest(registry).decode()
        assert f"kvcm_requests_total {float(NUM_REQUESTS)}\n" in text, "without a call of update()"
        exporter.close()


def test_what_a_thread_finds_while_a_call_runs() -> None:
    is_inside, may_go_on = threading.Event(), threading.Event()

    def callback(ordinal: int, life_cycle: object) -> int:
        is_inside.set()
        assert may_go_on.wait(60)
        return 35

    with manager_of() as manager:
        run_prompt(manager, [1, 2, 3, 4, 5]).close()
        usage = manager.get_statistics()
        sequence = manager.create_kv_cache(custom_priority_callback=callback)
        assert sequence.resume()
        thread = threading.Thread(target=sequence.resize, args=(4,))
        thread.start()
        try:
            assert is_inside.wait(60)
            with pytest.raises(BusyError):
                manager.probe_reuse(None, [1])
            with pytest.raises(LogicError) as other_call:
                manager.create_kv_cache()
            assert not isinstance(other_call.value, BusyError)
            # No statistics were taken that a thread may have: the call has not ended.
            assert manager.get_statistics().prompts.tokens in (0, usage.prompts.tokens)
            asked = threading.Thread(target=lambda: found.append(manager.get_statistics().prompts.tokens))
            found: list[int] = []
            asked.start()
        finally:
            may_go_on.set()
            thread.join()
        asked.join()
        assert found == [usage.prompts.tokens]
        assert manager.probe_reuse(None, [1, 2, 3, 4, 5]) == 5


def test_a_callback_that_looks_does_not_wait_for_itself() -> None:
    found: list[object] = []

    def callback(ordinal: int, life_cycle: object) -> int:
        found.append(manager.get_statistics().requests)
        return 35

    with manager_of() as manager:
        sequence = manager.create_kv_cache(custom_priority_callback=callback)
        assert sequence.resume() and sequence.resize(1)
        assert len(found) == 1


def test_probes_that_look_at_objects_of_the_user() -> None:
    """Their `__index__` runs before the manager is held."""

    class Token:
        def __index__(self) -> int:
            return manager.probe_reuse(None, [1, 2, 3, 4])

    tokens: Any = [Token()]
    with manager_of() as manager:
        run_prompt(manager, [1, 2, 3, 4]).close()
        assert manager.probe_reuse(None, tokens) == 0
