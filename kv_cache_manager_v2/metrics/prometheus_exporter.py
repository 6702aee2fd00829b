"""Metrics of a manager for Prometheus, through `prometheus_client` (extra ``metrics``).

A scrape comes on a thread of its own, and a manager serves one caller at a time. So the engine calls `update` where it calls the
manager, once per step or per second; a scrape gets what was taken then.
"""

from collections.abc import Mapping
from typing import Any, Final, final

from mypy_extensions import mypyc_attr

from ..device.monotonic_clock import MonotonicClock
from ..events.event_manager import KVCacheEventManager
from ..manager.kv_cache_manager import KVCacheManager
from ..stats.block_times import BlockTimes
from ..stats.hit_rate_curve import HitRateCurve
from ..stats.statistics_clock import StatisticsClock
from ..storage.transfer_times import TransferTimes
from .curve_samples import sample_curves
from .metric_samples import COUNTER, MetricSamples, name_tiers, take_samples
from .time_samples import HistogramSamples, sample_times, sample_transfers


@final
@mypyc_attr(native_class=True)
class PrometheusExporter:
    """A collector of `prometheus_client`: ``registry.register`` was called with it when the constructor returns.

    ``registry``: a `CollectorRegistry`; None takes the library's default. ``labels`` are added to every sample (a model's name, a
    rank). ``event_manager``: to count its events too. ``clock``: what times of blocks are measured with, ``time.monotonic`` by default.
    `ImportError` without prometheus_client, `LogicError` with ``enable_stats=False``. `close` takes it out of the registry.
    """

    __slots__ = (
        "_manager", "_event_manager", "_registry", "_label_names", "_label_values", "_core", "_times", "_transfers", "_tiers",
        "_samples_blocks", "_shown", "_metrics", "_histograms", "_is_open",
    )  # fmt: skip

    def __init__(
        self,
        manager: KVCacheManager,
        *,
        registry: object = None,
        labels: Mapping[str, str] | None = None,
        event_manager: KVCacheEventManager | None = None,
        clock: StatisticsClock | None = None,
    ) -> None:
        import prometheus_client
        import prometheus_client.core

        self._manager: Final = manager
        self._event_manager: Final = event_manager
        chosen: Any = prometheus_client.REGISTRY if registry is None else registry
        self._registry: Final[Any] = chosen
        self._label_names: Final[list[str]] = [] if labels is None else [str(name) for name in labels]
        self._label_values: Final[list[str]] = [] if labels is None else [str(value) for value in labels.values()]
        core: Any = prometheus_client.core
        self._core: Final[Any] = core
        self._times: Final[BlockTimes | None] = manager.time_blocks(MonotonicClock() if clock is None else clock)
        self._transfers: Final[TransferTimes] = manager.time_transfers()
        self._tiers: Final = name_tiers(manager)
        self._samples_blocks: Final = manager.init_config.miss_ratio_sampling > 0.0
        self._shown: list[HitRateCurve] = []
        self._metrics: list[MetricSamples] = []
        self._histograms: list[HistogramSamples] = []
        self.update()
        self._registry.register(self)
        self._is_open = True

    def update(self) -> None:
        """Take the present figures; from the thread that calls the manager. About 0.1 ms, compiled."""
        metrics = take_samples(self._manager, self._event_manager)
        if self._samples_blocks:
            curves = [self._manager.get_hit_rate_curve(level) for level in range(len(self._tiers))]
            metrics.append(sample_curves(curves + self._shown, self._tiers))
        self._metrics = metrics
        histograms = [sample_transfers(self._transfers, self._tiers)]
        if self._times is not None:
            histograms += sample_times(self._times)
        self._histograms = histograms

    def show_curves(self, curves: list[HitRateCurve]) -> None:
        """From the next update on show these too, instead of those before: of other policies (`ReuseSample.estimate`). From any thread."""
        for curve in curves:
            if not 0 <= curve.level < len(self._tiers):
                raise ValueError(f"a curve is of level {curve.level}; there are {len(self._tiers)} cache levels")
        self._shown = list(curves)

    def collect(self) -> list[object]:
        """What a scrape gets; from any thread."""
        families: list[object] = []
        for metric in self._metrics:
            make = self._core.CounterMetricFamily if metric.kind == COUNTER else self._core.GaugeMetricFamily
            family = make(metric.name, metric.text, labels=[*self._label_names, *metric.label_names])
            for labels, value in metric.samples:
                family.add_metric([*self._label_values, *labels], value)
            families.append(family)
        for histogram in self._histograms:
            label_names = [*self._label_names, *histogram.label_names]
            times = self._core.HistogramMetricFamily(histogram.name, histogram.text, labels=label_names)
            for labels, buckets, total_seconds in histogram.samples:
                times.add_metric([*self._label_values, *labels], buckets, total_seconds)
            families.append(times)
        return families

    def close(self) -> None:
        """No further scrape gets anything. Twice is fine."""
        if self._is_open:
            self._is_open = False
            self._registry.unregister(self)
