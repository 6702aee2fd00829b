"""Pages that requests take back from one segment, one after the other: together they are one example for the model."""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from .hazard_model import NUM_BUCKETS
from .page_notes import in_use, uses_of_note
from .segment_records import SegmentRecords
from .segment_table import NO_SEGMENT, SEGMENT_WORDS, STAMP, STATE, TRAITS_MASK
from .segment_traits import MOST_USES


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

    def learn(self) -> None:
        """Something else comes: the example is complete."""
        if self._num_pages > 0:
            if self._bucket < NUM_BUCKETS:
                self._records.model.learn(self._traits, self._bucket, 1.0, self._num_pages)
            self._num_pages = 0
