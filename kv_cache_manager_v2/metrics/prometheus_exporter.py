"""Metrics of a manager for Prometheus, through `prometheus_client` (extra ``metrics``).

A scrape comes on a thread of its own, and a manager serves one caller at a time. So the engine calls `update` where it calls the
manager, once per step or per second; a scrape gets what was taken then.
"""

from collections.abc import Mapping
from typing import Any, Final, final

from mypy_extensions import mypyc_attr

from ..events.event_manager import KVCacheEventManager
from ..manager.kv_cache_manager import KVCacheManager
from .metric_samples import COUNTER, MetricSamples, take_samples


@final
@mypyc_attr(native_class=True)
class PrometheusExporter:
    """A collector of `prometheus_client`: ``registry.register`` was called with it when the constructor returns.

    ``registry``: a `CollectorRegistry`; None takes the library's default. ``labels`` are added to every sample (a model's name, a
    rank). ``event_manager``: to count dropped events too. `ImportError` without prometheus_client, `LogicError` with
    ``enable_stats=False``. `close` takes it out of the registry.
    """

    __slots__ = ("_manager", "_event_manager", "_registry", "_label_names", "_label_values", "_core", "_metrics", "_is_open")

    def __init__(
        self,
        manager: KVCacheManager,
        *,
        registry: object = None,
        labels: Mapping[str, str] | None = None,
        event_manager: KVCacheEventManager | None = None,
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
        self._metrics: list[MetricSamples] = take_samples(manager, event_manager)
        self._registry.register(self)
        self._is_open = True

    def update(self) -> None:
        """Take the present figures; from the thread that calls the manager."""
        self._metrics = take_samples(self._manager, self._event_manager)

    def collect(self) -> list[object]:
        """What a scrape gets; from any thread."""
        families: list[object] = []
        for metric in self._metrics:
            make = self._core.CounterMetricFamily if metric.kind == COUNTER else self._core.GaugeMetricFamily
            family = make(metric.name, metric.text, labels=[*self._label_names, *metric.label_names])
            for labels, value in metric.samples:
                family.add_metric([*self._label_values, *labels], value)
            families.append(family)
        return families

    def close(self) -> None:
        """No further scrape gets anything. Twice is fine."""
        if self._is_open:
            self._is_open = False
            self._registry.unregister(self)
