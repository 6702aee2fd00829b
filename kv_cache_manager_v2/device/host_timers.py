"""Timers of `HostDevice`: clock readings by the thread that does the work, when a stream reaches a mark.

With an empty queue that is at once. After work with a disk it is the time at which the thread that did the last of it finished,
whenever the stream's queue is looked at.
"""

from typing import Final, final

from mypy_extensions import i64

from ..stats.statistics_clock import StatisticsClock
from .handle_table import HandleTable, handle_index
from .port import STILL_RUNNING

_NOT_THERE: Final = -1.0


@final
class HostTimer:
    """``begin`` and ``end`` are set when the stream gets there."""

    __slots__ = ("begin", "end")

    def __init__(self) -> None:
        self.begin: float = _NOT_THERE
        self.end: float = _NOT_THERE


@final
class HostTimers:
    __slots__ = ("clock", "_handles", "_timers")

    def __init__(self, clock: StatisticsClock) -> None:
        self.clock: Final = clock
        self._handles: Final = HandleTable("timer")
        self._timers: Final[list[HostTimer]] = []  # by the handle's index

    def make(self) -> i64:
        handle = self._handles.allocate()
        index = handle_index(handle)
        if index == len(self._timers):
            self._timers.append(HostTimer())
        else:
            # The index's previous timer may still have marks in a queue.
            self._timers[index] = HostTimer()
        return handle

    def find(self, handle: i64) -> HostTimer:
        self._handles.require_live(handle)
        return self._timers[handle_index(handle)]

    def read(self, handle: i64) -> float:
        timer = self.find(handle)
        return STILL_RUNNING if timer.begin < 0.0 or timer.end < 0.0 else max(timer.end - timer.begin, 0.0)

    def release(self, handle: i64) -> None:
        self._handles.free(handle)
