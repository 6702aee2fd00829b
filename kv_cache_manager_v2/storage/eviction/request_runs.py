"""What requests do with the runs of pages of a learned queue: runs that they take back teach the model, runs that they release are split
into segments.

Pages that requests take back from one segment, one after the other, are one example together.

Pages of a released run share a segment if they were used as often so far, came back at the same age, and are of one priority and kind. The
last block of a request is a segment of its own, and so is what the request generated. Pages that come alone, without a request, join a
young segment.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i32, i64

from ..page_rows import NO_PAGE, NO_SHIFT, ONE_HOLD, PLACE, ROW_WORDS, PageRows, priority_of_place
from ..victim_queue import NUM_PRIORITIES, ContentKeys
from .page_notes import AGE_MASK, AGE_SHIFT, BRANCH_BIT, UNKNOWN, in_segment, in_use, uses_of_note
from .segment_records import SegmentRecords
from .segment_table import BOTTOM, COUNTS, HIGH_SHIFT, MOST_PARTS, NO_SEGMENT, SEGMENT_WORDS, STAMP, STAMP_SHIFT, STATE, TRAITS_MASK
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
    MOST_USES,
    NEW_PATH,
    NEW_SHIFT,
    NO_REQUEST,
    PATH_SHIFT,
    TEXT_SHIFT,
    WAITING,
    least_uses,
    level_of_count,
    level_of_uses,
)
from .value_lines import ValueLines

_MOST_UNKNOWN: Final = 8
"""Of a run, in a row: single ghosts may have been forgotten early, and not every block has a page of each life cycle."""
_JOIN_SHIFT: Final = 6
"""Single pages without a request join a segment that is younger than a 64th of what there is room for."""
_NO_BLOCK: Final = -1
_NO_CLASS: Final = -1


class RequestRuns(ValueLines):
    __slots__ = (
        "records", "_keys", "_number", "_serial", "_num_blocks", "_length", "_num_new", "_path", "_last_block", "_block_before",
        "_num_parts", "_current", "_current_class", "_latest", "_returned", "_returned_traits", "_returned_stamp", "_returned_bucket",
        "_num_returned",
    )  # fmt: skip

    def __init__(self, rows: PageRows, first_sentinel: i64, keys: ContentKeys, records: SegmentRecords) -> None:
        """``first_sentinel``: of a row per priority."""
        super().__init__(rows, first_sentinel, records.table, records.notes)
        records.notes.join(rows)
        self.records: Final = records
        self._keys: Final = keys
        self._begin_request(NO_REQUEST)
        self._num_parts: i64 = 0
        """Segments that the latest run became."""
        self._current: i64 = NO_SEGMENT
        """The segment that more of its pages may join."""
        self._current_class: i64 = 0
        self._latest: Final = vec[i64]([NO_SEGMENT] * NUM_PRIORITIES)
        """By priority: the segment that got pages last."""
        self._returned: i64 = NO_SEGMENT
        """The segment that pages were taken back from last; its traits, STAMP and bucket at the first of them."""
        self._returned_traits: i64 = 0
        self._returned_stamp: i64 = 0
        self._returned_bucket: i64 = 0
        self._num_returned: i64 = 0
        """Since the latest example."""
        self._number: Final[i64] = records.add_level(self)
        """Of this queue in the records."""

    # -- runs that come back ------------------------------------------------------------------------------------------

    def _begin_return(self, segment: i64) -> None:
        """The first page of the segment that is taken back now has left it."""
        words = self._table.words
        at = segment * SEGMENT_WORDS
        if segment != self._returned or self._num_returned == 0 or words[at + STAMP] != self._returned_stamp:
            self._learn_return()
            # The page that has left is no example of passing.
            self.records.pass_buckets(segment)
            self._returned = segment
            self._returned_traits = words[at + STATE] & TRAITS_MASK
            self._returned_stamp = words[at + STAMP]
            self._returned_bucket = self.records.bucket_of(words[at + STAMP])

    def _take_back(self, pages: vec[i64], begin: i64, end: i64, num_left: i64) -> None:
        """``pages[begin:end]`` of that segment are in use. ``num_left``: pages and ghosts that the segment has without them."""
        pages_beside = self.records.pages_per_block - 1
        num_returned = self._num_returned
        age = self._returned_bucket + 1
        notes = self._notes.notes
        for position in range(begin, end):
            page = pages[position]
            num_returned += 1
            uses = min(uses_of_note(i64(notes[page])) + 1, MOST_USES)
            notes[page] = i32(in_use(uses, age, num_left + end - position > pages_beside * num_returned + 1))
        self._num_returned = num_returned
        self.records.shadow.note_hit(self.records.part_of(self._returned_stamp), end - begin)

    def _ask_ghosts(self, pages: vec[i64], count: i64) -> None:
        """New pages of a run, the first of the path last, are noted as having come back where ghosts say so."""
        records = self.records
        keys = self._keys
        notes = records.notes.notes
        num_unknown: i64 = 0
        position = count
        while position > 0 and num_unknown < _MOST_UNKNOWN:
            position -= 1
            page = pages[position]
            if i64(notes[page]) != UNKNOWN:
                num_unknown = 0
                continue
            segment = records.table.find_top(keys.content_key(page))
            if segment == NO_SEGMENT:
                num_unknown += 1
                continue
            num_back = records.table.words[segment * SEGMENT_WORDS + COUNTS] >> HIGH_SHIFT
            is_branch = False
            if num_back > position + 1:
                num_back = position + 1
                is_branch = True
            elif num_back > 1:
                last = pages[position - num_back + 1]
                if keys.content_key(last) != records.table.words[segment * SEGMENT_WORDS + BOTTOM]:
                    # The path leaves that of the ghosts somewhere among them.
                    num_back = (num_back + 1) >> 1
                    is_branch = True
            uses = min(least_uses(records.table.words[segment * SEGMENT_WORDS + STATE]) + 1, MOST_USES)
            entry: int = in_use(uses, records.bring_back(segment, num_back) + 1, is_branch)
            # What is above on the path was there as well, since no ghost of it is known.
            end = position + num_unknown + 1
            position -= num_back - 1
            for back in range(position, end):
                if i64(notes[pages[back]]) == UNKNOWN:
                    notes[pages[back]] = entry
            num_unknown = 0

    def _learn_return(self) -> None:
        """Something else comes: the example is complete."""
        if self._num_returned > 0:
            self.records.model.learn(self._returned_traits, self._returned_bucket, 1.0, self._num_returned)
            self._num_returned = 0

    # -- runs that are released ---------------------------------------------------------------------------------------

    def _begin_request(self, serial: i64) -> None:
        self._serial: i64 = serial
        """Of the request whose pages come, or the latest one."""
        self._num_blocks: i64 = 0
        """Of it, pushed so far."""
        self._length: i64 = 0
        """In blocks, where the request says nothing of it."""
        self._num_new: i64 = 0
        self._path: i64 = NEW_PATH
        self._last_block: i64 = _NO_BLOCK
        """The first block that it pushed."""
        self._block_before: i64 = _NO_BLOCK

    def _see(self, pages: vec[i64], count: i64) -> None:
        """A run is about to be pushed: how much of it is new, and where its path has come from."""
        serial = self.records.request.serial
        if serial == NO_REQUEST or serial != self._serial:
            self._begin_request(serial)
            if serial != NO_REQUEST or count > 1:
                # A page alone, without a request, may go on where the one before it ended.
                self._last_block = self._rows.block_number(pages[0])
                self._current = NO_SEGMENT
        self._length += count // self.records.pages_per_block
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

    def _split_run(self, pages: vec[i64], count: i64) -> None:
        """Into segments: consecutive pages of one class and priority share one."""
        self._num_parts = 0
        rows = self._rows
        words = rows.words
        first_of_blocks = rows.first_page_of_blocks
        block_shift = rows.block_shift
        notes = self._notes.notes
        request = self.records.request
        has_kinds = len(request.kinds) > 0
        mates = self.records.block_mates
        first_leading: i64 = NO_PAGE if mates is None else first_of_blocks + mates.leading
        segment: i64 = NO_SEGMENT
        segment_class: i64 = _NO_CLASS
        priority: i64 = 0
        note_before: i64 = _NO_CLASS
        class_of_note: i64 = 0
        uses: i64 = 1
        begin: i64 = 0
        num_blocks = self._num_blocks
        block_before = self._block_before
        last_block = self._last_block
        num_generated = request.num_generated_blocks
        for position in range(count):
            page = pages[position]
            page_priority = priority_of_place(words[page * ROW_WORDS + PLACE])
            note = i64(notes[page])
            if note != note_before:
                note_before = note
                uses = max(uses_of_note(note), 1)
                class_of_note = ((note >> AGE_SHIFT) & AGE_MASK) << AGE_TRAIT | level_of_uses(uses) | request.continues << CONTINUES_SHIFT
            first_block = num_blocks
            # What `block_number` does, without a call for each page.
            block = (page - first_of_blocks) >> block_shift if block_shift != NO_SHIFT else rows.block_number(page)
            if block != block_before:
                block_before = block
                num_blocks += 1
            page_class = class_of_note
            if block == last_block:
                page_class |= 1 << LAST_SHIFT
            if num_blocks <= num_generated:
                page_class |= 1 << TEXT_SHIFT
            if has_kinds:
                page_class |= request.kind_at(num_blocks - 1) << KIND_SHIFT
            # What `BlockMates.waits` says, without calls for each page.
            leading = first_leading + block * rows.num_life_cycles
            if first_leading != NO_PAGE and page != leading and words[leading * ROW_WORDS + PLACE] >= ONE_HOLD:
                page_class |= WAITING << PATH_SHIFT
            if page_class != segment_class or page_priority != priority:
                if begin < position:
                    self.add(segment, pages, begin, position)
                begin = position
                segment_class = page_class
                priority = page_priority
                segment = self._find_segment(page_class, priority, first_block)
            notes[page] = i32(in_segment(segment, uses))
        self._num_blocks = num_blocks
        self._block_before = block_before
        if begin < count:
            self.add(segment, pages, begin, count)

    def _find_segment(self, segment_class: i64, priority: i64, first_block: i64) -> i64:
        """Where pages of that class go that are pushed now: to those before them, or into a segment of their own."""
        if self._may_join(segment_class, priority):
            return self._current
        request = self.records.request
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

    def _find_described(self, traits: i64, priority: i64, is_later: bool) -> i64:
        """Where a page goes that was in a segment with those traits in another process, later than the page before or not."""
        if not is_later and self._may_join(~traits, priority):
            return self._current
        self._num_parts = 0
        return self._make_segment(~traits, traits, priority)

    def _make_segment(self, segment_class: i64, traits: i64, priority: i64) -> i64:
        records = self.records
        self._num_parts += 1
        latest = self._latest[priority]
        if not records.has_room() and self._table.has_pages_of(latest, self._number, priority):
            return latest
        segment = records.add_segment(self._number, traits, priority, min(self._num_parts - 1, MOST_PARTS))
        self._current = segment
        self._current_class = segment_class
        self._latest[priority] = segment
        records.go_on()
        assert self._table.is_used(segment), "a segment was forgotten before it had pages"
        return segment

    def _may_join(self, segment_class: i64, priority: i64) -> bool:
        """Whether pages of that class that come now join those before them."""
        segment = self._current
        if self._current_class != segment_class or not self._table.has_pages_of(segment, self._number, priority):
            return False
        age = self.records.clock - (self._table.words[segment * SEGMENT_WORDS + STAMP] >> STAMP_SHIFT)
        return age <= 1 + (self.records.capacities[self._number] >> _JOIN_SHIFT) or self._serial != NO_REQUEST
