"""What LEARNED has learned, and the segments of a pool group, of all its levels: the model, the clock and what was evicted.

Pages go from a segment's queue to its *ghosts* when they are dropped, or offloaded to a level
that does not learn: from then on only their content keys are known, those at
both ends of the run that they are. If that content comes back, the segment has returned.

    in a queue   -> in another one   a page moves to another level: a copy of the segment goes on there, as old as it was
    in a queue   -> ghost            it is evicted
    ghost        -> in a queue       its content comes back, in a segment of the request that brings it
    any          -> forgotten        the oldest ghosts, when there are too many ghosts or segments

The clock counts pages of requests, hits included, on all levels: these have their segments in one table, with one clock and one model, so
that their pages can be compared.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..page_rows import PageRows
from .hazard_model import EDGE_UNIT, EDGES, NUM_BUCKETS, HazardModel
from .page_notes import (
    AGE_MASK,
    AGE_SHIFT,
    MOST_SEGMENTS,
    UNKNOWN,
    BlockMates,
    PageNotes,
    uses_of_note,
)
from .recency_shadow import RecencyShadow
from .segment_table import (
    BOTTOM,
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
from .segment_traits import AGE_SHIFT as AGE_TRAIT, RequestFacts, level_of_uses, waits
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
NEVER: Final = -1


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
        "model", "request", "notes", "table", "lines", "clock", "pages_per_block", "block_mates", "all_learn", "shadow",
        "capacities", "edges", "_most_segments", "_most_ghosts", "_part_length", "_part", "_num_in_part",
    )  # fmt: skip

    def __init__(self, learning: Learning, pages_per_block: i64, block_mates: BlockMates | None = None) -> None:
        self.model: Final[HazardModel] = learning.model
        self.request: Final[RequestFacts] = learning.request
        self.notes: Final[PageNotes] = learning.notes
        self.table: Final = SegmentTable()
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
        self.edges: Final = vec[i64]([0] * (NUM_BUCKETS + 1))
        """Ages in pages: where each bucket begins, and the last one ends."""
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
            self.edges[edge] = max(EDGES[edge] * total // EDGE_UNIT, edge)
        self._most_ghosts = GHOSTS_PER_SLOT * total
        self._most_segments = _count_segments(total)
        self.table.reserve(self._most_segments)
        self.shadow.set_capacity(total)
        length = max(total // _PARTS_PER_CACHE, 1)
        if length != self._part_length:
            self._part_length = length
            self._restart_parts()

    def reserve(self, queue: i64, num_slots: i64) -> None:
        """Take the addresses that `set_capacity` needs."""
        total: i64 = sum(self.capacities)
        self.table.reserve(_count_segments(total - self.capacities[queue] + num_slots))

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

        Not asked for what is offloaded to a level that learns: nothing is lost there, so the account is not concerned.
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

    def has_room(self) -> bool:
        """Whether there may be one segment more; one without pages is forgotten for it."""
        return self.table.num_segments < self._most_segments or self._forget_one()

    def add_segment(self, queue: i64, traits: i64, priority: i64, part: i64) -> i64:
        """A segment of now, without pages. ``part``: its number in the run."""
        return self._add(self.table.newest, traits | (queue << QUEUE_SHIFT), (self.clock << STAMP_SHIFT) | part, priority)

    def _add(self, older: i64, state: i64, stamp: i64, priority: i64) -> i64:
        segment = self.table.add(older, state, stamp)
        line = self.model.line(state & TRAITS_MASK, bucket_of_state(state))
        self.table.words[segment * SEGMENT_WORDS + KEY] = (priority << PRIORITY_SHIFT) | line
        return segment

    def find_copy(self, segment: i64, queue: i64, priority: i64) -> i64:
        """A segment with pages that differs from this one in queue and priority at most: found beside it, or made."""
        words = self.table.words
        stamp = words[segment * SEGMENT_WORDS + STAMP]
        state = words[segment * SEGMENT_WORDS + STATE]
        other = segment
        for _look in range(_MOST_TWINS):
            at = other * SEGMENT_WORDS
            if other == NO_SEGMENT or words[at + STAMP] != stamp:
                break
            other_state = words[at + STATE]
            if (
                other_state & TRAITS_MASK == state & TRAITS_MASK and queue_of_state(other_state) == queue
                and words[at + KEY] >> PRIORITY_SHIFT == priority
            ):  # fmt: skip
                return other
            other = self.table.newer(other)
        return self._add(segment, state + ((queue - queue_of_state(state)) << QUEUE_SHIFT), stamp, priority)

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
        edges = self.edges
        bucket: i64 = 0
        while bucket < NUM_BUCKETS and age >= edges[bucket + 1]:
            bucket += 1
        return bucket

    def pass_buckets(self, segment: i64) -> None:
        """Learn of the buckets that the segment has passed."""
        words = self.table.words
        at = segment * SEGMENT_WORDS
        state = words[at + STATE]
        passed = bucket_of_state(state)
        bucket = self.bucket_of(words[at + STAMP])
        count = count_all(words[at + COUNTS])
        while passed < bucket:
            if count > 0:
                self.model.learn(state & TRAITS_MASK, passed, 0.0, count)
            passed += 1
            words[at + STATE] += ONE_BUCKET

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
            limit = (self.clock - self.edges[edge] + 1) << STAMP_SHIFT
            segment = marks[edge]
            while segment != NO_SEGMENT and num_left > 0 and table.words[segment * SEGMENT_WORDS + STAMP] < limit:
                following = table.newer(segment)
                marks[edge] = following
                self.pass_buckets(segment)
                if table.words[segment * SEGMENT_WORDS + COUNTS] & LOW > 0:
                    self.renew_value(segment)
                elif edge == NUM_BUCKETS:
                    self.take_ghosts(segment)
                segment = following
                num_left -= 1
            edge -= 1
        for _ in range(_NUM_REFRESHED):
            segment = table.next_one(True)
            if segment != NO_SEGMENT:
                self.renew_value(segment)

    # -- what is gone -------------------------------------------------------------------------------------------------

    def add_ghosts(self, segment: i64, bottom_key: i64, top_key: i64, count: i64) -> None:
        """So many more of its pages are gone, a run that lies above those gone before: the keys of its two ends."""
        table = self.table
        words = table.words
        at = segment * SEGMENT_WORDS
        other = table.find_top(top_key)
        if other != NO_SEGMENT and other != segment:
            # The same content, evicted once more: what is younger counts.
            self.take_ghosts(other)
        if words[at + TOP] != 0:
            table.clear_top(segment)
        else:
            words[at + BOTTOM] = bottom_key
        table.set_top(segment, top_key)
        words[at + COUNTS] += count * ONE_GHOST
        self.shadow.note_gone(self.part_of(words[at + STAMP]), count)
        table.num_ghosts += count
        while table.num_ghosts > self._most_ghosts:
            if not self._forget_one():
                return

    def bring_back(self, segment: i64, count: i64) -> i64:
        """So much of the content of its ghosts comes back; the bucket of its age."""
        at = segment * SEGMENT_WORDS
        self.shadow.note_miss(self.part_of(self.table.words[at + STAMP]), count)
        self.pass_buckets(segment)
        bucket = self.bucket_of(self.table.words[at + STAMP])
        self.model.learn(self.table.words[at + STATE] & TRAITS_MASK, bucket, 1.0, count)
        self.take_ghosts(segment)
        return bucket

    def take_ghosts(self, segment: i64) -> None:
        """They have come back, are forgotten, or cannot be found any more; so is the segment if it has no pages."""
        words = self.table.words
        at = segment * SEGMENT_WORDS
        self.table.num_ghosts -= words[at + COUNTS] >> HIGH_SHIFT
        words[at + COUNTS] &= LOW
        if words[at + TOP] != 0:
            self.table.clear_top(segment)
        self.table.free_if_empty(segment)

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
        assert 0 <= table.num_runs <= table.num_segments, f"{table.num_runs} runs of {table.num_segments} segments"
        assert table.num_pages >= 0, f"{table.num_pages} pages in segments"
        self.shadow.check(self._part)


@final
class LevelOrder:
    """The order of value over the levels of a pool group, where all of them are LEARNED: any two of their pages can be compared, by
    priority, evict-first pages before others, then by value, or by age while recency is to choose what is dropped (`RecencyShadow`).

    The pages are droppable ones, in their queues, but for `expect_return`.
    """

    __slots__ = ("_rows", "_records")

    def __init__(self, rows: PageRows, records: SegmentRecords) -> None:
        self._rows: Final = rows
        self._records: Final = records

    def ranks_under(self, page: i64, other: i64) -> bool:
        """Whether the page goes before the other one, whatever their levels. False where they are of equal value."""
        rows = self._rows
        priority = rows.priority(page)
        other_priority = rows.priority(other)
        if priority != other_priority:
            return priority < other_priority
        records = self._records
        words = records.table.words
        at = records.notes.segment_at(page) * SEGMENT_WORDS
        at_other = records.notes.segment_at(other) * SEGMENT_WORDS
        if at == NO_SEGMENT or at_other == NO_SEGMENT:
            # Only the page is in none.
            return at < at_other
        if (
            words[at + KEY] != words[at_other + KEY] and records.values_decide(words[at + STAMP])
            and records.values_decide(words[at_other + STAMP])
        ):  # fmt: skip
            return words[at + KEY] < words[at_other + KEY]
        return words[at + STAMP] < words[at_other + STAMP]

    def chance_of_reuse(self, page: i64) -> float:
        """How likely the page is reused at all, by what has come back so far; 0 for an evict-first one."""
        records = self._records
        segment = records.notes.segment_at(page)
        if segment == NO_SEGMENT:
            return 0.0
        state = records.table.words[segment * SEGMENT_WORDS + STATE]
        gone = 1.0
        for bucket in range(bucket_of_state(state), NUM_BUCKETS):
            gone *= 1.0 - records.model.chance(state & TRAITS_MASK, bucket)
        return 1.0 - gone

    @property
    def clock(self) -> i64:
        """Pages that requests have released so far."""
        return self._records.clock

    def expect_return(self, page: i64) -> i64:
        """When, by the clock, most of what is like the page and comes back has come back; NEVER while nothing was learned.

        Of a page in use, and of one that is older than all that was seen to come back, it is counted from now on.
        """
        records = self._records
        note = records.notes.get(page)
        at = records.notes.segment_at(page) * SEGMENT_WORDS
        begin = records.clock
        bucket: i64 = 0
        traits: i64 = 0
        if at != NO_SEGMENT:
            traits = records.table.words[at + STATE] & TRAITS_MASK
            stamp = records.table.words[at + STAMP]
            if records.bucket_of(stamp) < NUM_BUCKETS:
                begin = stamp >> STAMP_SHIFT
                bucket = records.bucket_of(stamp)
        elif note != UNKNOWN:
            traits = level_of_uses(uses_of_note(note)) | (((note >> AGE_SHIFT) & AGE_MASK) << AGE_TRAIT)
        last = NUM_BUCKETS if waits(traits) else records.model.likely_bucket(traits, bucket)
        return NEVER if last == NUM_BUCKETS else begin + records.edges[last + 1]


def _count_segments(num_slots: i64) -> i64:
    """That there may be for so many slots."""
    return min(num_slots * 7 // 16 + SPARE_SEGMENTS, MOST_SEGMENTS)
