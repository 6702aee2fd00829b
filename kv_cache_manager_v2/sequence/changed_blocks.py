"""Which entries of a page table changed since the last look, as two ranges: filled, and become bad.

A reader registers one of these with each table that it copies from (`PageTable.add_reader`), looks, and calls `clear`.
Two ranges, because one step of a windowed layer changes both ends of its window and nothing between. Entries past the
table's last block may be in a range; a reader cuts there. Entries that a growing table gets, and that are never set,
are in neither: a reader knows how many blocks it has seen. A reader for which two ranges are too coarse adds `IndexChanges`.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from .index_changes import IndexChanges

_NOTHING: Final = 1 << 60


@final
class ChangedBlocks:
    """Both ranges are half-open, and empty while ``begin >= end``."""

    __slots__ = ("filled_begin", "filled_end", "erased_begin", "erased_end", "following", "marks", "row", "exact")

    def __init__(self, marks: vec[bool], row: i64) -> None:
        self.marks: Final = marks
        """Side by side, of all rows of a batch: whether a reader of the row was told of a change since its mark was cleared."""
        self.row = row
        """Which of them is this reader's."""
        self.filled_begin: i64 = _NOTHING
        self.filled_end: i64 = 0
        self.erased_begin: i64 = _NOTHING
        self.erased_end: i64 = 0
        self.following: "ChangedBlocks | None" = None
        """The next reader of the same table."""
        self.exact: IndexChanges | None = None

    def record(self, ordinal: i64, slot: int) -> None:
        self.marks[self.row] = True
        if self.exact is not None:
            self.exact.record(ordinal)
        if slot >= 0:
            if ordinal < self.filled_begin:
                self.filled_begin = ordinal
            if ordinal >= self.filled_end:
                self.filled_end = ordinal + 1
        else:
            if ordinal < self.erased_begin:
                self.erased_begin = ordinal
            if ordinal >= self.erased_end:
                self.erased_end = ordinal + 1

    @property
    def is_empty(self) -> bool:
        return self.filled_end == 0 and self.erased_end == 0

    def clear(self) -> None:
        self.filled_begin = _NOTHING
        self.filled_end = 0
        self.erased_begin = _NOTHING
        self.erased_end = 0

    def record_all(self) -> None:
        """As if every entry had been set."""
        self.marks[self.row] = True
        self.filled_begin = 0
        self.filled_end = _NOTHING
