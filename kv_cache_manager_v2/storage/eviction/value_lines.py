"""LRU's queue with 256 lines for each priority, one for each rounded value: the pages of a level, those of least value first.

A segment stands in the line of its value, its pages one behind the other, and moves to another line with its value. Line 0 is that
of pages that go before all others of their priority, and belong to no segment. The lines of a priority are one list (`EvictionQueue`):
the first page of each is known, so a line that gets a segment ends in front of the next line that has one.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i32, i64

from ..eviction_queue import EvictionQueue
from ..page_links import join_rows, link_run, unlink_run
from ..page_rows import LINKS, LOW_MASK, ROW_WORDS, PageRows
from ..victim_queue import NUM_PRIORITIES
from .page_notes import PageNotes
from .segment_table import COUNTS, KEY, LOW, PLACE, PRIORITY_SHIFT, SEGMENT_WORDS, STAMP, SegmentTable

_NO_ROW: Final = 0


class ValueLines(EvictionQueue):
    __slots__ = ("_table", "_notes", "heads", "_one")

    def __init__(self, rows: PageRows, first_sentinel: i64, table: SegmentTable, notes: PageNotes) -> None:
        super().__init__(rows, first_sentinel)
        self._table: Final = table
        self._notes: Final = notes
        self.heads: Final = vec[i32]([_NO_ROW] * (NUM_PRIORITIES << PRIORITY_SHIFT))
        """By priority and line, from 1 on: its first page, or _NO_ROW."""
        self._one: Final = vec[i64]([0])

    def push(self, page: i64) -> None:
        """At the end of line 0."""
        self._link(self._rows.priority(page) << PRIORITY_SHIFT, self._alone(page), 0, 1)

    def _alone(self, page: i64) -> vec[i64]:
        """The page as a run, until another page is one."""
        self._one[0] = page
        return self._one

    def add(self, segment: i64, pages: vec[i64], begin: i64, end: i64) -> None:
        """``pages[begin:end]`` at the end of the segment, the last to go; with its first pages it comes into its line."""
        segments = self._table.words
        at = segment * SEGMENT_WORDS
        head = pages[begin]
        if segments[at + COUNTS] & LOW > 0:
            head = segments[at + PLACE] & LOW
            link_run(self._rows.words, segments[at + PLACE] >> 32, pages, begin, end, False)
            self.num_pages += end - begin
        else:
            self._link(segments[at + KEY], pages, begin, end)
            self._note_head(segments[at + KEY], head)
            self._table.note_queued(segment)
        segments[at + COUNTS] += end - begin
        self._table.num_pages += end - begin
        segments[at + PLACE] = head | (pages[end - 1] << 32)

    def remove_run(self, segment: i64, pages: vec[i64], begin: i64, end: i64) -> None:
        """They leave the segment, which leaves its line with the last one."""
        segments = self._table.words
        at = segment * SEGMENT_WORDS
        ends = segments[at + PLACE]
        left = unlink_run(self._rows.words, pages, begin, end, ends)
        segments[at + PLACE] = left
        segments[at + COUNTS] -= end - begin
        self._table.num_pages -= end - begin
        self.num_pages -= end - begin
        if left & LOW != ends & LOW:
            self._pull_head(segments[at + KEY], ends & LOW, left & LOW)

    def move(self, segment: i64, key: i64, may_be_first: bool) -> None:
        """A segment with pages gets that KEY, of the same priority. It stays in its line, or comes to the end of the other one;
        ``may_be_first``: in front of it, where it is older than the first one there."""
        segments = self._table.words
        at = segment * SEGMENT_WORDS
        old_key = segments[at + KEY]
        if key == old_key:
            return
        words = self._rows.words
        head = segments[at + PLACE] & LOW
        tail = segments[at + PLACE] >> 32
        following = words[tail * ROW_WORDS + LINKS] & LOW_MASK
        join_rows(words, words[head * ROW_WORDS + LINKS] >> 32, following)
        self._pull_head(old_key, head, following)
        segments[at + KEY] = key
        behind = i64(self.heads[key])
        if (
            may_be_first and behind != _NO_ROW
            and segments[at + STAMP] < segments[self._notes.segment_at(behind) * SEGMENT_WORDS + STAMP]
        ):  # fmt: skip
            self.heads[key] = _NO_ROW
        else:
            behind = self._find_row_behind(key)
        join_rows(words, words[behind * ROW_WORDS + LINKS] >> 32, head)
        join_rows(words, tail, behind)
        self._note_head(key, head)

    def _link(self, key: i64, pages: vec[i64], begin: i64, end: i64) -> None:
        """At the end of a line."""
        if key >> PRIORITY_SHIFT < self._lowest:
            self._lowest = key >> PRIORITY_SHIFT
        words = self._rows.words
        link_run(words, words[self._find_row_behind(key) * ROW_WORDS + LINKS] >> 32, pages, begin, end, False)
        self.num_pages += end - begin

    def _find_row_behind(self, key: i64) -> i64:
        """The first page of the next line that has some, or the sentinel of the priority."""
        heads = self.heads
        priority = key >> PRIORITY_SHIFT
        for behind in range(key + 1, (priority + 1) << PRIORITY_SHIFT):
            if heads[behind] != _NO_ROW:
                return i64(heads[behind])
        return self._first_sentinel + priority

    def _note_head(self, key: i64, page: i64) -> None:
        """The page has come into the line, behind its first one."""
        if self.heads[key] == _NO_ROW:
            self.heads[key] = i32(page)

    def _pull_head(self, key: i64, page: i64, following: i64) -> None:
        """A page, or all from it on, has left the line, and that row is behind it."""
        if i64(self.heads[key]) == page:
            is_there = self._table.words[self._notes.segment_at(following) * SEGMENT_WORDS + KEY] == key
            self.heads[key] = i32(following) if is_there else i32(_NO_ROW)
