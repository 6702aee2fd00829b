"""Metrics of a shared level: what was asked, loaded and stored, what failed and why, which store is not asked, and how long it took."""

from collections.abc import Iterator
from typing import Any

import pytest
from fake_valkey_server import FakeServer
from shared_models import Rank, Server

from kv_cache_manager_v2 import PrometheusExporter
from kv_cache_manager_v2.shared import MemoryStore, StoreError, ValkeyStore

prometheus_client = pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

TEXT = list(range(17))


class Scrape:
    """What Prometheus gets of a rank."""

    def __init__(self, rank: Rank) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self.exporter = PrometheusExporter(rank.manager, registry=self.registry, shared_level=rank.level)

    def __getitem__(self, name: str) -> Any:
        name, _brace, rest = name.partition("{")
        labels = dict(part.split("=") for part in rest.rstrip("}").split(",") if part)
        return self.registry.get_sample_value(f"kvcm_shared_{name}", labels)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


ALL = {
    "kvcm_shared_lookups_total", "kvcm_shared_pages_total", "kvcm_shared_bytes_total", "kvcm_shared_failures_total",
    "kvcm_shared_dropped_pages_total", "kvcm_shared_refusals_total", "kvcm_shared_store_open", "kvcm_shared_slots",
    "kvcm_shared_seconds_bucket", "kvcm_shared_seconds_sum", "kvcm_shared_seconds_count",
}  # fmt: skip


def test_the_names_are_as_documented_and_absent_without_a_level() -> None:
    with Rank(MemoryStore()) as rank:
        scrape = Scrape(rank)
        found = {sample.name for family in scrape.registry.collect() for sample in family.samples}
        assert {name for name in found if name.startswith("kvcm_shared")} == ALL
        scrape.exporter.close()
        exporter = PrometheusExporter(rank.manager, registry=scrape.registry)
        found = {sample.name for family in scrape.registry.collect() for sample in family.samples}
        assert len(found) > 10 and not any(name.startswith("kvcm_shared") for name in found)
        exporter.close()


def test_what_is_stored_found_and_loaded_is_counted() -> None:
    store = MemoryStore()
    with Rank(store) as writer:
        scrape = Scrape(writer)
        assert scrape["lookups_total"] == 0 and scrape["pages_total{outcome=stored}"] == 0
        writer.run(TEXT)
        writer.drain()
        assert scrape["lookups_total"] == 1
        assert scrape["pages_total{outcome=looked_up}"] == 4 and scrape["pages_total{outcome=found}"] == 0
        assert scrape["pages_total{outcome=stored}"] == 4
        assert scrape["bytes_total{direction=store}"] == sum([len(store.get(key) or b"") for key in store.keys()])
        assert scrape["store_open{store=memory}"] == 0
        num_slots = writer.level._stores.num_slots
        assert scrape["slots{use=store,state=free}"] == num_slots and scrape["slots{use=store,state=taken}"] == 0
        assert scrape["seconds_count{operation=lookup}"] == 1
        assert scrape["seconds_count{operation=store}"] == 2, "which of them are there, and then the rest"
        scrape.exporter.close()
    with Rank(store) as reader:
        scrape = Scrape(reader)
        assert reader.run(TEXT) == 16
        assert scrape["pages_total{outcome=loaded}"] == 4 and scrape["pages_total{outcome=missing}"] == 0
        assert scrape["bytes_total{direction=load}"] == sum([len(store.get(key) or b"") for key in store.keys()])
        assert scrape["seconds_count{operation=load}"] == 1
        scrape.exporter.close()


FAULTS = {
    "garbage": lambda words: b"?what\r\n",
    "refused": lambda words: b"-LOADING Valkey is loading the dataset in memory\r\n",
}


@pytest.mark.parametrize("cause", ["garbage", "refused", "silent"])
def test_failures_are_counted_by_cause_and_the_breaker_is_seen(server: FakeServer, cause: str) -> None:
    with Rank(ValkeyStore([server.address])) as rank:
        scrape = Scrape(rank)
        place = f"store_open{{store={server.address}}}"
        assert scrape[place] == 0
        if cause in FAULTS:
            server.reply = FAULTS[cause]
        else:
            server.thawed.clear()
        # On a machine with much to do another cause may come between: an answer that takes too long.
        while scrape[place] == 0 or scrape[f"failures_total{{cause={cause}}}"] < 2:
            assert rank.run(TEXT) == 0
        while scrape["refusals_total"] == 0:
            assert rank.run(TEXT) == 0
        scrape.exporter.close()


def test_a_server_that_is_gone_is_unreachable() -> None:
    with Server() as server, Rank(ValkeyStore([server.address])) as rank:
        scrape = Scrape(rank)
        server.kill()
        while scrape[f"store_open{{store={server.address}}}"] == 0:
            assert rank.run(TEXT) == 0
        assert scrape["failures_total{cause=unreachable}"] >= 1 and scrape["failures_total{cause=garbage}"] == 0
        scrape.exporter.close()


def test_dropped_pages_have_a_cause(caplog: pytest.LogCaptureFixture) -> None:
    with Rank(MemoryStore(), store_bytes=2 * 4096) as rank:
        scrape = Scrape(rank)
        rank.run(TEXT)
        # Four pages of one slot each, and two slots.
        assert scrape["dropped_pages_total{cause=slots}"] == 2
        assert [record for record in caplog.records if "all staging slots are in use" in record.getMessage()]
        scrape.exporter.close()


def test_what_is_no_shared_level_is_refused_and_nothing_is_registered() -> None:
    with Rank(MemoryStore()) as rank:
        registry = prometheus_client.CollectorRegistry()
        wrongs: list[Any] = [5, "level", rank.manager, MemoryStore()]
        for wrong in wrongs:
            with pytest.raises(TypeError, match="shared_level must be a SharedLevel"):
                PrometheusExporter(rank.manager, registry=registry, shared_level=wrong)
        exporter = PrometheusExporter(rank.manager, registry=registry, shared_level=rank.level)
        exporter.close()


def test_a_store_of_the_users_own_may_name_no_cause() -> None:
    assert StoreError("it broke").cause == "other"
