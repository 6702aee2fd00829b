"""Which segment lost the run of pages that begins with a content: segments by the content key of their ghost nearest to the root.

A segment is evicted from its end on, so what is gone of it is one run along a path: it takes one entry, however long it is. An open
hash table of segment numbers with linear probing and backward shifting; the keys stand in the segments.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64, mypyc_attr

from .segment_table import NO_SEGMENT, SEGMENT_WORDS, TOP, SegmentTable

_SMALLEST: Final = 64
_MIXER: Final = 0x2545F4914F6CDD1D & ((1 << 61) - 1)
_MASK: Final = (1 << 62) - 1


@final
@mypyc_attr(native_class=True)
class GhostRuns:
    __slots__ = ("num_runs", "_segments", "_table")

    num_runs: i64
    _segments: vec[i32]
    """NO_SEGMENT where there is none."""
    _table: Final[SegmentTable]

    def __init__(self, table: SegmentTable) -> None:
        self.num_runs = 0
        self._segments = vec[i32]([0] * _SMALLEST)
        self._table = table

    def find(self, key: i64) -> i64:
        """The segment with that TOP, or NO_SEGMENT."""
        return i64(self._segments[self._find_place(key)])

    def put(self, segment: i64, key: i64) -> None:
        """Of a segment that is not in it; nor is another one with the key. From now on that is its TOP."""
        if self.num_runs * 2 >= len(self._segments):
            self.reserve(len(self._segments))
        self._table.words[segment * SEGMENT_WORDS + TOP] = key
        self._set(self._find_place(key), segment)
        self.num_runs += 1

    def take(self, segment: i64) -> None:
        """A segment that is in it."""
        segments = self._segments
        words = self._table.words
        mask: i64 = len(segments)
        mask -= 1
        hole = self._find_place(words[segment * SEGMENT_WORDS + TOP])
        assert segments[hole] == segment, "a run of ghosts is not found"
        probe = (hole + 1) & mask
        while segments[probe] != NO_SEGMENT:
            home = self._home(words[i64(segments[probe]) * SEGMENT_WORDS + TOP])
            if (probe - home) & mask >= (probe - hole) & mask:
                segments[hole] = segments[probe]
                hole = probe
            probe = (probe + 1) & mask
        segments[hole] = 0
        words[segment * SEGMENT_WORDS + TOP] = 0
        self.num_runs -= 1

    def _set(self, place: i64, segment: i64) -> None:
        entry: int = segment
        self._segments[place] = entry

    def reserve(self, num_runs: i64) -> None:
        """Room for so many runs, so that none of them is moved when another one comes."""
        old = self._segments
        size: i64 = len(old)
        while size < 2 * num_runs:
            size *= 2
        if size == len(old):
            return
        words = self._table.words
        self._segments = vec[i32]([0] * size)
        for place in range(len(old)):
            segment = i64(old[place])
            if segment != NO_SEGMENT:
                self._set(self._find_place(words[segment * SEGMENT_WORDS + TOP]), segment)

    def _home(self, key: i64) -> i64:
        mask: i64 = len(self._segments)
        mask -= 1
        return ((((key ^ (key >> 29)) * _MIXER) & _MASK) >> 24) & mask

    def _find_place(self, key: i64) -> i64:
        """Where a segment with that TOP stands, or would."""
        segments = self._segments
        words = self._table.words
        mask: i64 = len(segments)
        mask -= 1
        place = self._home(key)
        while segments[place] != NO_SEGMENT and words[i64(segments[place]) * SEGMENT_WORDS + TOP] != key:
            place = (place + 1) & mask
        return place
