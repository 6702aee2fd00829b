"""The pages of the segments of a queue: rows linked in a circle per segment, the next to go first.

A segment with pages is in the heap of its queue; this puts it there with its first page, and takes it out with its last one.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..page_links import link_run, unlink_run
from ..page_rows import LINKS, LOW_MASK, ROW_WORDS, PageRows
from .segment_heap import SegmentHeap
from .segment_table import COUNTS, HIGH_SHIFT, LOW, PLACE, SEGMENT_WORDS, SegmentTable


@final
@mypyc_attr(native_class=True)
class SegmentPages:
    __slots__ = ("_rows", "_table", "_heap")

    _rows: Final[PageRows]
    _table: Final[SegmentTable]
    _heap: Final[SegmentHeap]

    def __init__(self, rows: PageRows, table: SegmentTable, heap: SegmentHeap) -> None:
        self._rows = rows
        self._table = table
        self._heap = heap

    def add(self, segment: i64, pages: vec[i64], begin: i64, end: i64) -> None:
        """``pages[begin:end]`` at the end of the segment, the last to go."""
        words = self._rows.words
        segments = self._table.words
        at = segment * SEGMENT_WORDS
        is_first = segments[at + COUNTS] & LOW == 0
        segments[at + COUNTS] += end - begin
        if is_first:
            head = pages[begin]
            words[head * ROW_WORDS + LINKS] = head | (head << 32)
            self._set_head(at, head)
            begin += 1
        if begin < end:
            link_run(words, words[(segments[at + PLACE] & LOW) * ROW_WORDS + LINKS] >> 32, pages, begin, end)
        if is_first:
            self._heap.push(segment)
            self._table.note_queued(segment)

    def remove_run(self, segment: i64, pages: vec[i64], begin: i64, end: i64) -> None:
        segments = self._table.words
        at = segment * SEGMENT_WORDS
        segments[at + COUNTS] -= end - begin
        self._set_head(at, unlink_run(self._rows.words, pages, begin, end, segments[at + PLACE] & LOW))
        if segments[at + COUNTS] & LOW == 0:
            self._heap.remove(segment)

    def _set_head(self, at: i64, page: i64) -> None:
        segments = self._table.words
        segments[at + PLACE] = (segments[at + PLACE] >> HIGH_SHIFT << HIGH_SHIFT) | page

    def collect(self, segment: i64) -> list[int]:
        """All pages of a segment that has some, the next to go first."""
        words = self._rows.words
        first = self._table.words[segment * SEGMENT_WORDS + PLACE] & LOW
        pages: list[int] = [int(first)]
        page = words[first * ROW_WORDS + LINKS] & LOW_MASK
        while page != first:
            pages.append(int(page))
            page = words[page * ROW_WORDS + LINKS] & LOW_MASK
        return pages
