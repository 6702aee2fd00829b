"""Counters of a shared level, from its start on."""

from dataclasses import dataclass, fields
from threading import Lock
from typing import Final

from ..base.value import Value


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


_NAMES: Final = frozenset([field.name for field in fields(SharedStatistics)])


class SharedCounters:
    """The counters, for all threads."""

    def __init__(self) -> None:
        self._lock: Final = Lock()
        self._values: Final[dict[str, int]] = dict.fromkeys(_NAMES, 0)

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._values[name] += count

    def read(self) -> SharedStatistics:
        with self._lock:
            return SharedStatistics(**self._values)
