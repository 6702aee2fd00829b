"""Times of sampled blocks: how long they stay, and how long from one use to the next. Histograms of seconds.

They need a clock (`KVCacheManager.record_block_times`); without one nothing is measured. No decision depends on a time.
"""

from collections.abc import Sequence
from typing import ClassVar, Final, final


from ..base.handle import Handle
from .statistics_clock import StatisticsClock
from .time_histogram import TimeHistogram

BOUNDS: Final[Sequence[float]] = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0, 30000.0)
"""Seconds; three bounds per power of ten."""


@final
class BlockTimes(Handle):
    """Times of the sampled blocks that were published since the clock was set; one entry for each block that is in the cache."""

    __slots__ = ("lifetimes", "reuse_gaps", "idle_times", "_clock", "_born", "_used")

    _NAMES: ClassVar[str] = "a clock of this process"

    def __init__(self, clock: StatisticsClock) -> None:
        self.lifetimes: Final[TimeHistogram] = TimeHistogram(BOUNDS)
        """From publishing to removal."""
        self.reuse_gaps: Final[TimeHistogram] = TimeHistogram(BOUNDS)
        """From the last use to the next prompt that finds it."""
        self.idle_times: Final[TimeHistogram] = TimeHistogram(BOUNDS)
        """From the last use to removal."""
        self._clock: Final = clock
        self._born: Final[dict[int, float]] = {}
        self._used: Final[dict[int, float]] = {}

    def record_published(self, key: int) -> None:
        """The sampled block was published; called by the manager."""
        now = self._clock.seconds()
        self._born[key] = now
        self._used[key] = now

    def record_lookup(self, key: int) -> None:
        """A prompt matched the block; called by the manager."""
        if key in self._used:
            self.reuse_gaps.add(self._clock.seconds() - self._used[key])

    def record_used(self, key: int) -> None:
        """A sequence stopped using the block; called by the manager."""
        if key in self._used:
            self._used[key] = self._clock.seconds()

    def record_removal(self, key: int) -> None:
        """The block's last page was removed; called by the manager."""
        born = self._born.pop(key, None)
        if born is not None:
            now = self._clock.seconds()
            self.lifetimes.add(now - born)
            self.idle_times.add(now - self._used.pop(key))
