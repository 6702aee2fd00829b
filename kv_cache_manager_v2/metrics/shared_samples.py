"""Metrics of a shared level, which lies above this folder: it hands over its numbers as `SharedFacts`."""

from abc import ABCMeta, abstractmethod
from typing import ClassVar, Final, final

from mypy_extensions import mypyc_attr

from ..base.handle import Handle
from ..base.value import Value
from ..stats.time_histogram import TimeHistogram
from .metric_samples import COUNTER, GAUGE, MetricSamples
from .time_samples import HistogramSamples


@final
class SharedFacts(Value):
    """``pages``: by outcome. ``failures``, ``dropped``: by cause. ``open_stores``: by endpoint, whether its breaker is open.
    ``slots``: of staging, by (use, state). ``times``: of operations of one endpoint, by kind."""

    __slots__ = ("lookups", "pages", "num_bytes", "failures", "dropped", "refusals", "open_stores", "slots", "times")

    def __init__(
        self,
        lookups: int,
        pages: dict[str, int],
        num_bytes: dict[str, int],
        failures: dict[str, int],
        dropped: dict[str, int],
        refusals: int,
        open_stores: dict[str, bool],
        slots: dict[tuple[str, str], int],
        times: dict[str, TimeHistogram],
    ) -> None:
        self.lookups: Final[int] = lookups
        self.pages: Final[dict[str, int]] = pages
        self.num_bytes: Final[dict[str, int]] = num_bytes
        self.failures: Final[dict[str, int]] = failures
        self.dropped: Final[dict[str, int]] = dropped
        self.refusals: Final[int] = refusals
        self.open_stores: Final[dict[str, bool]] = open_stores
        self.slots: Final[dict[tuple[str, str], int]] = slots
        self.times: Final[dict[str, TimeHistogram]] = times

    def __repr__(self) -> str:
        return f"SharedFacts({self.lookups} look-ups, pages={self.pages}, failures={self.failures})"


@mypyc_attr(allow_interpreted_subclasses=True)
class SharedSource(Handle, metaclass=ABCMeta):
    """The argument ``shared_level`` of exporters; `kv_cache_manager_v2.shared.SharedLevel` is one."""

    __slots__ = ()

    _NAMES: ClassVar[str] = "connections and threads of this process"

    @abstractmethod
    def read_facts(self) -> SharedFacts:
        """The numbers now; from any thread, also when closed."""
        raise NotImplementedError("SharedSource.read_facts is for subclasses to define")


def to_shared_source(value: object) -> SharedSource | None:
    """The ``shared_level`` that an exporter was given, checked."""
    if value is None or isinstance(value, SharedSource):
        return value
    raise TypeError(f"shared_level must be a SharedLevel or None, not {type(value).__name__}")


def sample_shared(source: SharedSource | None) -> list[MetricSamples]:
    """Metrics of a shared level; without samples if there is none."""
    lookups = MetricSamples("shared_lookups", COUNTER, "Look-ups in the shared level that were answered")
    pages = MetricSamples("shared_pages", COUNTER, "Pages that were asked for in the shared level, by outcome", ("outcome",))
    num_bytes = MetricSamples("shared_bytes", COUNTER, "Bytes of records loaded from the shared level, and stored there", ("direction",))
    failures = MetricSamples("shared_failures", COUNTER, "Operations of the shared level that failed, by cause", ("cause",))
    dropped = MetricSamples("shared_dropped_pages", COUNTER, "Pages that were not stored in the shared level, by cause", ("cause",))
    refusals = MetricSamples("shared_refusals", COUNTER, "Operations that were not begun, as the store's breaker was open")
    stores = MetricSamples("shared_store_open", GAUGE, "1 if the breaker of that store is open: only probes ask it", ("store",))
    slots = MetricSamples("shared_slots", GAUGE, "Staging slots of the shared level, by use and state", ("use", "state"))
    if source is not None:
        facts = source.read_facts()
        lookups.add((), float(facts.lookups))
        refusals.add((), float(facts.refusals))
        for metric, values in ((pages, facts.pages), (num_bytes, facts.num_bytes), (failures, facts.failures), (dropped, facts.dropped)):
            for name, value in values.items():
                metric.add((name,), float(value))
        for endpoint, is_open in facts.open_stores.items():
            stores.add((endpoint,), float(is_open))
        for labels, count in facts.slots.items():
            slots.add(labels, float(count))
    return [lookups, pages, num_bytes, failures, dropped, refusals, stores, slots]


def sample_shared_times(source: SharedSource | None) -> HistogramSamples:
    """The histogram of operations of one store; without samples if there is no shared level."""
    times = HistogramSamples("shared_seconds", "Duration of an operation of one store, failed ones included", ("operation",))
    if source is not None:
        for name, histogram in source.read_facts().times.items():
            times.add((name,), histogram)
    return times
