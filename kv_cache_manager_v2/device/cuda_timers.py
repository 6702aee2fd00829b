"""Timers of `CudaDevice`: pooled pairs of CUDA events with times.

    state      read                                       ways out
    started    STILL_RUNNING                              stop, release
    stopped    STILL_RUNNING, until the stream is past it read (stays stopped), release
    refused    NOT_MEASURED: the driver said no           release

A driver error on a timer is ignored: if the work itself failed, its own calls report that.
"""

from typing import Any, Final, final

from mypy_extensions import i64

from ..base.errors import KVCacheManagerError
from .cuda_context import CudaContext
from .cuda_driver import CudaDriver
from .handle_table import HandleTable, handle_index
from .port import NO_TIMER, NOT_MEASURED, STILL_RUNNING

_WITH_TIMING: Final = 0
_MILLISECOND: Final = 0.001

_STARTED: Final = 0
_STOPPED: Final = 1
_REFUSED: Final = 2


@final
class CudaTimers:
    __slots__ = ("_driver", "_context", "_handles", "_begins", "_ends", "_states")

    def __init__(self, driver: CudaDriver, context: CudaContext) -> None:
        self._driver: Final = driver
        self._context: Final = context
        self._handles: Final = HandleTable("timer")
        self._begins: Final[list[Any]] = []  # by the handle's index, like the next two
        self._ends: Final[list[Any]] = []
        self._states: Final[list[int]] = []

    def start(self, stream: int) -> i64:
        handle = self._handles.allocate()
        index = handle_index(handle)
        try:
            with self._context:
                self._reach(index)
                self._driver.record_event(self._begins[index], stream)
        except KVCacheManagerError:
            self._handles.free(handle)
            return NO_TIMER
        self._states[index] = _STARTED
        return handle

    def stop(self, stream: int, handle: i64) -> None:
        self._handles.require_live(handle)
        index = handle_index(handle)
        try:
            with self._context:
                self._driver.record_event(self._ends[index], stream)
            self._states[index] = _STOPPED
        except KVCacheManagerError:
            self._states[index] = _REFUSED

    def read(self, handle: i64) -> float:
        self._handles.require_live(handle)
        index = handle_index(handle)
        state = self._states[index]
        if state != _STOPPED:
            return NOT_MEASURED if state == _REFUSED else STILL_RUNNING
        try:
            if not self._driver.is_event_done(self._ends[index]):
                return STILL_RUNNING
            milliseconds: float = self._driver.call("cuEventElapsedTime", self._begins[index], self._ends[index])
        except KVCacheManagerError:
            return NOT_MEASURED
        return milliseconds * _MILLISECOND

    def release(self, handle: i64) -> None:
        self._handles.free(handle)

    def close(self) -> None:
        """Destroy the events; the context is current. If the driver refuses, it raises and may be called again."""
        for events in (self._begins, self._ends):
            while events:
                self._driver.call("cuEventDestroy", events[-1])
                events.pop()
        self._states.clear()

    def _reach(self, index: i64) -> None:
        """Make a pair of events for the index, which is at most one above the highest so far."""
        if index == len(self._begins):
            self._begins.append(self._driver.call("cuEventCreate", _WITH_TIMING))
        if index == len(self._ends):
            self._ends.append(self._driver.call("cuEventCreate", _WITH_TIMING))
        if index == len(self._states):
            self._states.append(_STARTED)
