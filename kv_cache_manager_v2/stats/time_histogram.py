"""A histogram of durations."""

from collections.abc import Sequence
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.value import Value


@final
class TimeHistogram(Value):
    """``counts[i]``: durations of at most ``bounds[i]`` and above the bound before; the last count has no bound."""

    __slots__ = ("bounds", "counts", "total_seconds")

    def __init__(self, bounds: Sequence[float], counts: Sequence[int] | None = None, total_seconds: float = 0.0) -> None:
        self.bounds: Final[Sequence[float]] = bounds
        """Seconds, ascending."""
        self.counts: Final[vec[i64]] = vec[i64]([0] * (len(bounds) + 1) if counts is None else counts)
        self.total_seconds: float = total_seconds

    def _arguments(self) -> tuple[object, ...]:
        return (self.bounds, [int(count) for count in self.counts], self.total_seconds)

    def add(self, seconds: float) -> None:
        """Count one duration."""
        position: i64 = 0
        for bound in self.bounds:
            if seconds <= bound:
                break
            position += 1
        self.counts[position] += 1
        self.total_seconds += seconds

    def cumulative(self) -> list[int]:
        """Durations of at most each bound, and the number of all."""
        total = 0
        sums: list[int] = []
        for count in self.counts:
            total += int(count)
            sums.append(total)
        return sums
