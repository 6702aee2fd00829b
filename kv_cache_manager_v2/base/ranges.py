"""A half-open range of ints, ``[beg, end)``: block ordinals, token positions, bytes."""

from collections.abc import Iterator
from typing import Final, final


from .checks import to_int
from .given import Given
from .value import Value


@final
class HalfOpenRange(Value):
    """``[beg, end)``. Empty, and false, when ``end <= beg``; two empty ranges need not be equal."""

    __slots__ = ("beg", "end")

    def __init__(self, beg: Given[int], end: Given[int]) -> None:
        self.beg: Final[int] = to_int(beg, "beg")
        self.end: Final[int] = to_int(end, "end")

    def __len__(self) -> int:
        return self.end - self.beg if self.end > self.beg else 0

    def __bool__(self) -> bool:
        return self.end > self.beg

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.beg <= value < self.end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.beg, self.end))


def intersect(a: HalfOpenRange, b: HalfOpenRange) -> HalfOpenRange:
    """The ints in both ranges; an empty result keeps ``end == beg``."""
    beg = a.beg if a.beg > b.beg else b.beg
    end = a.end if a.end < b.end else b.end
    return HalfOpenRange(beg, end if end > beg else beg)
