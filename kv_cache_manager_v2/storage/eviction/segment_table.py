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
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ...base.growing_arrays import reserve_up_to
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


@final
class SegmentTable:
    """`words` may be replaced by `add`: take a fresh alias after it. ``num_segments`` are in use, with ``num_pages`` and ``num_ghosts``."""

    __slots__ = (
        "words", "marks", "num_segments", "num_pages", "num_ghosts", "_first_free", "_seen", "_oldest_queued", "_looked", "_chosen",
        "_num_reserved",
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

    def reserve(self, num_segments: i64) -> bool:
        """Take addresses for so many, so that none is copied when another one is made; False where there were as many."""
        if num_segments <= self._num_reserved:
            return False
        self._num_reserved = num_segments
        self.words = reserve_up_to(self.words, (num_segments + 1) * SEGMENT_WORDS)
        return True

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
        if not self.is_used(segment):
            return False
        words = self.words
        at = segment * SEGMENT_WORDS
        return (
            words[at + COUNTS] & LOW > 0 and queue_of_state(words[at + STATE]) == queue and words[at + KEY] >> PRIORITY_SHIFT == priority
        )

    # -- making and freeing -------------------------------------------------------------------------------------------

    def add(self, older: i64, state: i64, stamp: i64) -> i64:
        """A segment without pages, right after ``older`` in the order of age; with NO_SEGMENT the oldest, see `newest`."""
        segment = self._first_free
        if segment != NO_SEGMENT:
            self._first_free = self.words[segment * SEGMENT_WORDS + ORDER]
        else:
            words = self.words
            segment = len(words) // SEGMENT_WORDS
            for word in range(SEGMENT_WORDS):
                words = append(words, 0)
            self.words = words
        words = self.words
        at = segment * SEGMENT_WORDS
        words[at + KEY] = 0
        words[at + STATE] = state
        words[at + STAMP] = stamp
        words[at + COUNTS] = 0
        words[at + PLACE] = 0
        words[at + TOP] = 0
        words[at + BOTTOM] = 0
        at_older = older * SEGMENT_WORDS + ORDER
        newer = words[at_older] >> _LINK_SHIFT
        words[at + ORDER] = older | (newer << _LINK_SHIFT)
        words[at_older] = (words[at_older] & _LINK) | (segment << _LINK_SHIFT)
        at_newer = newer * SEGMENT_WORDS + ORDER
        words[at_newer] = segment | ((words[at_newer] >> _LINK_SHIFT) << _LINK_SHIFT)
        self.num_segments += 1
        if newer == NO_SEGMENT:
            marks = self.marks
            for edge in range((state >> BUCKET_SHIFT & BUCKET_MASK) + 1, NUM_BUCKETS + 1):
                if marks[edge] == NO_SEGMENT:
                    marks[edge] = segment
        return segment

    def free(self, segment: i64) -> None:
        """It has no pages and no ghosts."""
        words = self.words
        at = segment * SEGMENT_WORDS
        assert words[at + COUNTS] == 0, "a segment was freed that has pages"
        order = words[at + ORDER]
        older = order & _LINK
        newer = order >> _LINK_SHIFT
        marks = self.marks
        for edge in range(1, NUM_BUCKETS + 1):
            if marks[edge] == segment:
                marks[edge] = newer
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
        at_older = older * SEGMENT_WORDS + ORDER
        words[at_older] = (words[at_older] & _LINK) | (newer << _LINK_SHIFT)
        at_newer = newer * SEGMENT_WORDS + ORDER
        words[at_newer] = older | ((words[at_newer] >> _LINK_SHIFT) << _LINK_SHIFT)
        words[at + STATE] = FREE
        words[at + ORDER] = self._first_free
        self._first_free = segment
        self.num_segments -= 1

    # -- the order of age ---------------------------------------------------------------------------------------------

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
        words = self.words
        queue = queue_of_state(words[segment * SEGMENT_WORDS + STATE])
        stamp = words[segment * SEGMENT_WORDS + STAMP]
        oldest: i64 = self._oldest_queued[queue]
        if oldest != NO_SEGMENT and words[oldest * SEGMENT_WORDS + STAMP] < stamp:
            return
        self._oldest_queued[queue] = int(segment)

    def oldest_queued(self, queue: i64) -> i64:
        """The oldest segment with pages there that do not wait, by a few looks, or NO_SEGMENT: then `pass_empty` has to go on first."""
        segment = self._pass_empty(queue)
        if segment == NO_SEGMENT or not self._has_pages(segment, queue):
            return NO_SEGMENT
        self._oldest_queued[queue] = int(segment)
        return segment

    def least_of_oldest(self, queue: i64, limit: i64) -> i64:
        """Of the segments with a smaller STAMP than ``limit`` that have pages there: one of little value, by a few looks, all of them in
        turn; the oldest segment where none is as old. NO_SEGMENT as `oldest_queued`.

        Until `pass_empty` the same one, while it has pages.
        """
        words = self.words
        chosen: i64 = self._chosen[queue]
        if chosen != NO_SEGMENT and words[chosen * SEGMENT_WORDS + STAMP] < limit and self._has_pages(chosen, queue):
            return chosen
        oldest = self.oldest_queued(queue)
        if oldest == NO_SEGMENT or words[oldest * SEGMENT_WORDS + STAMP] >= limit:
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
        words = self.words
        at = segment * SEGMENT_WORDS
        state = words[at + STATE]
        return words[at + COUNTS] & LOW > 0 and queue_of_state(state) == queue and not waits(state)


def bucket_of_state(state: i64) -> i64:
    return (state >> BUCKET_SHIFT) & BUCKET_MASK


def queue_of_state(state: i64) -> i64:
    return (state >> QUEUE_SHIFT) & _QUEUE_MASK


def count_all(counts: i64) -> i64:
    """Pages and ghosts."""
    return (counts & LOW) + (counts >> HIGH_SHIFT)
