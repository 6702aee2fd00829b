"""How long the manager's calls take: count, mean, p50, p99 and maximum per kind of call, in bounded memory.

Times go into buckets whose width grows with the time (32 per power of two), so a quantile is within 1/32 of the truth
and a recorder has the same size after a second as after a day.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

# The kinds of call, as indices: recording one must cost next to nothing.
CREATE: Final = 0
RESUME: Final = 1
SUSPEND: Final = 2
RESIZE: Final = 3
RESIZE_BATCH: Final = 4
COMMIT: Final = 5
CLOSE: Final = 6
PREFETCH: Final = 7
PUBLISH_PLANNED: Final = 8
CAN_FINISH: Final = 9
ADJUST: Final = 10
CALL_NAMES: Final = (
    "create_kv_cache", "resume", "suspend", "resize", "resize_batch", "commit", "close", "prefetch", "publish_planned", "can_finish",
    "adjust",
)  # fmt: skip

_SUB_BUCKETS: Final = 32
_NUM_BUCKETS: Final = 1024
"""Reaches 32 * 2**31 ns, over a minute; longer times count as that."""


@final
class LatencyHistogram:
    """Durations in nanoseconds. ``count`` is the sum of the buckets."""

    __slots__ = ("count", "total_ns", "max_ns", "_buckets")

    def __init__(self) -> None:
        self.count: i64 = 0
        self.total_ns: i64 = 0
        self.max_ns: i64 = 0
        self._buckets: vec[i64] = vec[i64]([0] * _NUM_BUCKETS)

    def add(self, duration_ns: i64) -> None:
        self.count += 1
        self.total_ns += duration_ns
        if duration_ns > self.max_ns:
            self.max_ns = duration_ns
        bucket = bucket_of(duration_ns)
        self._buckets[bucket] += 1

    @property
    def mean_ns(self) -> float:
        return float(self.total_ns) / float(self.count) if self.count > 0 else 0.0

    def quantile_ns(self, fraction: float) -> float:
        """The least bucket with at least this share of all durations in it or under it: the middle of that bucket."""
        if self.count == 0:
            return 0.0
        wanted = fraction * float(self.count)
        seen = 0
        for bucket in range(_NUM_BUCKETS):
            seen += int(self._buckets[bucket])
            if seen >= wanted and seen > 0:
                return min(_middle_of(bucket), float(self.max_ns))
        return float(self.max_ns)


def bucket_of(duration_ns: i64) -> i64:
    """Durations under 32 ns have a bucket each; above, 32 buckets share each power of two."""
    if duration_ns < _SUB_BUCKETS:
        return duration_ns if duration_ns > 0 else 0
    exponent: i64 = 0
    leading = duration_ns
    while leading >= 2 * _SUB_BUCKETS:
        leading >>= 1
        exponent += 1
    bucket = (exponent + 1) * _SUB_BUCKETS + (leading - _SUB_BUCKETS)
    return bucket if bucket < _NUM_BUCKETS else _NUM_BUCKETS - 1


def _middle_of(bucket: int) -> float:
    if bucket < _SUB_BUCKETS:
        return float(bucket)
    exponent = bucket // _SUB_BUCKETS - 1
    least = (_SUB_BUCKETS + bucket % _SUB_BUCKETS) << exponent
    return float(least) + float((1 << exponent) - 1) / 2.0


@final
class CallRecorder:
    """One histogram per kind of call."""

    __slots__ = ("histograms",)

    def __init__(self) -> None:
        self.histograms: Final[tuple[LatencyHistogram, ...]] = tuple([LatencyHistogram() for _ in CALL_NAMES])

    def add(self, kind: int, duration_ns: i64) -> None:
        self.histograms[kind].add(duration_ns)

    @property
    def total_ns(self) -> int:
        """Time inside the manager's calls, all kinds."""
        total = 0
        for histogram in self.histograms:
            total += histogram.total_ns
        return total
