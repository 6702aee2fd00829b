"""Long work on a thread of its own, beside an engine that must not wait for it.

Compiled code keeps the interpreter until it returns, however many threads are waiting; of interpreted code Python takes it away every 5 ms.
So a loop that may take longer lets others run by itself. No decision depends on when.
"""

import time
from typing import Final, final

from mypy_extensions import i64

_TURN_SECONDS: Final = 0.001


@final
class FairTurns:
    """`pause` in a loop, every few microseconds of work: once a millisecond other threads may run. 0.1 us otherwise."""

    __slots__ = ("num_asked", "_end")

    def __init__(self) -> None:
        self.num_asked: i64 = 0
        """Calls of `pause` so far."""
        self._end = 0.0

    def pause(self) -> None:
        self.num_asked += 1
        if time.monotonic() >= self._end:
            time.sleep(0)
            self._end = time.monotonic() + _TURN_SECONDS
