"""What a rank's shared level has found out so far: plain values, which ranks exchange and reduce.

An *operation* is a look-up or a load, named by its request and a step, alike on all ranks. Its answer is the prefix lengths, in blocks,
that can be restored: as ranges, since with windows not every length below the longest one can. No answer is in a report before it is
known, and it stays the same in later ones until it was admitted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.checks import to_bool, to_count
from ..base.errors import LogicError
from ..base.value import Value


@dataclass(frozen=True)
class RemoteAnswer(Value):
    """Of one operation. ``lengths``: ``(first, last)`` of each range, ascending; none: nothing was found or arrived.

    ``is_ended``: no thread is busy with it any more. ``has_failed``: it was answered while one was.
    """

    request: int
    step: int
    lengths: tuple[tuple[int, int], ...]
    is_ended: bool
    has_failed: bool = False

    def __post_init__(self) -> None:
        to_count(self.request, "request")
        to_count(self.step, "step")
        to_bool(self.is_ended, "is_ended")
        to_bool(self.has_failed, "has_failed")
        last = 0
        if not isinstance(self.lengths, tuple):
            raise TypeError(f"lengths must be a tuple of (first, last), not {type(self.lengths).__name__}")
        for pair in self.lengths:
            if not isinstance(pair, tuple) or len(pair) != 2 or not all([type(number) is int for number in pair]):
                raise TypeError(f"lengths must be a tuple of (first, last), not {self.lengths!r}")
            if not last < pair[0] <= pair[1]:
                raise ValueError(f"lengths is {self.lengths!r}; its ranges must ascend")
            last = pair[1]


@dataclass(frozen=True)
class RemoteReport(Value):
    """The answers of one rank, or what several ranks agree on; pickle or send it as you like."""

    answers: tuple[RemoteAnswer, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.answers, tuple) or not all([isinstance(answer, RemoteAnswer) for answer in self.answers]):
            raise TypeError(f"answers must be a tuple of RemoteAnswer, not {self.answers!r}")

    @staticmethod
    def reduce(reports: Sequence["RemoteReport"]) -> "RemoteReport":
        """What all ranks can do: an operation that each has answered, the lengths that each can restore, ended where it is on all."""
        if not isinstance(reports, (list, tuple)) or not all([isinstance(report, RemoteReport) for report in reports]):
            raise TypeError(f"reports must be a list of RemoteReport, one of each rank, not {reports!r}")
        if len(reports) == 0:
            raise LogicError("reduce() of no reports; give one of each rank, this one's included")
        by_rank = [{(answer.request, answer.step): answer for answer in report.answers} for report in reports]
        agreed: list[RemoteAnswer] = []
        for first in reports[0].answers:
            name = (first.request, first.step)
            if not all([name in answers for answers in by_rank]):
                continue
            lengths = first.lengths
            for answers in by_rank[1:]:
                lengths = intersect_ranges(lengths, answers[name].lengths)
            is_ended = all([answers[name].is_ended for answers in by_rank])
            has_failed = any([answers[name].has_failed for answers in by_rank])
            agreed.append(RemoteAnswer(first.request, first.step, lengths, is_ended, has_failed))
        return RemoteReport(tuple(agreed))


def intersect_ranges(left: tuple[tuple[int, int], ...], right: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The numbers that are in both."""
    both: list[tuple[int, int]] = []
    at = 0
    for first, last in left:
        while at < len(right) and right[at][1] < first:
            at += 1
        position = at
        while position < len(right) and right[position][0] <= last:
            both.append((max(first, right[position][0]), min(last, right[position][1])))
            position += 1
    return tuple(both)


def to_ranges(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if len(ranges) > 0 and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)


def largest_at_most(ranges: tuple[tuple[int, int], ...], limit: int) -> int:
    """The largest of the numbers up to the limit; 0 if there is none."""
    best = 0
    for first, last in ranges:
        if first <= limit:
            best = min(last, limit)
    return best
