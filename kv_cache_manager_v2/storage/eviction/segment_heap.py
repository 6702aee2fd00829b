"""The segments of a queue, that of least priority and value first: a binary heap, and each segment knows its place.

Among equals the older one is first, so where nothing tells segments apart the order is recency.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64, mypyc_attr

from ...base.growing_arrays import reserve_numbers
from .segment_table import HIGH_SHIFT, KEY, LOW, PLACE, SEGMENT_WORDS, STAMP, SegmentTable

NOTHING: Final = -1


@final
@mypyc_attr(native_class=True)
class SegmentHeap:
    __slots__ = ("num_segments", "_segments", "_table", "_num_reserved")

    num_segments: i64
    _segments: vec[i32]
    """The first ``num_segments`` count."""
    _table: Final[SegmentTable]
    _num_reserved: i64

    def __init__(self, table: SegmentTable) -> None:
        self.num_segments = 0
        self._segments = vec[i32]()
        self._num_reserved = 0
        self._table = table

    def reserve(self, num_segments: i64) -> None:
        """Take addresses for so many."""
        if num_segments > self._num_reserved:
            self._num_reserved = num_segments
            self._segments = reserve_numbers(self._segments, num_segments)

    def first(self) -> i64:
        """NOTHING where it is empty."""
        return i64(self._segments[0]) if self.num_segments > 0 else NOTHING

    def segment_at(self, place: i64) -> i64:
        return i64(self._segments[place])

    def push(self, segment: i64) -> None:
        place = self.num_segments
        if place == len(self._segments):
            self._segments = append(self._segments, 0)
        self.num_segments += 1
        self._sift_up(segment, place)

    def remove(self, segment: i64) -> None:
        words = self._table.words
        at = segment * SEGMENT_WORDS + PLACE
        place = (words[at] >> HIGH_SHIFT) - 1
        assert place >= 0, "a segment left a heap that it was not in"
        words[at] &= LOW
        self.num_segments -= 1
        last = self.num_segments
        if place < last:
            moved = i64(self._segments[last])
            self._sift_up(moved, place)
            self.renew(moved)

    def renew(self, segment: i64) -> None:
        """Its key has changed."""
        place = (self._table.words[segment * SEGMENT_WORDS + PLACE] >> HIGH_SHIFT) - 1
        self._sift_up(segment, place)
        new_place = (self._table.words[segment * SEGMENT_WORDS + PLACE] >> HIGH_SHIFT) - 1
        if new_place == place:
            self._sift_down(segment, place)

    def _put(self, segment: i64, place: i64) -> None:
        entry: int = segment
        self._segments[place] = entry
        words = self._table.words
        at = segment * SEGMENT_WORDS + PLACE
        words[at] = (words[at] & LOW) | ((place + 1) << HIGH_SHIFT)

    def _goes_before(self, one: i64, other: i64) -> bool:
        words = self._table.words
        key = words[one * SEGMENT_WORDS + KEY]
        other_key = words[other * SEGMENT_WORDS + KEY]
        if key != other_key:
            return key < other_key
        stamp = words[one * SEGMENT_WORDS + STAMP]
        other_stamp = words[other * SEGMENT_WORDS + STAMP]
        if stamp != other_stamp:
            return stamp < other_stamp
        return one < other

    def _sift_up(self, segment: i64, place: i64) -> None:
        segments = self._segments
        while place > 0:
            above = (place - 1) >> 1
            other = i64(segments[above])
            if not self._goes_before(segment, other):
                break
            self._put(other, place)
            place = above
        self._put(segment, place)

    def _sift_down(self, segment: i64, place: i64) -> None:
        segments = self._segments
        count = self.num_segments
        while True:
            below = 2 * place + 1
            if below >= count:
                break
            other = i64(segments[below])
            if below + 1 < count:
                right = i64(segments[below + 1])
                if self._goes_before(right, other):
                    other = right
                    below += 1
            if not self._goes_before(other, segment):
                break
            self._put(other, place)
            place = below
        self._put(segment, place)

    def collect(self) -> list[int]:
        """All segments, for checks and pictures, the next victims first."""
        words = self._table.words
        found: list[tuple[int, int, int]] = []
        for place in range(self.num_segments):
            segment = i64(self._segments[place])
            found.append((words[segment * SEGMENT_WORDS + KEY], words[segment * SEGMENT_WORDS + STAMP], int(segment)))
        found.sort()
        return [segment for _key, _stamp, segment in found]
