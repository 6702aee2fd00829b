"""The process's own clock, for statistics."""

import time
from typing import final


from ..stats.statistics_clock import StatisticsClock


@final
class MonotonicClock(StatisticsClock):
    """`time.monotonic`; any thread may read it."""

    __slots__ = ()

    def seconds(self) -> float:
        return time.monotonic()
