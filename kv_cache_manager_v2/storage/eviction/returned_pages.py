"""Pages that requests take back from one segment, one after the other: together they are one example for the model."""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..victim_queue import ContentKeys
from .hazard_model import NUM_BUCKETS
from .page_notes import UNKNOWN, in_use, uses_of_note
from .segment_records import SegmentRecords
from .segment_table import BOTTOM, NO_SEGMENT, SEGMENT_WORDS, STAMP, STATE, TRAITS_MASK
from .segment_traits import MOST_USES, least_uses

_MOST_UNKNOWN: Final = 8
"""Of a run, in a row: single ghosts may have been forgotten early, and not every block has a page of each life cycle."""


@final
@mypyc_attr(native_class=True)
class ReturnedPages:
    __slots__ = ("_records", "_segment", "_traits", "_stamp", "_bucket", "_part", "_num_pages")

    _records: Final[SegmentRecords]
    _segment: i64
    _traits: i64
    _stamp: i64
    _bucket: i64
    _part: i64
    _num_pages: i64
    """Since the latest example."""

    def __init__(self, records: SegmentRecords) -> None:
        self._records = records
        self._segment = NO_SEGMENT
        self._traits = 0
        self._stamp = 0
        self._bucket = 0
        self._part = 0
        self._num_pages = 0

    def begin(self, segment: i64) -> None:
        """The first page of the segment that is taken back now has left it."""
        records = self._records
        words = records.table.words
        at = segment * SEGMENT_WORDS
        if segment != self._segment or self._num_pages == 0 or words[at + STAMP] != self._stamp:
            self.learn()
            # The page that has left is no example of passing.
            records.pass_buckets(segment)
            self._segment = segment
            self._traits = words[at + STATE] & TRAITS_MASK
            self._stamp = words[at + STAMP]
            self._bucket = records.bucket_of(words[at + STAMP])
            self._part = records.part_of(words[at + STAMP])

    def take(self, pages: vec[i64], begin: i64, end: i64, num_left: i64) -> None:
        """``pages[begin:end]`` of that segment are in use. ``num_left``: pages and ghosts that the segment has without them."""
        pages_beside = self._records.pages_per_block - 1
        num_pages = self._num_pages
        notes = self._records.notes.notes
        position = begin
        while position < end:
            page = pages[position]
            position += 1
            num_pages += 1
            uses = uses_of_note(i64(notes[page])) + 1
            if uses > MOST_USES:
                uses = MOST_USES
            entry: int = in_use(uses, self._bucket + 1, num_left + end - position > pages_beside * num_pages)
            notes[page] = entry
        self._num_pages = num_pages
        self._records.shadow.note_hit(self._part, end - begin)

    def ask_ghosts(self, keys: ContentKeys, pages: vec[i64], count: i64) -> None:
        """New pages of a run, the first of the path last, are noted as having come back where ghosts say so."""
        records = self._records
        notes = records.notes.notes
        num_unknown: i64 = 0
        position = count
        while position > 0 and num_unknown < _MOST_UNKNOWN:
            position -= 1
            page = pages[position]
            if i64(notes[page]) != UNKNOWN:
                num_unknown = 0
                continue
            segment = records.ghosts.find(keys.content_key(page))
            if segment == NO_SEGMENT:
                num_unknown += 1
                continue
            num_back = records.num_ghosts_of(segment)
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
            uses = least_uses(records.table.words[segment * SEGMENT_WORDS + STATE]) + 1
            bucket = records.learn_return(segment, num_back)
            records.take_ghosts(segment)
            entry: int = in_use(uses if uses < MOST_USES else MOST_USES, bucket + 1, is_branch)
            # What is above on the path was there as well, since no ghost of it is known.
            upper = position + num_unknown
            position -= num_back - 1
            while upper >= position:
                if i64(notes[pages[upper]]) == UNKNOWN:
                    notes[pages[upper]] = entry
                upper -= 1
            num_unknown = 0

    def learn(self) -> None:
        """Something else comes: the example is complete."""
        if self._num_pages > 0:
            if self._bucket < NUM_BUCKETS:
                self._records.model.learn(self._traits, self._bucket, 1.0, self._num_pages)
            self._num_pages = 0
