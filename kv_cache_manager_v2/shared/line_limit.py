"""A limit for log lines of one kind, as a store that fails would have many."""

from time import monotonic
from typing import Final

_SECONDS: Final = 10.0


class LineLimit:
    """One line in ten seconds; the metrics have the numbers."""

    def __init__(self) -> None:
        self._next = 0.0

    def is_due(self) -> bool:
        """Whether a line may be logged now; then the next one is not, for a while."""
        now = monotonic()
        if now < self._next:
            return False
        self._next = now + _SECONDS
        return True
