"""Which base page indices differ from those that the user took last, as exact ranges.

A `ChangedBlocks` of the page table keeps one of these. Entries that were set are kept as runs; `take` compares these alone
with a copy of the entries as they were taken. So a look costs what was set since the last one, and an index that came back to what it was
is no change. Runs are put in order and joined whenever there are twice as many as after the last time: a table that no user looks at
keeps no more than its blocks.
"""

from typing import Final, final

from librt.vecs import append, extend, vec
from mypy_extensions import i32, i64

from ..base.ids import BAD_PAGE_INDEX
from ..base.ranges import HalfOpenRange

_LEAST_RUNS: Final = 32


@final
class IndexChanges:
    __slots__ = ("_begins", "_ends", "_most_runs", "_taken", "_num_taken")

    def __init__(self) -> None:
        self._begins: list[int] = []
        """Begins of runs of entries that were set since the last look, in the order of the calls."""
        self._ends: list[int] = []
        self._most_runs: i64 = _LEAST_RUNS
        """So many runs are put in order before another one is added."""
        self._taken = vec[i32]()
        """The entries as they were taken."""
        self._num_taken: i64 = 0
        """Blocks that there were then; 0 before the first look."""

    def record(self, ordinal: i64) -> None:
        """The entry was set."""
        last = len(self._ends) - 1
        if last >= 0 and self._begins[last] <= ordinal <= self._ends[last]:
            if ordinal == self._ends[last]:
                self._ends[last] = ordinal + 1
            return
        if len(self._ends) >= self._most_runs:
            self._join_runs()
        self._begins.append(int(ordinal))
        self._ends.append(int(ordinal) + 1)

    def take(self, entries: vec[i32], num_blocks: i64) -> list[HalfOpenRange]:
        """In order; entries behind the blocks that there were at the last look are among them."""
        self._join_runs()
        if num_blocks > len(self._taken):
            bad: i32 = BAD_PAGE_INDEX
            self._taken = extend(self._taken, vec[i32]([bad] * (num_blocks + (num_blocks >> 1) - len(self._taken))))
        changed = vec[i64]()
        taken = self._taken
        # Behind the last block there is nothing to change; when there is a block again, it counts as new.
        known = self._num_taken if self._num_taken < num_blocks else num_blocks
        ordinal: i64
        for begin, end in zip(self._begins, self._ends):
            for ordinal in range(begin, min(end, known)):
                if taken[ordinal] != entries[ordinal]:
                    taken[ordinal] = entries[ordinal]
                    changed = append(changed, ordinal)
        for ordinal in range(known, num_blocks):
            taken[ordinal] = entries[ordinal]
            changed = append(changed, ordinal)
        self._num_taken = num_blocks
        self._begins = []
        self._ends = []
        self._most_runs = _LEAST_RUNS
        return _join(changed)

    def _join_runs(self) -> None:
        runs = sorted(zip(self._begins, self._ends))
        self._begins = []
        self._ends = []
        for begin, end in runs:
            last = len(self._ends) - 1
            if last >= 0 and begin <= self._ends[last]:
                if end > self._ends[last]:
                    self._ends[last] = end
            else:
                self._begins.append(begin)
                self._ends.append(end)
        self._most_runs = max(_LEAST_RUNS, 2 * len(self._ends))


def _join(ordinals: vec[i64]) -> list[HalfOpenRange]:
    """Ascending ordinals as ranges."""
    ranges: list[HalfOpenRange] = []
    begin: i64 = -1
    end: i64 = -1
    for ordinal in ordinals:
        if ordinal != end:
            if end > begin:
                ranges.append(HalfOpenRange(int(begin), int(end)))
            begin = ordinal
        end = ordinal + 1
    if end > begin:
        ranges.append(HalfOpenRange(int(begin), int(end)))
    return ranges
