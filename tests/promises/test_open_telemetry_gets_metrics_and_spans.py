"""OpenTelemetry gets the manager's metrics under its own conventions, and a span for each onboarding and prefetch under the request's."""

import re
from pathlib import Path
from typing import Any

import pytest
from forwarding_device import ForwardingDevice
from small_models import manager_of, run_prompt
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config

import kv_cache_manager_v2
from kv_cache_manager_v2 import HostDevice, KVCacheEventManager, KVCacheManager, LogicError, OpenTelemetryExporter, PageMoveError
from kv_cache_manager_v2.device.port import CopyBatch
from kv_cache_manager_v2.metrics.open_telemetry_names import NAMES

sdk_metrics: Any = pytest.importorskip("opentelemetry.sdk.metrics", reason="the SDK of OpenTelemetry is not installed")
metric_export: Any = pytest.importorskip("opentelemetry.sdk.metrics.export")
sdk_trace: Any = pytest.importorskip("opentelemetry.sdk.trace")
span_export: Any = pytest.importorskip("opentelemetry.sdk.trace.export")
in_memory: Any = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


class Collector:
    """An SDK that keeps what it gets."""

    def __init__(self) -> None:
        self.reader = metric_export.InMemoryMetricReader()
        self.meters = sdk_metrics.MeterProvider(metric_readers=[self.reader])
        self.exported = in_memory.InMemorySpanExporter()
        self.tracers = sdk_trace.TracerProvider()
        self.tracers.add_span_processor(span_export.SimpleSpanProcessor(self.exported))

    def export(self, manager: KVCacheManager, **arguments: Any) -> OpenTelemetryExporter:
        return OpenTelemetryExporter(manager, meter_provider=self.meters, tracer_provider=self.tracers, **arguments)

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {metric.name: metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics}

    def value(self, name: str, **attributes: str) -> float:
        found = [
            point.value
            for point in self.metrics()[name].data.data_points
            if dict(point.attributes) == {key.replace("__", "."): value for key, value in attributes.items()}
        ]
        assert len(found) == 1, (name, attributes)
        return float(found[0])

    def spans(self) -> list[Any]:
        found = list(self.exported.get_finished_spans())
        self.exported.clear()
        return found


def test_the_page_has_every_name() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "statistics.md").read_text()
    listed = set(re.findall(r"`(kvcm\.[\w.]+)`", page.partition("## OpenTelemetry")[2].partition("Labels are attributes")[0]))
    assert listed - {"kvcm.state"} == {name for name, _ in NAMES.values()}


def test_metrics_follow_the_conventions() -> None:
    collector = Collector()
    events = KVCacheEventManager(10)
    with Bench(tiered_config(8, [("host", 8)]), HostDevice(), event_manager=events) as bench:
        exporter = collector.export(bench.manager, event_manager=events)
        metrics = collector.metrics()
        for name, metric in metrics.items():
            assert name.startswith("kvcm.") and name == name.lower() and not name.endswith(("total", "bytes", "seconds", "ratio"))
            assert metric.unit and metric.description
            is_sum = hasattr(metric.data, "is_monotonic")
            for point in metric.data.data_points:
                assert all(key.startswith("kvcm.") for key in point.attributes)
            if not is_sum:
                assert metric.unit == "1", f"{name} is no share or flag, and so can be added up"
        # As many as Prometheus has, without histograms and estimates; a metric without samples is not shown by this SDK.
        assert len(metrics) >= 20
        exporter.close()


def test_a_reader_asks_by_itself() -> None:
    collector = Collector()
    with manager_of(num_slots=8) as manager:
        exporter = collector.export(manager)
        kv_cache = run_prompt(manager, list(range(8)))
        assert collector.value("kvcm.prefix.queried") == 8
        assert collector.value("kvcm.prefix.missed", kvcm__cause="not_remembered") == 8
        # 2 of 8 slots are locked.
        assert collector.value("kvcm.cache.utilization", kvcm__tier="gpu", kvcm__pool_group="0") == 0.25
        assert collector.value("kvcm.slot.count", kvcm__tier="gpu", kvcm__pool_group="0", kvcm__state="free") == 6
        assert collector.value("kvcm.sequence.count", kvcm__status="active") == 1
        kv_cache.close()
        assert collector.value("kvcm.sequence.count", kvcm__status="active") == 0
    assert collector.value("kvcm.prefix.queried") == 8, "of a manager that is shut down the last figures stay"
    exporter.close()
    assert collector.metrics() == {}


def test_several_managers_and_a_provider_each(caplog: pytest.LogCaptureFixture) -> None:
    collector, other = Collector(), Collector()
    with manager_of() as first, manager_of() as second:
        exporters = [collector.export(first, attributes={"rank": "0"}), collector.export(second, attributes={"rank": "1"})]
        run_prompt(second, list(range(8))).close()
        assert [collector.value("kvcm.prefix.queried", rank=rank) for rank in "01"] == [0, 8]
        with pytest.raises(ValueError, match="rank"):
            collector.export(second, attributes={"rank": "1"})
        with pytest.raises(LogicError, match="traces"):
            other.export(second)
        assert other.metrics() == {}, "the exporter that was refused has left"
        exporters[1].close()
        exporters[1].close()
        again = other.export(second)
        assert other.value("kvcm.prefix.queried") == 8
        again.close()
        exporters[0].close()
    assert caplog.records == [], "no instrument was made twice"


def test_onboarding_and_prefetch_have_spans_under_the_requests() -> None:
    collector = Collector()
    page_bytes = 2 * 8 * TOKENS_PER_BLOCK  # key and value
    with Bench(tiered_config(8, [("host", 12)]), HostDevice()) as bench:
        exporter = collector.export(bench.manager, attributes={"rank": "3"})
        slow = bench.suspended(7, 4 * TOKENS_PER_BLOCK)
        bench.suspended(1, 8 * TOKENS_PER_BLOCK).close()
        assert collector.spans() == [], "the first resume of a sequence brings nothing up"
        tracer = collector.tracers.get_tracer("engine")
        with tracer.start_as_current_span("request") as request:
            assert slow.resume()
        onboarding, outer = collector.spans()
        assert onboarding.name == "kvcm.onboard" and onboarding.parent.span_id == request.get_span_context().span_id
        assert outer.start_time <= onboarding.start_time <= onboarding.end_time <= outer.end_time
        assert dict(onboarding.attributes) == {
            "rank": "3", "kvcm.pages": 4, "kvcm.bytes": 4 * page_bytes, "kvcm.source_tiers": ("host",), "kvcm.is_refused": False,
            "kvcm.sequence.id": 7,
        }  # fmt: skip
        assert onboarding.instrumentation_scope.version == kv_cache_manager_v2.__version__
        slow.suspend()
        bench.suspended(2, 8 * TOKENS_PER_BLOCK).close()
        assert slow.prefetch()
        (prefetch,) = collector.spans()
        assert (prefetch.name, prefetch.attributes["kvcm.pages"]) == ("kvcm.prefetch", 4)
        # Nothing is left to be brought up, and so said.
        bench.manager.prefetch([1, 2, 3])
        (nothing,) = collector.spans()
        assert nothing.name == "kvcm.prefetch" and nothing.attributes["kvcm.pages"] == 0 and "kvcm.sequence.id" not in nothing.attributes
        exporter.close()
        assert slow.resume()
        bench.check(slow)
        slow.close()
        assert collector.spans() == []


class RefusesCopies(ForwardingDevice):
    refuses = False

    def copy_batch(self, stream: int, batch: CopyBatch) -> None:
        if self.refuses:
            raise ValueError("not today")
        super().copy_batch(stream, batch)


def test_a_refusal_and_an_error_are_said() -> None:
    collector = Collector()
    device = RefusesCopies()
    with Bench(tiered_config(8, [("host", 12)]), device) as bench:
        exporter = collector.export(bench.manager)
        slow = bench.suspended(7, 4 * TOKENS_PER_BLOCK)
        other = bench.manager.create_kv_cache(id=1)
        assert other.resume() and bench.write(other, 8 * TOKENS_PER_BLOCK)
        assert not slow.resume()
        (refused,) = collector.spans()
        assert refused.attributes["kvcm.is_refused"] and refused.status.is_unset
        other.close()
        device.refuses = True
        with pytest.raises((PageMoveError, ValueError)):
            slow.resume()
        (failed,) = collector.spans()
        assert not failed.status.is_ok and not failed.status.is_unset and "not today" in failed.status.description
        assert failed.events[0].name == "exception"
        device.refuses = False
        exporter.close()
        slow.close()


def test_without_statistics_there_is_nothing_to_export() -> None:
    collector = Collector()
    with manager_of(enable_stats=False) as manager, pytest.raises(LogicError):
        collector.export(manager)
    assert collector.metrics() == {}
