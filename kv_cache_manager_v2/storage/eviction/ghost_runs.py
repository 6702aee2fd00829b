"""Which segment lost the run of pages that begins with a content: segments by the content key of their ghost nearest to the root.

A segment is evicted from its end on, so what is gone of it is one run along a path: it takes one entry, however long it is. A hash table of
chained segments, of as many buckets as there were runs at most (`GrowingBuckets`); the keys stand in the segments.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64

from ...base.growing_arrays import fill_numbers, reserve_numbers
from ...base.growing_buckets import GrowingBuckets
from .segment_table import NO_SEGMENT, SEGMENT_WORDS, TOP, SegmentTable

_MIXER: Final = 0x2545F4914F6CDD1D & ((1 << 61) - 1)
_MASK: Final = (1 << 62) - 1


@final
class GhostRuns:
    __slots__ = ("num_runs", "_links", "_buckets", "_table")

    def __init__(self, table: SegmentTable) -> None:
        self.num_runs: i64 = 0
        self._links = vec[i32]([NO_SEGMENT, NO_SEGMENT])
        """At 2 x segment the next one in its bucket, at 2 x bucket + 1 the first one there; NO_SEGMENT where there is none. A bucket comes
        with a run, so there are as few of them as of segments."""
        self._buckets: Final = GrowingBuckets()
        self._table: Final = table

    def reserve(self, num_segments: i64) -> None:
        """Take addresses for runs of so many, so that none of them is moved when another one comes."""
        self._links = reserve_numbers(self._links, 2 * (num_segments + 1))

    def find(self, key: i64) -> i64:
        """The segment with that TOP, or NO_SEGMENT."""
        links = self._links
        words = self._table.words
        segment = i64(links[self._place_of(key)])
        while segment != NO_SEGMENT and words[segment * SEGMENT_WORDS + TOP] != key:
            segment = i64(links[2 * segment])
        return segment

    def put(self, segment: i64, key: i64) -> None:
        """Of a segment that is not in it; nor is another one with the key. From now on that is its TOP."""
        self._links = fill_numbers(self._links, 2 * (segment + 1), NO_SEGMENT)
        if self.num_runs >= self._buckets.count:
            self._add_bucket()
        self._table.words[segment * SEGMENT_WORDS + TOP] = key
        self._set_first(segment, key)
        self.num_runs += 1

    def take(self, segment: i64) -> None:
        """A segment that is in it."""
        links = self._links
        words = self._table.words
        place = self._place_of(words[segment * SEGMENT_WORDS + TOP])
        while links[place] != segment:
            assert links[place] != NO_SEGMENT, "a run of ghosts is not found"
            place = 2 * i64(links[place])
        links[place] = links[2 * segment]
        words[segment * SEGMENT_WORDS + TOP] = 0
        self.num_runs -= 1

    def _add_bucket(self) -> None:
        """One more, which takes its part of the runs of another."""
        place = 2 * self._buckets.add() + 1
        segment = i64(self._links[place])
        self._links[place] = NO_SEGMENT
        while segment != NO_SEGMENT:
            following = i64(self._links[2 * segment])
            self._set_first(segment, self._table.words[segment * SEGMENT_WORDS + TOP])
            segment = following

    def _set_first(self, segment: i64, key: i64) -> None:
        """Of its bucket."""
        links = self._links
        place = self._place_of(key)
        entry: int = segment
        links[2 * segment] = links[place]
        links[place] = entry

    def _place_of(self, key: i64) -> i64:
        """Of the first one in the bucket of a segment with that TOP."""
        return 2 * self._buckets.bucket_of((((key ^ (key >> 29)) * _MIXER) & _MASK) >> 24) + 1
