"""How long sampled blocks stay, and how long it is from one use to the next: histograms of seconds, for who has a clock.

No decision is made from a time, and without a clock (`KVCacheManager.record_block_times`) nobody looks at one.
"""

from collections.abc import Sequence
from typing import ClassVar, Final, final

from mypy_extensions import mypyc_attr

from ..base.handle import Handle
from .statistics_clock import StatisticsClock
from .time_histogram import TimeHistogram

BOUNDS: Final[Sequence[float]] = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0, 30000.0)
"""Seconds; a third of a power of ten each."""


@final
@mypyc_attr(native_class=True)
class BlockTimes(Handle):
    """Of the sampled blocks that were published since the clock was there; an entry for each that is here now."""

    __slots__ = ("lifetimes", "reuse_gaps", "idle_times", "_clock", "_born", "_used")

    _NAMES: ClassVar[str] = "a clock of this process"

    lifetimes: Final[TimeHistogram]
    """From being published to being gone."""
    reuse_gaps: Final[TimeHistogram]
    """From the last use to the next prompt that finds it."""
    idle_times: Final[TimeHistogram]
    """From the last use to being gone."""
    _clock: Final[StatisticsClock]
    _born: Final[dict[int, float]]
    _used: Final[dict[int, float]]

    def __init__(self, clock: StatisticsClock) -> None:
        self.lifetimes = TimeHistogram(BOUNDS)
        self.reuse_gaps = TimeHistogram(BOUNDS)
        self.idle_times = TimeHistogram(BOUNDS)
        self._clock = clock
        self._born = {}
        self._used = {}

    def record_published(self, key: int) -> None:
        """The manager calls it: the sampled block is in the tree from now on."""
        now = self._clock.seconds()
        self._born[key] = now
        self._used[key] = now

    def record_lookup(self, key: int) -> None:
        """The manager calls it: a prompt found the block."""
        if key in self._used:
            self.reuse_gaps.add(self._clock.seconds() - self._used[key])

    def record_used(self, key: int) -> None:
        """The manager calls it: a sequence used the block until now."""
        if key in self._used:
            self._used[key] = self._clock.seconds()

    def record_removal(self, key: int) -> None:
        """The manager calls it: the block's last page is gone."""
        born = self._born.pop(key, None)
        if born is not None:
            now = self._clock.seconds()
            self.lifetimes.add(now - born)
            self.idle_times.add(now - self._used.pop(key))
