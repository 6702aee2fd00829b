"""A set of integers as sorted, disjoint, half-open intervals: the bytes of a range that are mapped.

Adjacent intervals are merged, so the set costs as much as it has holes, not as many bytes as it covers. It knows
nothing of memory; the caller validates before a change, and the set asserts that it did.
"""

from bisect import bisect_right
from typing import final

from mypy_extensions import i64


@final
class IntervalSet:
    """The intervals. Law: ``begs[0] < ends[0] < begs[1] < ends[1] < ...``."""

    __slots__ = ("_begs", "_ends")

    def __init__(self) -> None:
        self._begs: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        """The number of intervals."""
        return len(self._begs)

    def num_covered(self) -> int:
        """How many integers are in the set."""
        return sum(self._ends) - sum(self._begs)

    def beg(self, index: i64) -> int:
        return self._begs[index]

    def end(self, index: i64) -> int:
        return self._ends[index]

    def find(self, value: int) -> i64:
        """The index of the interval that contains ``value``, or -1."""
        index: i64 = bisect_right(self._begs, value) - 1
        return index if index >= 0 and value < self._ends[index] else -1

    def covers(self, beg: int, end: int) -> bool:
        """Whether all of ``[beg, end)`` is in the set."""
        index = self.find(beg)
        return index >= 0 and end <= self._ends[index]

    def overlaps(self, beg: int, end: int) -> bool:
        """Whether any of ``[beg, end)`` is in the set."""
        if self.find(beg) >= 0:
            return True
        index: i64 = bisect_right(self._begs, beg)
        return index < len(self._begs) and self._begs[index] < end

    def add(self, beg: int, end: int) -> None:
        """Add ``[beg, end)``; none of it was in the set."""
        assert beg < end
        assert not self.overlaps(beg, end)
        index: i64 = bisect_right(self._begs, beg)
        if index > 0 and self._ends[index - 1] == beg:
            beg = self._begs.pop(index - 1)
            self._ends.pop(index - 1)
            index -= 1
        if index < len(self._begs) and self._begs[index] == end:
            end = self._ends[index]
            self._begs.pop(index)
            self._ends.pop(index)
        self._begs.insert(index, beg)
        self._ends.insert(index, end)

    def remove(self, beg: int, end: int) -> None:
        """Remove ``[beg, end)``; all of it was in the set."""
        assert beg < end
        assert self.covers(beg, end)
        index = self.find(beg)
        old_beg = self._begs.pop(index)
        old_end = self._ends.pop(index)
        if end < old_end:
            self._begs.insert(index, end)
            self._ends.insert(index, old_end)
        if old_beg < beg:
            self._begs.insert(index, old_beg)
            self._ends.insert(index, beg)
