"""The segments of a pool group: a *segment* is the run of pages that one request touched last and that are of one use class.

Eight words each, in the order of their age:

    KEY     priority (bits 8-14) | line of its value by the model (0-7): where it stands in its queue (`ValueLines`)
    STATE   traits (0-32) | buckets passed (33-36) | queue (37-41); FREE where no segment uses the words
    STAMP   the clock when it was pushed (bits 12-62) | its number among the segments that one run of pages became (0-11)
    COUNTS  pages in its queue (0-31) | pages that are gone and remembered, its ghosts (32-62)
    ORDER   the next older segment (0-30) | the next newer one (31-61)
    PLACE   its first page, the next to go (0-31) | its last page (32-62)
    TOP     content key of the ghost nearest to the root, 0 for none
    BOTTOM  content key of the ghost farthest from it

Segment 0 is the sentinel of the age order. A mark per edge of the model's buckets is the oldest segment that has not crossed it:
all cross it in the order of their age, so no call looks at all of them.

A segment is evicted from the page farthest from the root on, so what is gone of it is one run along a path, found by its TOP alone,
however long it is: in a hash table of chained segments, of as many buckets as there were runs at most (`GrowingBuckets`).
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from ...base.growing_arrays import fill_numbers, reserve_numbers, reserve_up_to
from ...base.growing_buckets import GrowingBuckets
from .hazard_model import NUM_BUCKETS
from .segment_traits import TRAIT_BITS, waits

KEY: Final = 0
STATE: Final = 1
STAMP: Final = 2
COUNTS: Final = 3
ORDER: Final = 4
PLACE: Final = 5
TOP: Final = 6
BOTTOM: Final = 7
SEGMENT_WORDS: Final = 8
NO_SEGMENT: Final = 0
FREE: Final = -1
PRIORITY_SHIFT: Final = 8
LAST_LINE: Final = 255
_TRAIT_BITS: Final = 33
"""`TRAIT_BITS`: compiled, a constant made from another module's is a boxed one, which is taken apart at each use."""
TRAITS_MASK: Final = (1 << _TRAIT_BITS) - 1
BUCKET_SHIFT: Final = _TRAIT_BITS
BUCKET_MASK: Final = 15
ONE_BUCKET: Final = 1 << BUCKET_SHIFT
QUEUE_SHIFT: Final = _TRAIT_BITS + 4
_QUEUE_MASK: Final = 31
LOW: Final = (1 << 32) - 1
HIGH_SHIFT: Final = 32
ONE_GHOST: Final = 1 << HIGH_SHIFT
_LINK: Final = (1 << 31) - 1
_LINK_SHIFT: Final = 31
STAMP_SHIFT: Final = 12
MOST_PARTS: Final = 4095
_MOST_PASSED: Final = 16
_MOST_LOOKS: Final = 64
_MOST_COMPARED: Final = 32
_MIXER: Final = 0x2545F4914F6CDD1D & ((1 << 61) - 1)
_MASK: Final = (1 << 62) - 1


@final
class SegmentTable:
    """`words` may be replaced by `add`: take a fresh alias after it. ``num_segments`` are in use, with ``num_pages`` and ``num_ghosts``
    in ``num_runs``."""

    __slots__ = (
        "words", "marks", "num_segments", "num_pages", "num_ghosts", "num_runs", "_first_free", "_seen", "_oldest_queued", "_looked",
        "_chosen", "_num_reserved", "_links", "_buckets",
    )  # fmt: skip

    def __init__(self) -> None:
        assert _TRAIT_BITS == TRAIT_BITS, "a segment's word of state has no room for its traits"
        self.words = vec[i64]([0] * SEGMENT_WORDS)
        self.words[STATE] = FREE
        self.marks: Final = vec[i64]([NO_SEGMENT] * (NUM_BUCKETS + 1))
        """By edge, from 1 on: the oldest segment that has not crossed it, NO_SEGMENT where all have."""
        self.num_segments: i64 = 0
        self.num_pages: i64 = 0
        self.num_ghosts: i64 = 0
        self.num_runs: i64 = 0
        self._first_free: i64 = NO_SEGMENT
        self._seen: Final = vec[i64]([NO_SEGMENT, NO_SEGMENT])
        """The latest segment that `next_one` looked at: among those without pages, and among those with some."""
        self._oldest_queued: Final[list[int]] = []
        """By queue: all older segments, but for some of equal age, have no pages in it; NO_SEGMENT where none has."""
        self._looked: Final[list[int]] = []
        """By queue: where `least_of_oldest` goes on."""
        self._chosen: Final[list[int]] = []
        """By queue: what that found."""
        self._num_reserved: i64 = 0
        self._links = vec[i32]([NO_SEGMENT, NO_SEGMENT])
        """At 2 x segment the next one in its bucket, at 2 x bucket + 1 the first one there; NO_SEGMENT where there is none. A bucket comes
        with a run, so there are as few of them as of segments."""
        self._buckets: Final = GrowingBuckets()

    def reserve(self, num_segments: i64) -> None:
        """Take addresses for so many, so that none is copied when another one is made."""
        if num_segments > self._num_reserved:
            self._num_reserved = num_segments
            self.words = reserve_up_to(self.words, (num_segments + 1) * SEGMENT_WORDS)
            self._links = reserve_numbers(self._links, 2 * (num_segments + 1))

    def add_queue(self) -> None:
        self._oldest_queued.append(NO_SEGMENT)
        self._looked.append(NO_SEGMENT)
        self._chosen.append(NO_SEGMENT)

    def is_used(self, segment: i64) -> bool:
        return segment * SEGMENT_WORDS < len(self.words) and self.words[segment * SEGMENT_WORDS + STATE] != FREE

    def queue_of(self, segment: i64) -> i64:
        return queue_of_state(self.words[segment * SEGMENT_WORDS + STATE])

    def has_pages_of(self, segment: i64, queue: i64, priority: i64) -> bool:
        """Whether it is of that queue and priority, and has pages."""
        words = self.words
        at = segment * SEGMENT_WORDS
        return (
            self.is_used(segment) and words[at + COUNTS] & LOW > 0 and queue_of_state(words[at + STATE]) == queue
            and words[at + KEY] >> PRIORITY_SHIFT == priority
        )  # fmt: skip

    # -- making and freeing -------------------------------------------------------------------------------------------

    def add(self, older: i64, state: i64, stamp: i64) -> i64:
        """A segment without pages, right after ``older`` in the order of age; with NO_SEGMENT the oldest, see `newest`."""
        segment = self._first_free
        if segment != NO_SEGMENT:
            self._first_free = self.words[segment * SEGMENT_WORDS + ORDER]
        else:
            segment = len(self.words) // SEGMENT_WORDS
            for _new in range(SEGMENT_WORDS):
                self.words = append(self.words, 0)
        words = self.words
        at = segment * SEGMENT_WORDS
        for word in range(SEGMENT_WORDS):
            words[at + word] = 0
        words[at + STATE] = state
        words[at + STAMP] = stamp
        newer = self.newer(older)
        self._join(older, segment)
        self._join(segment, newer)
        self.num_segments += 1
        if newer == NO_SEGMENT:
            for edge in range(bucket_of_state(state) + 1, NUM_BUCKETS + 1):
                if self.marks[edge] == NO_SEGMENT:
                    self.marks[edge] = segment
        return segment

    def free_if_empty(self, segment: i64) -> None:
        """Unless it has pages or ghosts, or is NO_SEGMENT."""
        words = self.words
        at = segment * SEGMENT_WORDS
        if segment == NO_SEGMENT or words[at + COUNTS] != 0:
            return
        older = words[at + ORDER] & _LINK
        newer = words[at + ORDER] >> _LINK_SHIFT
        for edge in range(1, NUM_BUCKETS + 1):
            if self.marks[edge] == segment:
                self.marks[edge] = newer
        for which in range(2):
            if self._seen[which] == segment:
                self._seen[which] = older
        for queue in range(len(self._oldest_queued)):
            if self._oldest_queued[queue] == segment:
                self._oldest_queued[queue] = newer
            if self._looked[queue] == segment:
                self._looked[queue] = newer
            if self._chosen[queue] == segment:
                self._chosen[queue] = NO_SEGMENT
        self._join(older, newer)
        words[at + STATE] = FREE
        words[at + ORDER] = self._first_free
        self._first_free = segment
        self.num_segments -= 1

    # -- the order of age ---------------------------------------------------------------------------------------------

    def _join(self, older: i64, newer: i64) -> None:
        """They are neighbours from now on."""
        words = self.words
        words[older * SEGMENT_WORDS + ORDER] = (words[older * SEGMENT_WORDS + ORDER] & _LINK) | (newer << _LINK_SHIFT)
        words[newer * SEGMENT_WORDS + ORDER] = older | ((words[newer * SEGMENT_WORDS + ORDER] >> _LINK_SHIFT) << _LINK_SHIFT)

    @property
    def newest(self) -> i64:
        return self.words[ORDER] & _LINK

    def newer(self, segment: i64) -> i64:
        """NO_SEGMENT behind the newest; of NO_SEGMENT the oldest."""
        return self.words[segment * SEGMENT_WORDS + ORDER] >> _LINK_SHIFT

    def next_one(self, has_pages: bool) -> i64:
        """The next segment that has pages, or that has none, by a few looks, all of them in turn; or NO_SEGMENT."""
        words = self.words
        seen = self._seen
        which: i64 = 1 if has_pages else 0
        for _ in range(_MOST_PASSED):
            segment = self.newer(seen[which])
            seen[which] = segment
            if segment != NO_SEGMENT and (words[segment * SEGMENT_WORDS + COUNTS] & LOW > 0) == has_pages:
                return segment
        return NO_SEGMENT

    # -- the oldest of a queue ----------------------------------------------------------------------------------------

    def note_queued(self, segment: i64) -> None:
        """It has just got its first page."""
        queue = self.queue_of(segment)
        oldest: i64 = self._oldest_queued[queue]
        if oldest == NO_SEGMENT or self.words[oldest * SEGMENT_WORDS + STAMP] >= self.words[segment * SEGMENT_WORDS + STAMP]:
            self._oldest_queued[queue] = int(segment)

    def least_of_oldest(self, queue: i64, limit: i64) -> i64:
        """Of the segments with a smaller STAMP than ``limit`` that have pages there: one of little value, by a few looks, all of them in
        turn; the oldest segment where none is as old. NO_SEGMENT where a few looks find none: then `pass_empty` has to go on first.

        Until `pass_empty` the same one, while it has pages.
        """
        words = self.words
        chosen: i64 = self._chosen[queue]
        if chosen != NO_SEGMENT and words[chosen * SEGMENT_WORDS + STAMP] < limit and self._has_pages(chosen, queue):
            return chosen
        oldest = self._pass_empty(queue)
        if not self._has_pages(oldest, queue):
            return NO_SEGMENT
        self._oldest_queued[queue] = int(oldest)
        if words[oldest * SEGMENT_WORDS + STAMP] >= limit:
            return oldest
        best = oldest
        segment: i64 = self._looked[queue]
        for _ in range(_MOST_COMPARED):
            if segment == NO_SEGMENT or words[segment * SEGMENT_WORDS + STAMP] >= limit:
                segment = oldest
            if words[segment * SEGMENT_WORDS + KEY] < words[best * SEGMENT_WORDS + KEY] and self._has_pages(segment, queue):
                best = segment
            segment = self.newer(segment)
        self._looked[queue] = int(segment)
        self._chosen[queue] = int(best)
        return best

    def pass_empty(self) -> None:
        """Begin to look for the oldest of each queue where the looks so far have ended, and choose anew."""
        for queue in range(len(self._oldest_queued)):
            self._oldest_queued[queue] = int(self._pass_empty(queue))
            self._chosen[queue] = NO_SEGMENT

    def _pass_empty(self, queue: i64) -> i64:
        segment: i64 = self._oldest_queued[queue]
        num_left: i64 = _MOST_LOOKS
        while num_left > 0 and segment != NO_SEGMENT and not self._has_pages(segment, queue):
            segment = self.newer(segment)
            num_left -= 1
        return segment

    def _has_pages(self, segment: i64, queue: i64) -> bool:
        """That do not wait. NO_SEGMENT has none."""
        at = segment * SEGMENT_WORDS
        state = self.words[at + STATE]
        return self.words[at + COUNTS] & LOW > 0 and queue_of_state(state) == queue and not waits(state)

    # -- ghosts by their TOP ------------------------------------------------------------------------------------------

    def find_top(self, key: i64) -> i64:
        """The segment with that TOP, or NO_SEGMENT."""
        links = self._links
        words = self.words
        segment = i64(links[self._place_of(key)])
        while segment != NO_SEGMENT and words[segment * SEGMENT_WORDS + TOP] != key:
            segment = i64(links[2 * segment])
        return segment

    def set_top(self, segment: i64, key: i64) -> None:
        """Of a segment that has none; nor has another one that key."""
        self._links = fill_numbers(self._links, 2 * (segment + 1), NO_SEGMENT)
        if self.num_runs >= self._buckets.count:
            # One more, which takes its part of the runs of another.
            place = 2 * self._buckets.add() + 1
            moved = i64(self._links[place])
            self._links[place] = NO_SEGMENT
            while moved != NO_SEGMENT:
                following = i64(self._links[2 * moved])
                self._chain(moved, self.words[moved * SEGMENT_WORDS + TOP])
                moved = following
        self.words[segment * SEGMENT_WORDS + TOP] = key
        self._chain(segment, key)
        self.num_runs += 1

    def clear_top(self, segment: i64) -> None:
        """Of a segment that has one."""
        links = self._links
        place = self._place_of(self.words[segment * SEGMENT_WORDS + TOP])
        while links[place] != segment:
            assert links[place] != NO_SEGMENT, "a run of ghosts is not found"
            place = 2 * i64(links[place])
        links[place] = links[2 * segment]
        self.words[segment * SEGMENT_WORDS + TOP] = 0
        self.num_runs -= 1

    def _chain(self, segment: i64, key: i64) -> None:
        """As the first one of its bucket."""
        links = self._links
        place = self._place_of(key)
        links[2 * segment] = links[place]
        links[place] = i32(segment)

    def _place_of(self, key: i64) -> i64:
        """Of the first one in the bucket of a segment with that TOP."""
        return 2 * self._buckets.bucket_of((((key ^ (key >> 29)) * _MIXER) & _MASK) >> 24) + 1


def bucket_of_state(state: i64) -> i64:
    return (state >> BUCKET_SHIFT) & BUCKET_MASK


def queue_of_state(state: i64) -> i64:
    return (state >> QUEUE_SHIFT) & _QUEUE_MASK


def count_all(counts: i64) -> i64:
    """Pages and ghosts."""
    return (counts & LOW) + (counts >> HIGH_SHIFT)
