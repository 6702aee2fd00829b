"""The pages of the segments of a queue: rows linked in a circle per segment, the next to go first.

A segment with pages is in the heap of its queue; this puts it there with its first page, and takes it out with its last one.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..page_rows import LINKS, LOW_MASK, NOT_QUEUED, ROW_WORDS, PageRows
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
        first = pages[begin]
        last = first
        before: i64 = 0
        for position in range(begin + 1, end):
            page = pages[position]
            words[last * ROW_WORDS + LINKS] = page | (before << 32)
            before = last
            last = page
        words[last * ROW_WORDS + LINKS] = before << 32
        segments = self._table.words
        at = segment * SEGMENT_WORDS
        if segments[at + COUNTS] & LOW == 0:
            segments[at + PLACE] = (segments[at + PLACE] >> HIGH_SHIFT << HIGH_SHIFT) | first
            self._join(last, first)
            segments[at + COUNTS] += end - begin
            self._heap.push(segment)
            self._table.note_queued(segment)
            return
        head = segments[at + PLACE] & LOW
        tail = words[head * ROW_WORDS + LINKS] >> 32
        self._join(tail, first)
        self._join(last, head)
        segments[at + COUNTS] += end - begin

    def remove_run(self, segment: i64, pages: vec[i64], begin: i64, end: i64) -> None:
        """`remove` each of ``pages[begin:end]``. Neighbours that go together leave one gap, which is joined once."""
        segments = self._table.words
        at = segment * SEGMENT_WORDS
        words = self._rows.words
        segments[at + COUNTS] -= end - begin
        is_empty = segments[at + COUNTS] & LOW == 0
        head = segments[at + PLACE] & LOW
        position = begin
        while position < end:
            page = pages[position]
            previous = words[page * ROW_WORDS + LINKS] >> 32
            following = page
            # The gap grows at either end.
            while True:
                if page == following:
                    following = words[page * ROW_WORDS + LINKS] & LOW_MASK
                elif page == previous:
                    previous = words[page * ROW_WORDS + LINKS] >> 32
                else:
                    break
                if page == head:
                    head = following
                words[page * ROW_WORDS + LINKS] = NOT_QUEUED
                position += 1
                if position == end:
                    break
                page = pages[position]
            if not is_empty:
                self._join(previous, following)
        if is_empty:
            self._heap.remove(segment)
            return
        segments[at + PLACE] = (segments[at + PLACE] >> HIGH_SHIFT << HIGH_SHIFT) | head

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

    def _join(self, previous: i64, following: i64) -> None:
        """The one behind the other; a page behind itself is alone in its circle."""
        words = self._rows.words
        if previous == following:
            words[previous * ROW_WORDS + LINKS] = previous | (previous << 32)
            return
        at_previous = previous * ROW_WORDS + LINKS
        words[at_previous] = following | ((words[at_previous] >> 32) << 32)
        at_following = following * ROW_WORDS + LINKS
        words[at_following] = (words[at_following] & LOW_MASK) | (previous << 32)
