"""Metrics and spans of a manager for OpenTelemetry, through the package opentelemetry-api.

The application chooses the SDK and its exporters; without one nothing is recorded. A metric reader asks on whatever thread it has, as a
Prometheus scrape does: `KVCacheManager.get_statistics` says what it gets while a call runs.
"""

from collections.abc import Mapping
from threading import Lock
from typing import Any, ClassVar, Final, final

from mypy_extensions import mypyc_attr

from ..base.build_mode import VERSION
from ..base.checks import has_attribute, to_instance, to_instance_or_none, to_texts_by_name, type_name
from ..base.errors import KVCacheManagerError
from ..base.given import Given
from ..base.handle import Handle
from ..base.missing_package import missing_package
from ..events.event_manager import KVCacheEventManager
from ..manager.kv_cache_manager import KVCacheManager
from .metric_samples import COUNTER, MetricSamples, sample_events, take_samples
from .move_tracer import MoveTracer
from .open_telemetry_names import NAMES, SUMMED, name_attribute
from .shared_samples import SharedSource, sample_shared, to_shared_source

_SCOPE: Final = "kv_cache_manager_v2"

_sets: Final[dict[Any, "InstrumentSet"]] = {}
"""By meter provider. An instrument cannot be taken back, and a second one of its name would be a conflict."""
_sets_lock: Final = Lock()


@final
@mypyc_attr(native_class=True)
class OpenTelemetryExporter(Handle):
    """Exports one manager's metrics and spans, from the constructor's return until `close`.

    ``meter_provider`` and ``tracer_provider`` None: those of the process. ``attributes`` are added to every sample and span (a model's
    name, a rank); several exporters may share a provider, each with attributes of its own. ``event_manager``: to count its
    events too. ``shared_level``: a `SharedLevel` of the manager, to export its metrics too. `ImportError` without opentelemetry-api,
    `LogicError` with ``enable_stats=False`` or where another exporter traces the manager, `ValueError` for attributes that another
    exporter of the provider has.
    """

    __slots__ = ("_manager", "_event_manager", "_shared_level", "_attributes", "_set", "_tracer", "_samples", "_is_open")

    _NAMES: ClassVar[str] = "instruments of this process"

    def __init__(
        self,
        manager: Given[KVCacheManager],
        *,
        meter_provider: object = None,
        tracer_provider: object = None,
        attributes: Mapping[str, str] | None = None,
        event_manager: Given[KVCacheEventManager | None] = None,
        shared_level: Given[SharedSource | None] = None,
    ) -> None:
        manager = to_instance(manager, KVCacheManager, "manager")
        texts = {} if attributes is None else to_texts_by_name(attributes, "attributes")
        events = to_instance_or_none(event_manager, KVCacheEventManager, "event_manager")
        _require_method(meter_provider, "get_meter", "meter_provider", "MeterProvider")
        _require_method(tracer_provider, "get_tracer", "tracer_provider", "TracerProvider")
        try:
            import opentelemetry.metrics
            import opentelemetry.trace
        except ImportError as error:
            raise missing_package("OpenTelemetryExporter", "opentelemetry-api", error) from error

        metrics: Any = opentelemetry.metrics
        trace: Any = opentelemetry.trace
        self._is_open = False
        self._manager: Final = manager
        self._event_manager: Final = events
        self._shared_level: Final[SharedSource | None] = to_shared_source(shared_level)
        self._attributes: Final[dict[str, str]] = texts
        self._samples: list[MetricSamples] = self._take_samples()
        meters: Any = metrics.get_meter_provider() if meter_provider is None else meter_provider
        tracers: Any = trace.get_tracer_provider() if tracer_provider is None else tracer_provider
        self._tracer: Final = MoveTracer(manager, tracers.get_tracer(_SCOPE, VERSION), trace, dict(self._attributes))
        with _sets_lock:
            found = _sets.get(meters)
            if found is None:
                found = InstrumentSet(metrics.Observation)
                found.create(meters.get_meter(_SCOPE, VERSION), take_samples(manager) + sample_events(None) + sample_shared(None))
                _sets[meters] = found
            self._set: Final = found
            found.join(self)
        try:
            manager._watch_moves(self._tracer)
        except BaseException:
            found.leave(self)
            raise
        self._is_open = True

    @property
    def attributes(self) -> dict[str, str]:
        """Those of every sample and span."""
        return dict(self._attributes)

    def _sample(self) -> list[MetricSamples]:
        """The metrics now; of a manager that is shut down or broken those of the last time. From any thread."""
        try:
            self._samples = self._take_samples()
        except KVCacheManagerError:
            pass
        return self._samples

    def close(self) -> None:
        """From now on no reader gets this manager's metrics, and its calls have no spans. Closing twice is fine."""
        if self._is_open:
            self._is_open = False
            self._set.leave(self)
            self._manager._watch_moves(None)

    def _take_samples(self) -> list[MetricSamples]:
        samples = take_samples(self._manager)
        if self._event_manager is not None:
            samples += sample_events(self._event_manager)
        if self._shared_level is not None:
            samples += sample_shared(self._shared_level)
        return samples


def _require_method(provider: object, method: str, name: str, kind: str) -> None:
    if provider is not None and not has_attribute(provider, method):
        raise TypeError(f"{name} must be an OpenTelemetry {kind} or None, not {type_name(provider)}, which has no {method}()")


@final
@mypyc_attr(native_class=True)
class InstrumentSet:
    """The instruments of one meter provider, for all exporters. Each manager is sampled once for each time that a reader asks."""

    __slots__ = ("_observation", "_lock", "_members", "_answered", "_samples")

    def __init__(self, observation: Any) -> None:
        """``observation``: the class of OpenTelemetry's."""
        self._observation: Final[Any] = observation
        self._lock: Final = Lock()
        self._members: list[OpenTelemetryExporter] = []
        self._answered: set[str] = set()
        """Instruments that were asked for since the samples were taken."""
        self._samples: list[tuple[dict[str, str], dict[str, MetricSamples]]] = []

    def create(self, meter: Any, described: list[MetricSamples]) -> None:
        """All instruments; once. ``described``: one metric for each."""
        for metric in described:
            self._create_one(meter, metric)

    def join(self, exporter: OpenTelemetryExporter) -> None:
        with self._lock:
            for member in self._members:
                if member.attributes == exporter.attributes:
                    raise ValueError(
                        f"attributes={exporter.attributes}: another OpenTelemetryExporter of this provider has the same, so their samples "
                        "could not be told apart; give each its own, such as attributes={'rank': '1'}, or close() the other one"
                    )
            self._members = [*self._members, exporter]
            self._answered = set(NAMES)

    def leave(self, exporter: OpenTelemetryExporter) -> None:
        with self._lock:
            self._members = [member for member in self._members if member is not exporter]
            self._answered = set(NAMES)

    def observe(self, name: str) -> list[Any]:
        """All observations of an instrument; called by a reader, on its thread."""
        with self._lock:
            if name in self._answered:
                self._samples = [(one.attributes, {metric.name: metric for metric in one._sample()}) for one in self._members]
                self._answered = set()
            self._answered.add(name)
            found: list[Any] = []
            for attributes, samples in self._samples:
                metric = samples.get(name)
                if metric is not None:
                    labels = [name_attribute(label) for label in metric.label_names]
                    for values, number in metric.samples:
                        found.append(self._observation(number, {**attributes, **dict(zip(labels, values, strict=True))}))
            return found

    def _create_one(self, meter: Any, metric: MetricSamples) -> None:
        name = metric.name

        def callback(options: Any) -> list[Any]:
            return self.observe(name)

        create = meter.create_observable_gauge
        if metric.kind == COUNTER:
            create = meter.create_observable_counter
        elif name in SUMMED:
            create = meter.create_observable_up_down_counter
        new_name, unit = NAMES[name]
        create(new_name, callbacks=[callback], unit=unit, description=metric.text)
