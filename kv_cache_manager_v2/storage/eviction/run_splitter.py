"""Splits the runs of pages that a learned queue gets into segments: which pages belong together, and their traits.

Pages of one run share a segment if they were used as often so far, came back at the same age, and are of one priority and kind. The
last block of a request is a segment of its own, and so is what the request generated. Pages that come alone, without a request, join a
young segment.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64, mypyc_attr

from ..page_rows import PLACE, ROW_WORDS, PageRows, priority_of_place
from ..victim_queue import NUM_PRIORITIES
from .page_notes import AGE_MASK, AGE_SHIFT, BRANCH_BIT, UNKNOWN, PageNotes, in_segment, uses_of_note
from .request_facts import NO_REQUEST, RequestFacts
from .segment_records import SegmentRecords
from .segment_table import MOST_PARTS, NO_SEGMENT, SEGMENT_WORDS, STAMP, STAMP_SHIFT, SegmentTable
from .value_lines import ValueLines
from .segment_traits import (
    AGE_SHIFT as AGE_TRAIT,
    BRANCHED_PATH,
    CONTINUES_SHIFT,
    DEPTH_SHIFT,
    EXTENDED_PATH,
    GENERATED_SHIFT,
    KIND_SHIFT,
    LAST_SHIFT,
    LENGTH_SHIFT,
    NEW_PATH,
    NEW_SHIFT,
    PATH_SHIFT,
    TEXT_SHIFT,
    WAITING,
    level_of_count,
    level_of_uses,
)

_JOIN_SHIFT: Final = 6
"""Single pages without a request join a segment that is younger than a 64th of what there is room for."""
_NO_BLOCK: Final = -1
_NO_CLASS: Final = -1


@final
@mypyc_attr(native_class=True)
class RunSplitter:
    """Of one queue. ``capacity``: slots of the queue's level."""

    __slots__ = (
        "capacity", "_rows", "_records", "_notes", "_table", "_lines", "_request", "_number", "_serial", "_num_blocks", "_length",
        "_num_new", "_path", "_last_block", "_block_before", "_num_parts", "_current", "_current_class", "_latest",
    )  # fmt: skip

    capacity: i64
    _rows: Final[PageRows]
    _records: Final[SegmentRecords]
    _notes: Final[PageNotes]
    _table: Final[SegmentTable]
    _lines: Final[ValueLines]
    _request: Final[RequestFacts]
    _number: Final[i64]
    """Of the queue in the records."""
    _serial: i64
    """Of the request whose pages come, or the latest one."""
    _num_blocks: i64
    """Of it, pushed so far."""
    _length: i64
    """In blocks, where the request says nothing of it."""
    _num_new: i64
    _path: i64
    _last_block: i64
    """The first block that it pushed."""
    _block_before: i64
    _num_parts: i64
    """Segments that the latest run became."""
    _current: i64
    """The segment that more of its pages may join."""
    _current_class: i64
    _latest: Final[vec[i64]]
    """By priority: the segment that got pages last."""

    def __init__(self, rows: PageRows, records: SegmentRecords, lines: ValueLines, number: i64) -> None:
        self.capacity = 0
        self._rows = rows
        self._records = records
        self._notes = records.notes
        self._table = records.table
        self._lines = lines
        self._request = records.request
        self._number = number
        self._serial = NO_REQUEST
        self._num_blocks = 0
        self._length = 0
        self._num_new = 0
        self._path = NEW_PATH
        self._last_block = _NO_BLOCK
        self._block_before = _NO_BLOCK
        self._num_parts = 0
        self._current = NO_SEGMENT
        self._current_class = 0
        self._latest = vec[i64]([NO_SEGMENT] * NUM_PRIORITIES)

    def see(self, pages: vec[i64], count: i64) -> None:
        """A run is about to be pushed: how much of it is new, and where its path has come from."""
        serial = self._request.serial
        if serial == NO_REQUEST or serial != self._serial:
            self._serial = serial
            self._num_blocks = 0
            self._length = 0
            self._num_new = 0
            self._path = NEW_PATH
            self._last_block = _NO_BLOCK
            self._block_before = _NO_BLOCK
            if serial != NO_REQUEST or count > 1:
                # A page alone, without a request, may go on where the one before it ended.
                self._last_block = self._rows.block_number(pages[0])
                self._current = NO_SEGMENT
        self._length += count // self._records.pages_per_block
        notes = self._notes.notes
        num_new: i64 = 0
        for position in range(count):
            note = i64(notes[pages[position]])
            if note == UNKNOWN:
                num_new += 1
            elif self._path == NEW_PATH:
                # The known page farthest from the root.
                self._path = BRANCHED_PATH if note & BRANCH_BIT != 0 else EXTENDED_PATH
        self._num_new += num_new

    def put_run(self, pages: vec[i64], count: i64) -> None:
        """Into segments: consecutive pages of one class and priority share one."""
        self._num_parts = 0
        notes = self._notes.notes
        words = self._rows.words
        segment: i64 = NO_SEGMENT
        segment_class: i64 = _NO_CLASS
        priority: i64 = 0
        begin: i64 = 0
        for position in range(count):
            page = pages[position]
            note = i64(notes[page])
            first_block = self._num_blocks
            page_class = self._class_of(page, note)
            page_priority = priority_of_place(words[page * ROW_WORDS + PLACE])
            if page_class != segment_class or page_priority != priority:
                if begin < position:
                    self._lines.add(segment, pages, begin, position)
                begin = position
                segment_class = page_class
                priority = page_priority
                segment = self.find_segment(page_class, priority, first_block)
            uses = uses_of_note(note)
            if uses == 0:
                uses = 1
            notes[page] = i32(in_segment(segment, uses))
        if begin < count:
            self._lines.add(segment, pages, begin, count)

    def _class_of(self, page: i64, note: i64) -> i64:
        """Traits of its own, of the next page of the run."""
        block = self._rows.block_number(page)
        if block != self._block_before:
            self._block_before = block
            self._num_blocks += 1
        request = self._request
        page_class = (((note >> AGE_SHIFT) & AGE_MASK) << AGE_TRAIT) | (request.continues << CONTINUES_SHIFT)
        if note != UNKNOWN:
            page_class |= level_of_uses(uses_of_note(note))
        if block == self._last_block:
            page_class |= 1 << LAST_SHIFT
        if self._num_blocks <= request.num_generated_blocks:
            page_class |= 1 << TEXT_SHIFT
        if request.has_kinds:
            page_class |= request.kind_at(self._num_blocks - 1) << KIND_SHIFT
        mates = self._records.block_mates
        if mates is not None and mates.waits(page):
            page_class |= WAITING << PATH_SHIFT
        return page_class

    def find_segment(self, segment_class: i64, priority: i64, first_block: i64) -> i64:
        """Where pages of that class go that are pushed now: to those before them, or into a segment of their own."""
        current = self._current
        if current != NO_SEGMENT and self._current_class == segment_class and self._may_join(current, priority):
            return current
        request = self._request
        length = self._length if request.num_blocks == 0 else request.num_blocks
        depth = length - first_block
        traits = (
            segment_class
            | (level_of_count(request.num_generated_tokens) << GENERATED_SHIFT)
            | (level_of_count(self._num_new) << NEW_SHIFT)
            | (level_of_count(length) << LENGTH_SHIFT)
            | (level_of_count(depth) << DEPTH_SHIFT)
            | (self._path << PATH_SHIFT)
        )
        return self._make_segment(segment_class, traits, priority)

    def find_described(self, traits: i64, priority: i64, is_later: bool) -> i64:
        """Where a page goes that was in a segment with those traits in another process, later than the page before or not."""
        current = self._current
        if current != NO_SEGMENT and not is_later and self._current_class == ~traits and self._may_join(current, priority):
            return current
        self._num_parts = 0
        return self._make_segment(~traits, traits, priority)

    def _make_segment(self, segment_class: i64, traits: i64, priority: i64) -> i64:
        records = self._records
        part = self._num_parts if self._num_parts < MOST_PARTS else MOST_PARTS
        self._num_parts += 1
        segment = records.add_segment(self._number, traits, priority, part)
        if segment == NO_SEGMENT:
            latest = self._latest[priority]
            if latest != NO_SEGMENT and self._table.has_pages_of(latest, self._number, priority):
                return latest
            segment = records.add_segment_anyway(self._number, traits, priority, part)
        self._current = segment
        self._current_class = segment_class
        self._latest[priority] = segment
        records.go_on()
        assert self._table.is_used(segment), "a segment was forgotten before it had pages"
        return segment

    def _may_join(self, segment: i64, priority: i64) -> bool:
        if not self._table.has_pages_of(segment, self._number, priority):
            return False
        age = self._records.clock - (self._table.words[segment * SEGMENT_WORDS + STAMP] >> STAMP_SHIFT)
        return age <= 1 + (self.capacity >> _JOIN_SHIFT) or self._serial != NO_REQUEST
