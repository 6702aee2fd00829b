"""A circuit breaker: an endpoint that fails again and again is not asked, so that it costs microseconds.

    state      ways out
    CLOSED     `FAILURES_TO_OPEN` failures in a row -> OPEN
    OPEN       a probe succeeds -> CLOSED

Probes are the workers' own, on a thread for each open endpoint (`store_workers`): no request waits for one.
"""

from threading import Lock
from typing import Final

FAILURES_TO_OPEN: Final = 2
PROBE_SECONDS: Final = 0.1
"""From one probe to the next."""


class CircuitBreaker:
    """Of one endpoint, for all threads."""

    def __init__(self) -> None:
        self._lock: Final = Lock()
        self._num_failures = 0

    @property
    def is_open(self) -> bool:
        """Whether the endpoint has failed and no probe has succeeded since: it is not asked."""
        return self._num_failures >= FAILURES_TO_OPEN

    def record_success(self) -> bool:
        """Whether that closes the breaker."""
        with self._lock:
            was_open = self.is_open
            self._num_failures = 0
            return was_open

    def record_failure(self, opens: bool = False) -> bool:
        """Whether that opens the breaker, which was closed. ``opens``: it is enough for that, however few there were."""
        with self._lock:
            was_open = self.is_open
            self._num_failures = FAILURES_TO_OPEN if opens else self._num_failures + 1
            return self.is_open and not was_open
