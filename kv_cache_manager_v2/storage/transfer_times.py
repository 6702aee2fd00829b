"""How long transfers between two levels take, on the device's own timers: histograms of seconds.

A transfer is what goes at once: pages of one pool group, from one level to another. It lasts from when its stream has waited for
the slots until the last byte is there. A timer is read when the next transfer goes the same way, or when the caller asks for the
figures, and only once its work is done; no call waits, and no decision depends on it. Of one way at most `MAX_PENDING` timers run;
transfers beyond are counted as not timed, as are those of a device without a clock.
"""

from collections.abc import Sequence
from typing import ClassVar, Final, final

from mypy_extensions import i64

from ..base.handle import Handle
from ..device.port import NO_TIMER, STILL_RUNNING, Device
from ..stats.time_histogram import TimeHistogram

BOUNDS: Final[Sequence[float]] = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Seconds; a third of a power of ten each."""
MAX_PENDING: Final = 64


@final
class _Way:
    """From one level to another. ``timers``: those that run, oldest first."""

    __slots__ = ("histogram", "timers")

    def __init__(self) -> None:
        self.histogram: Final = TimeHistogram(BOUNDS)
        self.timers: Final[list[int]] = []


@final
class TransferTimes(Handle):
    """Times of transfers, from `KVCacheManager.time_transfers`; read on the thread that calls the manager."""

    __slots__ = ("num_not_timed", "_device", "_ways", "_num_levels")

    _NAMES: ClassVar[str] = "a device of this process"

    def __init__(self, device: Device, num_levels: i64) -> None:
        self.num_not_timed: int = 0
        """Transfers that were not timed."""
        self._device: Final = device
        self._num_levels: Final = num_levels
        self._ways: Final[list[_Way]] = [_Way() for _ in range(num_levels * num_levels)]
        """By source level * number of levels + target level."""

    def start(self, stream: int, source_level: i64, target_level: i64) -> int:
        """The manager calls it, before a transfer is enqueued: the timer to `stop`, or NO_TIMER."""
        way = self._ways[source_level * self._num_levels + target_level]
        self._collect_way(way)
        timer = NO_TIMER
        if len(way.timers) < MAX_PENDING:
            timer = self._device.start_timer(stream)
        if timer == NO_TIMER:
            self.num_not_timed += 1
        return timer

    def stop(self, stream: int, timer: int, source_level: i64, target_level: i64) -> None:
        """The manager calls it, behind the transfer."""
        self._device.stop_timer(stream, timer)
        self._ways[source_level * self._num_levels + target_level].timers.append(timer)

    def cancel(self, timer: int) -> None:
        """The manager calls it: the device refused the transfer."""
        self.num_not_timed += 1
        self._device.release_timer(timer)

    def collect(self) -> None:
        """Look which transfers are over by now; `histogram` has them then."""
        for way in self._ways:
            self._collect_way(way)

    def histogram(self, source_level: int, target_level: int) -> TimeHistogram:
        """The histogram of that way, as far as it was collected."""
        if not (0 <= source_level < self._num_levels and 0 <= target_level < self._num_levels):
            raise ValueError(f"levels {source_level} and {target_level}: there are {self._num_levels} cache levels")
        return self._ways[source_level * int(self._num_levels) + target_level].histogram

    def close(self) -> None:
        """The manager calls it, when nothing that it enqueued is running. The figures stay."""
        self.collect()
        for way in self._ways:
            while way.timers:
                self.num_not_timed += 1
                self._device.release_timer(way.timers.pop())

    def _collect_way(self, way: _Way) -> None:
        timers = way.timers
        while len(timers) > 0:
            seconds = self._device.read_timer(timers[0])
            if seconds == STILL_RUNNING:
                # One stream: those behind are not through either.
                return
            self._device.release_timer(timers[0])
            timers.pop(0)
            if seconds >= 0.0:
                way.histogram.add(seconds)
            else:
                self.num_not_timed += 1
