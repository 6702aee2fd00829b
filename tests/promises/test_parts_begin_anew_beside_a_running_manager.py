"""A part that is made anew beside a manager that goes on knows what is there: it asks for the state, not for what happened since."""

import logging
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from router_process import TOPIC, Router, stopped_at_the_end, wait_for_first
from shared_models import Rank
from small_models import config_of, run_prompt

from kv_cache_manager_v2 import HostDevice, KVCacheEventManager, KVCacheManager, PrometheusExporter, StatisticsLog, compute_block_hashes
from kv_cache_manager_v2.publishing.shared_copies import MOST_WAITING
from kv_cache_manager_v2.shared import MemoryStore, SharedLevel

pytest.importorskip("zmq", reason="the extra `events` is not installed")
pytest.importorskip("msgspec", reason="the extra `events` is not installed")

from kv_cache_manager_v2 import KVCacheEventPublisher  # noqa: E402

routers = pytest.fixture(stopped_at_the_end)
TEXT = list(range(100, 141))


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as made:
        yield made


def publish(events: Any, folder: str, number: int = 0) -> Any:
    """Numbers of the second are above those of the first, as with "epoch"."""
    place: dict[str, Any] = {name: f"ipc://{folder}/{name}{number}" for name in ("endpoint", "replay_endpoint")}
    publisher = KVCacheEventPublisher(events, topic=TOPIC, first_sequence=1000 * number, heartbeat_seconds=0.02, **place)
    wait_for_first(publisher)
    return publisher


def names(tokens: Any, medium: str = "GPU") -> list[int]:
    return [name for name in compute_block_hashes(tokens, 4, None, "sha256_64") if isinstance(name, int)]


@pytest.mark.parametrize("was_drained", [True, False])
def test_a_publisher(routers: list[Router], folder: str, was_drained: bool) -> None:
    events = KVCacheEventManager(10_000)
    with KVCacheManager(config_of(num_slots=64), device=HostDevice(), event_manager=events) as manager:
        first = publish(events, folder)
        run_prompt(manager, range(40)).close()
        events.flush_iteration_events()
        routers.append(Router(first))
        routers[0].expect({"None/GPU": names(range(40))})
        first.close()
        # While there is none, some blocks come, and are drained by someone else or not at all.
        run_prompt(manager, range(500, 520)).close()
        events.flush_iteration_events()
        if was_drained:
            events.get_latest_events()
        with publish(events, folder, 1) as second:
            routers.append(Router(second))
            routers[1].expect({"None/GPU": names(range(40)) + names(range(500, 520))})
            run_prompt(manager, range(600, 608)).close()
            events.flush_iteration_events()
            routers[1].expect({"None/GPU": names(range(40)) + names(range(500, 520)) + names(range(600, 608))})
            assert routers[1].facts()["errors"] == []


def begin_rank(events: KVCacheEventManager, folder: str) -> tuple[Rank, Any]:
    """A rank with a shared level, and the publisher that tells of both."""
    made: list[Any] = []

    def begin(_manager: Any) -> Any:
        made.append(publish(events, folder))
        return made[0]

    return Rank(MemoryStore(), event_manager=events, publish=begin), made[0]


def test_a_publisher_of_a_shared_level(routers: list[Router], folder: str) -> None:
    events = KVCacheEventManager(10_000)
    rank, made = begin_rank(events, folder)
    with rank:
        rank.run(TEXT)
        rank.drain()
        made.close()
        # Told after its end: kept for the next one.
        rank.run(list(range(300, 321)))
        rank.drain()
        rank.manager.clear_reusable_blocks()
        events.flush_iteration_events()
        there = {"None/EXTERNAL": names(TEXT) + names(range(300, 321))}
        with publish(events, folder, 1) as second:
            routers.append(Router(second))
            routers[0].expect(there)
            rank.level.close()
            routers[0].expect({})
            assert routers[0].facts()["errors"] == []


def test_more_than_is_kept_for_a_publisher_is_forgotten_and_told_once_it_is_seen(routers: list[Router], folder: str) -> None:
    events = KVCacheEventManager(10_000)
    rank, made = begin_rank(events, folder)
    with rank:
        rank.run(TEXT)
        rank.drain()
        made.close()
        for _number in range(MOST_WAITING + 1):
            made._tell_shared(None, None, [], [b"a page that went"])
        rank.forget()
        events.flush_iteration_events()
        with publish(events, folder, 1) as second:
            routers.append(Router(second))
            routers[0].expect({})
            rank.load(rank.begin(TEXT))
            events.flush_iteration_events()
            routers[0].expect({"None/EXTERNAL": names(TEXT[:40]), "None/GPU": names(TEXT[:40])})


def test_a_shared_level() -> None:
    store = MemoryStore()
    with Rank(store) as rank:
        rank.run(TEXT)
        rank.drain()
        settings: Any = {"load_bytes": 1 << 20, "store_bytes": 1 << 20, "write_policy": "commit"}
        rank.level.close()
        rank.level = SharedLevel(rank.manager, store, rank.model_id, **settings)
        rank.forget()
        assert rank.run(TEXT) == 40
        rank.run(list(range(300, 321)))
        rank.drain()
        with Rank(store) as other:
            assert other.run(list(range(300, 321))) == 20


def test_an_exporter() -> None:
    prometheus_client = pytest.importorskip("prometheus_client", reason="the extra metrics is not installed")
    with KVCacheManager(config_of(), device=HostDevice()) as manager:
        registry = prometheus_client.CollectorRegistry()
        first = PrometheusExporter(manager, registry=registry)
        run_prompt(manager, range(8)).close()
        before = prometheus_client.generate_latest(registry)
        first.close()
        assert prometheus_client.generate_latest(registry) == b""
        again = PrometheusExporter(manager, registry=registry)
        # Counters are the manager's own, so a new exporter shows none that has fallen.
        assert prometheus_client.generate_latest(registry) == before
        again.close()


def test_a_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with KVCacheManager(config_of(), device=HostDevice()) as manager:
        StatisticsLog(manager).write()
        run_prompt(manager, range(8)).close()
        # An iteration begins where the last line ended, also where another log wrote that line.
        StatisticsLog(manager).write()
        figures: Any = [record.__dict__["kvcm"] for record in caplog.records if "kvcm" in record.__dict__]
        assert [line["requests"] for line in figures] == [0, 1]
