"""What LEARNED has learned, and the segments of a pool group, of all its levels: the model, the clock and what was evicted.

Pages go from a segment's queue to its *ghosts* when they leave the last level: from then on only their content keys are known, those at
both ends of the run that they are. If that content comes back, the segment has returned.

    in a queue   -> in another one   a page moves to another level: a copy of the segment goes on there, as old as it was
    in a queue   -> ghost            it is evicted
    ghost        -> in a queue       its content comes back, in a segment of the request that brings it
    any          -> forgotten        the oldest ghosts, when there are too many ghosts or segments

The clock counts pages of requests, hits included, on all levels.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from .block_mates import BlockMates
from .ghost_runs import GhostRuns
from .hazard_model import EDGE_UNIT, EDGES, NUM_BUCKETS, HazardModel
from .page_notes import MOST_SEGMENTS, PageNotes
from .recency_shadow import RecencyShadow
from .request_facts import RequestFacts
from .segment_table import (
    BOTTOM,
    BUCKET_SHIFT,
    COUNTS,
    HIGH_SHIFT,
    KEY,
    LAST_LINE,
    LOW,
    NO_SEGMENT,
    ONE_BUCKET,
    ONE_GHOST,
    PRIORITY_SHIFT,
    QUEUE_SHIFT,
    SEGMENT_WORDS,
    STAMP,
    STAMP_SHIFT,
    STATE,
    TOP,
    TRAITS_MASK,
    SegmentTable,
    bucket_of_state,
    count_all,
    queue_of_state,
)
from .value_lines import ValueLines

GHOSTS_PER_SLOT: Final = 8
SPARE_SEGMENTS: Final = 1024
"""In a small cache of short prompts most segments are a page or two."""
MOST_CROSSED: Final = 64
"""Edges that segments cross for each new one; on average it is as many as there are edges."""
_NUM_REFRESHED: Final = 2
"""Segments whose value is computed anew for each new one, beside those that cross an edge."""
_MOST_TWINS: Final = 4
_PARTS_PER_CACHE: Final = 64
"""Parts of the clock in which `RecencyShadow` counts."""


@final
class Learning:
    """What all learned queues of a storage share."""

    __slots__ = ("model", "request", "notes")

    def __init__(self) -> None:
        self.model: Final = HazardModel()
        self.request: Final = RequestFacts()
        self.notes: Final = PageNotes()


@final
class SegmentRecords:
    """``clock``: pages of requests so far. Queues are numbered in the order of their levels."""

    __slots__ = (
        "model", "request", "notes", "table", "ghosts", "lines", "clock", "pages_per_block", "block_mates", "all_learn", "shadow",
        "capacities", "_edges", "_most_segments", "_most_ghosts", "_part_length", "_part", "_num_in_part",
    )  # fmt: skip

    def __init__(self, learning: Learning, pages_per_block: i64, block_mates: BlockMates | None = None) -> None:
        self.model: Final[HazardModel] = learning.model
        self.request: Final[RequestFacts] = learning.request
        self.notes: Final[PageNotes] = learning.notes
        self.table: Final = SegmentTable()
        self.ghosts: Final = GhostRuns(self.table)
        self.lines: Final[list[ValueLines | None]] = []
        """By level: of its queue; None where that is no learned one."""
        self.clock: i64 = 0
        self.pages_per_block: Final = pages_per_block
        """At most."""
        self.block_mates: Final = block_mates
        """None where pages of one block need not go together."""
        self.all_learn = True
        """Whether all levels have a learned queue."""
        self.capacities: Final[list[int]] = []
        """By queue: slots of its level."""
        self._edges: Final = vec[i64]([0] * (NUM_BUCKETS + 1))
        """Ages in pages."""
        self._most_segments: i64 = SPARE_SEGMENTS
        self._most_ghosts: i64 = 0
        self.shadow: Final = RecencyShadow()
        self._part_length: i64 = 1
        self._part: i64 = 0
        """The current one."""
        self._num_in_part: i64 = 0
        """Pages pushed in it so far."""

    # -- levels -------------------------------------------------------------------------------------------------------

    def add_level(self, lines: ValueLines | None) -> i64:
        """Of the next level, as in `lines`; the number of its queue."""
        self.lines.append(lines)
        self.all_learn = self.all_learn and lines is not None
        self.table.add_queue()
        self.capacities.append(0)
        return len(self.lines) - 1

    def learns_below(self, queue: i64) -> bool:
        """Whether a page that is offloaded from there comes into a learned queue."""
        return queue + 1 < len(self.lines) and self.lines[queue + 1] is not None

    def set_capacity(self, queue: i64, num_slots: i64) -> None:
        """Moves the edges; what is known of segments stays."""
        self.capacities[queue] = int(num_slots)
        total: i64 = sum(self.capacities)
        for edge in range(NUM_BUCKETS + 1):
            # In a cache of a few pages each bucket still is a page wide.
            self._edges[edge] = max(EDGES[edge] * total // EDGE_UNIT, edge)
        self._most_ghosts = GHOSTS_PER_SLOT * total
        self._most_segments = _count_segments(total)
        self._reserve_segments(total)
        self.shadow.set_capacity(total)
        length = max(total // _PARTS_PER_CACHE, 1)
        if length != self._part_length:
            self._part_length = length
            self._restart_parts()

    def reserve(self, queue: i64, num_slots: i64) -> None:
        """Take the addresses that `set_capacity` needs."""
        total: i64 = sum(self.capacities)
        self._reserve_segments(total - self.capacities[queue] + num_slots)

    def _reserve_segments(self, num_slots: i64) -> None:
        num_segments = _count_segments(num_slots)
        if self.table.reserve(num_segments):
            self.ghosts.reserve(num_segments)

    def _restart_parts(self) -> None:
        """Parts have another length: count what is known once more."""
        self._part = self.clock // self._part_length
        self._num_in_part = 0
        shadow = self.shadow
        shadow.restart(self._part)
        words = self.table.words
        segment = self.table.newer(NO_SEGMENT)
        while segment != NO_SEGMENT:
            at = segment * SEGMENT_WORDS
            counts = words[at + COUNTS]
            part = self.part_of(words[at + STAMP])
            shadow.note_come(part, count_all(counts))
            shadow.note_gone(part, counts >> HIGH_SHIFT)
            segment = self.table.newer(segment)
        shadow.is_behind = True

    # -- recency ------------------------------------------------------------------------------------------------------

    def note_pushed(self, count: i64) -> None:
        """So many pages of a request come: the clock goes on."""
        self.clock += count
        part = self.clock // self._part_length
        while self._part < part:
            self.shadow.end_part(self._part, self._num_in_part)
            self._num_in_part = 0
            self._part += 1
        self._num_in_part += count
        self.shadow.is_behind = True
        self.table.pass_empty()

    def note_come(self, segment: i64, count: i64) -> None:
        """So many pages have come into the segment, without a push."""
        self.shadow.note_come(self.part_of(self.table.words[segment * SEGMENT_WORDS + STAMP]), count)

    def note_left(self, segment: i64, count: i64) -> None:
        """So many of its pages are counted to recency no more, until they come back."""
        self.shadow.note_left(self.part_of(self.table.words[segment * SEGMENT_WORDS + STAMP]), count)

    def part_of(self, stamp: i64) -> i64:
        return (stamp >> STAMP_SHIFT) // self._part_length

    def find_oldest(self, queue: i64, least: i64) -> i64:
        """Where recency chooses what is dropped: a segment that it would not have, of little value, or the oldest one where it has all.
        Else, or if none is found, NO_SEGMENT: ``least``, the segment of least value, is to go.

        Not asked for what is offloaded: nothing is lost there, so the account is not concerned.
        """
        shadow = self.shadow
        if shadow.is_behind:
            shadow.trim(self.table.num_pages - self._num_in_part, self._part)
        if self.values_decide(self.table.words[least * SEGMENT_WORDS + STAMP]):
            return NO_SEGMENT
        return self.table.least_of_oldest(queue, (shadow.oldest * self._part_length) << STAMP_SHIFT)

    def values_decide(self, stamp: i64) -> bool:
        """Whether a segment with that STAMP goes by its value: always, but where recency rules only if it would not have it."""
        return not self.shadow.rules or self.part_of(stamp) < self.shadow.oldest

    # -- segments -----------------------------------------------------------------------------------------------------

    def add_segment(self, queue: i64, traits: i64, priority: i64, part: i64) -> i64:
        """A segment of now, without pages, or NO_SEGMENT where there are as many as there may be. ``part``: its number in the run."""
        if self.table.num_segments >= self._most_segments and not self._forget_one():
            return NO_SEGMENT
        return self.add_segment_anyway(queue, traits, priority, part)

    def add_segment_anyway(self, queue: i64, traits: i64, priority: i64, part: i64) -> i64:
        table = self.table
        segment = table.add(table.newest, traits | (queue << QUEUE_SHIFT), (self.clock << STAMP_SHIFT) | part)
        table.words[segment * SEGMENT_WORDS + KEY] = (priority << PRIORITY_SHIFT) | self.model.line(traits, 0)
        return segment

    def find_copy(self, segment: i64, queue: i64, priority: i64) -> i64:
        """A segment with pages that differs from this one in queue and priority at most: found beside it, or made."""
        table = self.table
        words = table.words
        at = segment * SEGMENT_WORDS
        state = words[at + STATE]
        traits = state & TRAITS_MASK
        stamp = words[at + STAMP]
        other = segment
        num_left: i64 = _MOST_TWINS
        while num_left > 0 and other != NO_SEGMENT and words[other * SEGMENT_WORDS + STAMP] == stamp:
            other_state = words[other * SEGMENT_WORDS + STATE]
            if (
                other_state & TRAITS_MASK == traits and queue_of_state(other_state) == queue
                and words[other * SEGMENT_WORDS + KEY] >> PRIORITY_SHIFT == priority
            ):  # fmt: skip
                return other
            other = table.newer(other)
            num_left -= 1
        bucket = bucket_of_state(state)
        copy = table.add(segment, traits | (bucket << BUCKET_SHIFT) | (queue << QUEUE_SHIFT), stamp)
        table.words[copy * SEGMENT_WORDS + KEY] = (priority << PRIORITY_SHIFT) | self.model.line(traits, bucket)
        return copy

    def put_after(self, segment: i64, other: i64, priority: i64) -> bool:
        """Let a segment go after another one, of its level or another, until its value is computed anew: to the end of its line, or of
        the next one if it stands there. False, and nothing has changed, where it does so, goes by its age, or there is no next line."""
        words = self.table.words
        at = segment * SEGMENT_WORDS
        key = words[other * SEGMENT_WORDS + KEY]
        if (
            segment == other or words[at + KEY] >> PRIORITY_SHIFT != priority or key >> PRIORITY_SHIFT != priority
            or words[at + KEY] > key or not self.values_decide(words[at + STAMP])
        ):  # fmt: skip
            return False
        if words[at + KEY] == key:
            key += 1
        if key & LAST_LINE == 0:
            return False
        self._move(segment, key, False)
        return True

    def _move(self, segment: i64, key: i64, may_be_first: bool) -> None:
        """A segment with pages gets that KEY."""
        lines = self.lines[queue_of_state(self.table.words[segment * SEGMENT_WORDS + STATE])]
        assert lines is not None, "a segment has pages in a queue that learns nothing"
        lines.move(segment, key, may_be_first)

    def bucket_of(self, stamp: i64) -> i64:
        """Of a segment with that STAMP; NUM_BUCKETS behind the last one."""
        age = self.clock - (stamp >> STAMP_SHIFT)
        edges = self._edges
        bucket: i64 = 0
        while bucket < NUM_BUCKETS and age >= edges[bucket + 1]:
            bucket += 1
        return bucket

    def end_of_bucket(self, bucket: i64) -> i64:
        """The age, in pages, at which it ends."""
        return self._edges[bucket + 1]

    def pass_buckets(self, segment: i64) -> None:
        """Learn of the buckets that the segment has passed."""
        words = self.table.words
        at = segment * SEGMENT_WORDS
        counts = words[at + COUNTS]
        state = words[at + STATE]
        passed = bucket_of_state(state)
        bucket = self.bucket_of(words[at + STAMP])
        if passed >= bucket:
            return
        words[at + STATE] = state + (bucket - passed) * ONE_BUCKET
        count = count_all(counts)
        if count == 0:
            return
        while passed < bucket:
            self.model.learn(state & TRAITS_MASK, passed, 0.0, count)
            passed += 1

    def renew_value(self, segment: i64) -> None:
        """Of a segment with pages."""
        words = self.table.words
        at = segment * SEGMENT_WORDS
        state = words[at + STATE]
        line = self.model.line(state & TRAITS_MASK, bucket_of_state(state))
        self._move(segment, (words[at + KEY] >> PRIORITY_SHIFT << PRIORITY_SHIFT) | line, True)

    def go_on(self) -> None:
        """After a new segment: others have grown older, and some get a new value."""
        table = self.table
        marks = table.marks
        num_left: i64 = MOST_CROSSED
        edge: i64 = NUM_BUCKETS
        while edge > 0 and num_left > 0:
            limit = (self.clock - self._edges[edge] + 1) << STAMP_SHIFT
            segment = marks[edge]
            while segment != NO_SEGMENT and num_left > 0 and table.words[segment * SEGMENT_WORDS + STAMP] < limit:
                following = table.newer(segment)
                marks[edge] = following
                self._cross(segment, edge)
                segment = following
                num_left -= 1
            edge -= 1
        for _ in range(_NUM_REFRESHED):
            segment = table.next_one(True)
            if segment != NO_SEGMENT:
                self.renew_value(segment)

    def _cross(self, segment: i64, edge: i64) -> None:
        self.pass_buckets(segment)
        if self.table.words[segment * SEGMENT_WORDS + COUNTS] & LOW > 0:
            self.renew_value(segment)
        elif edge == NUM_BUCKETS:
            self.take_ghosts(segment)

    # -- what is gone -------------------------------------------------------------------------------------------------

    def add_ghosts(self, segment: i64, bottom_key: i64, top_key: i64, count: i64) -> None:
        """So many more of its pages are gone, a run that lies above those gone before: the keys of its two ends."""
        table = self.table
        words = table.words
        at = segment * SEGMENT_WORDS
        other = self.ghosts.find(top_key)
        if other != NO_SEGMENT and other != segment:
            # The same content, evicted once more: what is younger counts.
            self.take_ghosts(other)
        if words[at + TOP] != 0:
            self.ghosts.take(segment)
        else:
            words[at + BOTTOM] = bottom_key
        self.ghosts.put(segment, top_key)
        words[at + COUNTS] += count * ONE_GHOST
        self.shadow.note_gone(self.part_of(words[at + STAMP]), count)
        table.num_ghosts += count
        while table.num_ghosts > self._most_ghosts:
            if not self._forget_one():
                return

    def learn_return(self, segment: i64, count: i64) -> i64:
        """So much of its content comes back; the bucket of its age."""
        self.shadow.note_miss(self.part_of(self.table.words[segment * SEGMENT_WORDS + STAMP]), count)
        self.pass_buckets(segment)
        words = self.table.words
        bucket = self.bucket_of(words[segment * SEGMENT_WORDS + STAMP])
        if bucket < NUM_BUCKETS:
            self.model.learn(words[segment * SEGMENT_WORDS + STATE] & TRAITS_MASK, bucket, 1.0, count)
        return bucket

    def take_ghosts(self, segment: i64) -> None:
        """They have come back, are forgotten, or cannot be found any more; so is the segment if it has no pages."""
        words = self.table.words
        at = segment * SEGMENT_WORDS
        self.table.num_ghosts -= words[at + COUNTS] >> HIGH_SHIFT
        words[at + COUNTS] &= LOW
        if words[at + TOP] != 0:
            self.ghosts.take(segment)
        if words[at + COUNTS] == 0:
            self.table.free(segment)

    def _forget_one(self) -> bool:
        segment = self.table.next_one(False)
        if segment == NO_SEGMENT:
            return False
        self.take_ghosts(segment)
        return True

    # -- for checks ---------------------------------------------------------------------------------------------------

    def check_count(self) -> None:
        """Assert the laws of what is counted; O(1)."""
        table = self.table
        assert 0 <= table.num_ghosts, f"{table.num_ghosts} ghosts"
        assert 0 <= self.ghosts.num_runs <= table.num_segments, f"{self.ghosts.num_runs} runs of {table.num_segments} segments"
        assert table.num_pages >= 0, f"{table.num_pages} pages in segments"
        self.shadow.check(self._part)


def _count_segments(num_slots: i64) -> i64:
    """That there may be for so many slots."""
    return min(num_slots * 7 // 16 + SPARE_SEGMENTS, MOST_SEGMENTS)
