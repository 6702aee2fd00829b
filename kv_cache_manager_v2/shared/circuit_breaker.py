"""A circuit breaker: an endpoint that fails again and again is not asked for a while, so that it costs microseconds.

    state      ways out
    CLOSED     `FAILURES_TO_OPEN` failures in a row -> OPEN
    OPEN       `OPEN_SECONDS` later the next operation is a probe -> PROBING
    PROBING    it succeeds -> CLOSED; it fails -> OPEN; others are refused meanwhile, for `OPEN_SECONDS` at most
"""

from threading import Lock
from typing import Final

FAILURES_TO_OPEN: Final = 2
OPEN_SECONDS: Final = 0.4


class CircuitBreaker:
    """Of one endpoint, for all threads."""

    def __init__(self) -> None:
        self._lock: Final = Lock()
        self._num_failures = 0
        self._open_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the endpoint has failed and no probe has succeeded since."""
        return self._num_failures >= FAILURES_TO_OPEN

    def refuses(self, now: float) -> bool:
        """Whether no operation may begin just now, not even a probe."""
        return self._num_failures >= FAILURES_TO_OPEN and now < self._open_until

    def open(self, now: float) -> None:
        """The endpoint does not answer: the next operation is a probe, `OPEN_SECONDS` from now."""
        with self._lock:
            self._num_failures = FAILURES_TO_OPEN
            self._open_until = now + OPEN_SECONDS

    def allows(self, now: float) -> bool:
        """Whether an operation may begin; if the breaker is open, the one that may is the probe."""
        with self._lock:
            if self._num_failures < FAILURES_TO_OPEN:
                return True
            if now < self._open_until:
                return False
            self._open_until = now + OPEN_SECONDS
            return True

    def record_success(self) -> bool:
        """Whether that closes the breaker."""
        with self._lock:
            was_open = self._num_failures >= FAILURES_TO_OPEN
            self._num_failures = 0
            return was_open

    def record_failure(self, now: float) -> bool:
        """Whether that opens the breaker, which was closed."""
        with self._lock:
            self._num_failures += 1
            self._open_until = now + OPEN_SECONDS
            return self._num_failures == FAILURES_TO_OPEN
