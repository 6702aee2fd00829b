"""Metrics of a manager for Prometheus, through the package prometheus-client.

A scrape samples the manager, on whatever thread it runs: `KVCacheManager.get_statistics` says what it gets while a call runs. Only
durations of transfers, which the device is asked for, are read by `update`, and by the manager's transfers.
"""

import re
from collections.abc import Mapping
from threading import Lock
from typing import Any, ClassVar, Final, final


from ..base.checks import to_instance, to_instance_or_none, to_texts_by_name, type_name
from ..base.errors import BusyError, KVCacheManagerError
from ..base.given import Given
from ..base.handle import Handle
from ..base.missing_package import missing_package
from ..device.monotonic_clock import MonotonicClock
from ..events.event_manager import KVCacheEventManager
from ..manager.kv_cache_manager import KVCacheManager
from ..stats.block_times import BlockTimes
from ..stats.statistics_clock import StatisticsClock
from ..storage.transfer_times import TransferTimes
from .metric_samples import COUNTER, MetricSamples, name_tiers, sample_events, take_samples
from .registry_collector import RegistryCollector
from .shared_samples import SharedSource, sample_shared, sample_shared_times, to_shared_source
from .time_samples import HistogramSamples, sample_times, sample_transfers

_LABEL_NAME: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
"""Label names of users: those with two leading underscores are Prometheus' own."""

_collectors: Final[dict[Any, RegistryCollector]] = {}
"""By registry, as long as it has an exporter."""
_collectors_lock: Final = Lock()


@final
class PrometheusExporter(Handle):
    """Exports one manager's metrics to a registry of `prometheus_client`, from the constructor's return until `close`.

    ``registry``: a `CollectorRegistry`; None: the library's default. ``labels`` are added to every sample (a model's name, a
    rank); several exporters may share a registry, each with labels of its own. ``event_manager``: to count its events too.
    ``shared_level``: a `SharedLevel` of the manager, to export its metrics too. ``clock``: the clock for times of blocks,
    ``time.monotonic`` by default. `ImportError` without prometheus_client, `LogicError` with ``enable_stats=False``, `ValueError` for a
    label name that Prometheus or a metric of the manager's uses, and for labels that another exporter of the registry has.
    """

    __slots__ = (
        "_manager", "_event_manager", "_registry", "_label_names", "_label_values", "_core", "_times", "_transfers", "_tiers",
        "_metrics", "_histograms", "_is_open", "_shared_level",
    )  # fmt: skip

    _NAMES: ClassVar[str] = "a registry of this process"

    def __init__(
        self,
        manager: Given[KVCacheManager],
        *,
        registry: object = None,
        labels: Mapping[str, str] | None = None,
        event_manager: Given[KVCacheEventManager | None] = None,
        shared_level: Given[SharedSource | None] = None,
        clock: Given[StatisticsClock | None] = None,
    ) -> None:
        manager = to_instance(manager, KVCacheManager, "manager")
        texts = {} if labels is None else to_texts_by_name(labels, "labels")
        events = to_instance_or_none(event_manager, KVCacheEventManager, "event_manager")
        if clock is not None and not isinstance(clock, StatisticsClock):
            raise TypeError(f"clock must be a StatisticsClock or None, not {type_name(clock)}")
        try:
            import prometheus_client
            import prometheus_client.core
        except ImportError as error:
            raise missing_package("PrometheusExporter", "prometheus-client", error) from error

        self._manager: Final = manager
        self._event_manager: Final = events
        self._shared_level: Final[SharedSource | None] = to_shared_source(shared_level)
        chosen: Any = prometheus_client.REGISTRY if registry is None else registry
        if not isinstance(chosen, prometheus_client.CollectorRegistry):
            raise TypeError(f"registry must be a prometheus_client.CollectorRegistry or None, not {type_name(registry)}")
        self._registry: Final[Any] = chosen
        self._label_names: Final[list[str]] = list(texts)
        self._label_values: Final[list[str]] = list(texts.values())
        core: Any = prometheus_client.core
        self._core: Final[Any] = core
        self._tiers: Final = name_tiers(manager)
        self._times: BlockTimes | None = None
        self._transfers: TransferTimes | None = None
        self._metrics: list[MetricSamples] = []
        self._histograms: list[HistogramSamples] = []
        described = _describe(manager)
        _validate_label_names(self._label_names, described)
        with _collectors_lock:
            collector = _collectors.get(chosen)
            if collector is None:
                collector = RegistryCollector(chosen, [self._make_family(metric) for metric in described])
            collector.join(self._label_set(), self.collect)
            _collectors[chosen] = collector
        self._is_open = True
        try:
            self._times = manager.record_block_times(MonotonicClock() if clock is None else clock)
            self._transfers = manager.time_transfers()
            self.update()
        except BaseException:
            self.close()
            raise

    def update(self) -> None:
        """Sample the manager, and read the timers of its transfers. Not needed for scrapes, which sample by themselves.

        Call it from the thread that calls the manager, if at all: once per second, say. About 0.1 ms, compiled.
        """
        self._manager._require_idle()
        if self._transfers is not None:
            self._transfers.collect()
        self._sample()

    def _sample(self) -> None:
        metrics = take_samples(self._manager)
        if self._event_manager is not None:
            metrics += sample_events(self._event_manager)
        if self._shared_level is not None:
            metrics += sample_shared(self._shared_level)
        self._metrics = metrics
        try:
            self._manager._look(self._sample_histograms)
        except BusyError:
            pass

    def _sample_histograms(self) -> None:
        histograms: list[HistogramSamples] = []
        if self._transfers is not None:
            histograms.append(sample_transfers(self._transfers, self._tiers))
        if self._times is not None:
            histograms += sample_times(self._times)
        if self._shared_level is not None:
            histograms.append(sample_shared_times(self._shared_level))
        self._histograms = histograms

    def collect(self) -> list[Any]:
        """The metric families of this exporter alone, without families that have no samples; from any thread.

        Of a manager that is shut down or broken those of the last time.
        """
        try:
            self._sample()
        except KVCacheManagerError:
            pass
        families: list[Any] = []
        for metric in self._metrics:
            if metric.samples:
                family = self._make_family(metric)
                for labels, value in metric.samples:
                    family.add_metric([*self._label_values, *labels], value)
                families.append(family)
        for histogram in self._histograms:
            times = self._make_family(histogram)
            for labels, buckets, total_seconds in histogram.samples:
                times.add_metric([*self._label_values, *labels], buckets, total_seconds)
            families.append(times)
        return families

    def close(self) -> None:
        """Unregister: no further scrape has this manager's metrics. Closing twice is fine."""
        if self._is_open:
            self._is_open = False
            with _collectors_lock:
                if _collectors[self._registry].leave(self._label_set()):
                    del _collectors[self._registry]

    def _label_set(self) -> frozenset[tuple[str, str]]:
        # An empty value is an absent label to Prometheus.
        pairs = zip(self._label_names, self._label_values, strict=True)
        return frozenset([(name, value) for name, value in pairs if value])

    def _make_family(self, metric: MetricSamples | HistogramSamples) -> Any:
        label_names = [*self._label_names, *metric.label_names]
        if isinstance(metric, HistogramSamples):
            return self._core.HistogramMetricFamily(metric.name, metric.text, labels=label_names)
        make = self._core.CounterMetricFamily if metric.kind == COUNTER else self._core.GaugeMetricFamily
        return make(metric.name, metric.text, labels=label_names)


def _describe(manager: KVCacheManager) -> list[MetricSamples | HistogramSamples]:
    """One item for each metric that any exporter can have, with or without samples. `LogicError` with ``enable_stats=False``."""
    described: list[MetricSamples | HistogramSamples] = []
    described += take_samples(manager)
    described += sample_events(None)
    described += sample_shared(None)
    described.append(sample_shared_times(None))
    described.append(sample_transfers(None, []))
    described += sample_times(None)
    return described


def _validate_label_names(names: list[str], described: list[MetricSamples | HistogramSamples]) -> None:
    taken = {"le": "histograms"}
    for metric in described:
        for name in metric.label_names:
            taken[name] = metric.name
    for name in names:
        if _LABEL_NAME.fullmatch(name) is None:
            raise ValueError(f"labels: {name!r} is no label name: letters, digits and _, no digit first, no two _ first")
        if name in taken:
            raise ValueError(f"labels: {name!r} is a label of {taken[name]}; choose another name")
