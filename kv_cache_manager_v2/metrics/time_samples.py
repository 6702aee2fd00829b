"""Durations as histograms of Prometheus, and the clock that they are measured with."""

import time
from typing import Final, final

from mypy_extensions import mypyc_attr

from ..stats.block_times import BOUNDS, BlockTimes, StatisticsClock, TimeHistogram
from .metric_samples import PREFIX


@final
@mypyc_attr(native_class=True)
class MonotonicClock(StatisticsClock):
    __slots__ = ()

    def seconds(self) -> float:
        return time.monotonic()


@final
@mypyc_attr(native_class=True)
class HistogramSamples:
    """One histogram at one moment. ``buckets``: upper bound, as Prometheus writes it, and how many times were at most that long."""

    __slots__ = ("name", "text", "buckets", "total_seconds")

    name: Final[str]
    text: Final[str]
    buckets: Final[list[tuple[str, float]]]
    total_seconds: Final[float]

    def __init__(self, name: str, text: str, histogram: TimeHistogram) -> None:
        self.name = PREFIX + name
        self.text = text
        bounds = [str(bound) for bound in BOUNDS] + ["+Inf"]
        self.buckets = [(bound, float(count)) for bound, count in zip(bounds, histogram.cumulative(), strict=True)]
        self.total_seconds = histogram.total_seconds


def sample_times(times: BlockTimes) -> list[HistogramSamples]:
    return [
        HistogramSamples("block_lifetime_seconds", "From when a sampled block is published until it is gone", times.lifetimes),
        HistogramSamples("block_reuse_gap_seconds", "From the last use of a sampled block until a prompt finds it", times.reuse_gaps),
        HistogramSamples("block_idle_before_evict_seconds", "From the last use of a sampled block until it is gone", times.idle_times),
    ]
