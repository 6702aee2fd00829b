"""Counters of a shared level, from its start on."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from threading import Lock
from typing import Final

from ..base.value import Value
from ..metrics.shared_samples import SharedFacts
from ..stats.time_histogram import TimeHistogram
from .shared_store import FAILURE_CAUSES, STUCK

KINDS: Final = ("lookup", "load", "store")


@dataclass(frozen=True)
class SharedStatistics(Value):
    """What happened so far; blocks count once for each layer group, as pages."""

    lookups: int = 0
    """Look-ups that were answered."""
    looked_up_pages: int = 0
    found_pages: int = 0
    loaded_pages: int = 0
    loaded_bytes: int = 0
    missing_pages: int = 0
    """Pages that were found, and gone when they were loaded."""
    corrupt_pages: int = 0
    """Records that were not what was stored, or another block's: a miss each, and removed."""
    stored_pages: int = 0
    stored_bytes: int = 0
    dropped_pages: int = 0
    """Pages that were not stored: no staging slot was free, the store was full, failed or was not asked."""
    failures: int = 0
    """Operations of one endpoint that failed."""
    refusals: int = 0
    """Operations of one endpoint that were not begun, as its breaker was open."""
    deadlines: int = 0
    """Operations that were answered while a thread was still busy with them: no byte had moved for too long."""
    full_stores: int = 0
    """Times that a store had no room."""


DROPS: Final = ("slots", "full", "copy", "store")
"""Why pages were not stored: no staging slot was free; the store was full; the device did not copy; the store failed or was not asked."""
TIME_BOUNDS: Final[Sequence[float]] = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
_NAMES: Final = frozenset([field.name for field in fields(SharedStatistics)])


class SharedCounters:
    """The counters, for all threads."""

    def __init__(self) -> None:
        self._lock: Final = Lock()
        self._values: Final[dict[str, int]] = dict.fromkeys(_NAMES, 0)
        self._failures: Final[dict[str, int]] = dict.fromkeys(FAILURE_CAUSES, 0)
        self._drops: Final[dict[str, int]] = dict.fromkeys(DROPS, 0)
        self._times: Final = {name: TimeHistogram(TIME_BOUNDS) for name in KINDS}

    def add_failure(self, cause: str) -> None:
        """An operation of one endpoint has failed."""
        with self._lock:
            self._values["failures"] += 1
            self._failures[cause if cause in self._failures else "other"] += 1

    def add_deadline(self) -> None:
        """An operation was answered while a thread is busy with it."""
        with self._lock:
            self._values["deadlines"] += 1
            self._failures[STUCK] += 1

    def add_dropped(self, cause: str, count: int) -> None:
        """Pages are not stored."""
        with self._lock:
            self._values["dropped_pages"] += count
            self._drops[cause] += count

    def add_time(self, kind: str, seconds: float) -> None:
        """An operation of one endpoint has ended."""
        with self._lock:
            self._times[kind].add(seconds)

    def read_facts(self, open_stores: dict[str, bool], slots: dict[tuple[str, str], int]) -> SharedFacts:
        """Everything, for exporters."""
        with self._lock:
            values = self._values
            outcomes = ("looked_up", "found", "loaded", "missing", "corrupt", "stored")
            return SharedFacts(
                values["lookups"],
                {outcome: values[f"{outcome}_pages"] for outcome in outcomes},
                {"load": values["loaded_bytes"], "store": values["stored_bytes"]},
                dict(self._failures),
                dict(self._drops),
                values["refusals"],
                open_stores,
                slots,
                {name: TimeHistogram(TIME_BOUNDS, [int(n) for n in time.counts], time.total_seconds) for name, time in self._times.items()},
            )

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._values[name] += count

    def read(self) -> SharedStatistics:
        with self._lock:
            return SharedStatistics(**self._values)
