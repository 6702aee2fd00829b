"""Splits the runs of pages that a learned queue gets into segments: which pages belong together, and their traits.

Pages of one run share a segment if they were used as often so far, came back at the same age, and are of one priority and kind. The
last block of a request is a segment of its own, and so is what the request generated. Pages that come alone, without a request, join a
young segment.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64, mypyc_attr

from ..page_rows import NO_PAGE, NO_SHIFT, ONE_HOLD, PLACE, ROW_WORDS, PageRows, priority_of_place
from ..victim_queue import NUM_PRIORITIES
from .page_notes import AGE_MASK, AGE_SHIFT, CLASS_MASK, UNKNOWN, in_segment, uses_of_note
from .pushing_request import PushingRequest
from .request_facts import NO_REQUEST, RequestFacts
from .segment_pages import SegmentPages
from .segment_records import SegmentRecords
from .segment_table import MOST_PARTS, NO_SEGMENT, SEGMENT_WORDS, STAMP, STAMP_SHIFT, SegmentTable
from .segment_traits import (
    AGE_SHIFT as AGE_TRAIT,
    CONTINUES_SHIFT,
    DEPTH_SHIFT,
    GENERATED_SHIFT,
    KIND_SHIFT,
    LAST_SHIFT,
    LENGTH_SHIFT,
    NO_HINT,
    NEW_SHIFT,
    PATH_SHIFT,
    TEXT_SHIFT,
    WAITING,
    level_of_count,
    level_of_uses,
)

_JOIN_SHIFT: Final = 6
"""Single pages without a request join a segment that is younger than a 64th of what there is room for."""


@final
@mypyc_attr(native_class=True)
class RunSplitter:
    """Of one queue. ``pushing``: the request whose pages come; ``capacity``: slots of the queue's level."""

    __slots__ = (
        "pushing", "capacity", "_rows", "_records", "_table", "_circles", "_request", "_number", "_num_parts", "_current",
        "_current_class", "_latest",
    )  # fmt: skip

    pushing: Final[PushingRequest]
    capacity: i64
    _rows: Final[PageRows]
    _records: Final[SegmentRecords]
    _table: Final[SegmentTable]
    _circles: Final[SegmentPages]
    _request: Final[RequestFacts]
    _number: Final[i64]
    """Of the queue in the records."""
    _num_parts: i64
    """Segments that the latest run became."""
    _current: i64
    """The segment that more of its pages may join."""
    _current_class: i64
    _latest: Final[vec[i64]]
    """By priority: the segment that got pages last."""

    def __init__(self, rows: PageRows, records: SegmentRecords, circles: SegmentPages, number: i64) -> None:
        self.pushing = PushingRequest(rows, records)
        self.capacity = 0
        self._rows = rows
        self._records = records
        self._table = records.table
        self._circles = circles
        self._request = records.request
        self._number = number
        self._num_parts = 0
        self._current = NO_SEGMENT
        self._current_class = 0
        self._latest = vec[i64]([NO_SEGMENT] * NUM_PRIORITIES)

    def see(self, pages: vec[i64], count: i64) -> None:
        """The run is about to be pushed."""
        if self.pushing.see(pages, count):
            self._current = NO_SEGMENT

    def put_run(self, pages: vec[i64], count: i64) -> None:
        """Into segments."""
        self._num_parts = 0
        begin: i64 = 0
        while begin < count:
            begin = self._put_part(pages, begin, count)

    def _put_part(self, pages: vec[i64], begin: i64, count: i64) -> i64:
        """Into one segment, as far as pages are of one class; where the next one begins."""
        rows = self._rows
        words = rows.words
        first_of_all = rows.first_page_of_blocks
        shift = rows.block_shift
        notes = self._records.notes.notes
        pushing = self.pushing
        last_block = pushing.last_block
        first_block = pushing.num_blocks
        num_blocks = first_block
        block_before = pushing.block_before
        page = pages[begin]
        note = i64(notes[page])
        note_class = note & CLASS_MASK
        priority = priority_of_place(words[page * ROW_WORDS + PLACE])
        block = rows.block_number(page)
        is_last = block == last_block
        request = self._request
        has_kinds = request.has_kinds
        num_generated = request.num_generated_blocks
        is_generated = num_blocks < num_generated or (num_blocks == num_generated and block == block_before)
        uses = uses_of_note(note)
        if uses == 0:
            uses = 1
        segment_class = level_of_uses(uses) | (request.continues << CONTINUES_SHIFT)
        kind: i64 = NO_HINT
        if has_kinds:
            kind = request.kind_at(num_blocks - 1 if block == block_before else num_blocks)
            segment_class |= kind << KIND_SHIFT
        if note != UNKNOWN:
            segment_class |= ((note >> AGE_SHIFT) & AGE_MASK) << AGE_TRAIT
        if is_last:
            segment_class |= 1 << LAST_SHIFT
        if is_generated:
            segment_class |= 1 << TEXT_SHIFT
        mates = self._records.block_mates
        width = rows.num_life_cycles
        # Whether a page waits for its block's leading one is what `BlockMates.waits` says, without calls for each page.
        first_leading: i64 = NO_PAGE if mates is None else first_of_all + mates.leading
        is_waiting = mates is not None and mates.waits(page)
        if is_waiting:
            segment_class |= WAITING << PATH_SHIFT
        segment = self.find_segment(segment_class, priority, first_block)
        entry = i32(in_segment(segment, uses))
        end = begin
        while end < count:
            page = pages[end]
            if i64(notes[page]) != note and i64(notes[page]) & CLASS_MASK != note_class:
                break
            if priority_of_place(words[page * ROW_WORDS + PLACE]) != priority:
                break
            # What `block_number` does, without a call for each page.
            block = (page - first_of_all) >> shift if shift != NO_SHIFT else rows.block_number(page)
            if first_leading != NO_PAGE:
                leading = first_leading + block * width
                if (page != leading and words[leading * ROW_WORDS + PLACE] >= ONE_HOLD) != is_waiting:
                    break
            if block != block_before:
                if is_last != (block == last_block) or is_generated != (num_blocks < num_generated):
                    break
                if has_kinds and kind != request.kind_at(num_blocks):
                    break
                num_blocks += 1
                block_before = block
            notes[page] = entry
            end += 1
        pushing.num_blocks = num_blocks
        pushing.block_before = block_before
        self._circles.add(segment, pages, begin, end)
        return end

    def find_segment(self, segment_class: i64, priority: i64, first_block: i64) -> i64:
        """Where pages of that class go that are pushed now: to those before them, or into a segment of their own."""
        current = self._current
        if current != NO_SEGMENT and self._current_class == segment_class and self._may_join(current, priority):
            return current
        request = self._request
        length = self.pushing.length if request.num_blocks == 0 else request.num_blocks
        depth = length - first_block
        traits = (
            segment_class
            | (level_of_count(request.num_generated_tokens) << GENERATED_SHIFT)
            | (level_of_count(self.pushing.num_new) << NEW_SHIFT)
            | (level_of_count(length) << LENGTH_SHIFT)
            | (level_of_count(depth) << DEPTH_SHIFT)
            | (self.pushing.path << PATH_SHIFT)
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
        return age <= 1 + (self.capacity >> _JOIN_SHIFT) or self.pushing.serial != NO_REQUEST
