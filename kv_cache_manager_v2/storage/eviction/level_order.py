"""The order of value over the levels of a pool group: what it says where all of them are LEARNED.

Pages of all levels have segments in one table, with one clock and one model, so any two of them can be compared: by priority, evict-first
pages before others, then by value, or by age while recency is to choose what is dropped (`RecencyShadow`).
"""

from typing import Final, final

from mypy_extensions import i64

from ..page_rows import PageRows
from .hazard_model import NUM_BUCKETS
from .page_notes import AGE_MASK, AGE_SHIFT, IN_SEGMENT, STATUS_MASK, UNKNOWN, segment_of_note, uses_of_note
from .segment_records import SegmentRecords
from .segment_table import KEY, SEGMENT_WORDS, STAMP, STAMP_SHIFT, STATE, TRAITS_MASK, bucket_of_state
from .segment_traits import AGE_SHIFT as AGE_TRAIT, level_of_uses, waits

NEVER: Final = -1


@final
class LevelOrder:
    """The pages are droppable ones, in their queues, but for `expect_return`."""

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
        note = records.notes.get(page)
        other_note = records.notes.get(other)
        if note & STATUS_MASK != IN_SEGMENT or other_note & STATUS_MASK != IN_SEGMENT:
            return note & STATUS_MASK != IN_SEGMENT and other_note & STATUS_MASK == IN_SEGMENT
        words = records.table.words
        at = segment_of_note(note) * SEGMENT_WORDS
        at_other = segment_of_note(other_note) * SEGMENT_WORDS
        if (
            words[at + KEY] != words[at_other + KEY] and records.values_decide(words[at + STAMP])
            and records.values_decide(words[at_other + STAMP])
        ):  # fmt: skip
            return words[at + KEY] < words[at_other + KEY]
        return words[at + STAMP] < words[at_other + STAMP]

    def chance_of_reuse(self, page: i64) -> float:
        """How likely the page is reused at all, by what has come back so far; 0 for an evict-first one."""
        records = self._records
        note = records.notes.get(page)
        if note & STATUS_MASK != IN_SEGMENT:
            return 0.0
        state = records.table.words[segment_of_note(note) * SEGMENT_WORDS + STATE]
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
        begin = records.clock
        bucket: i64 = 0
        traits: i64 = 0
        if note & STATUS_MASK == IN_SEGMENT:
            at = segment_of_note(note) * SEGMENT_WORDS
            words = records.table.words
            traits = words[at + STATE] & TRAITS_MASK
            stamp = words[at + STAMP]
            if records.bucket_of(stamp) < NUM_BUCKETS:
                begin = stamp >> STAMP_SHIFT
                bucket = records.bucket_of(stamp)
        elif note != UNKNOWN:
            traits = level_of_uses(uses_of_note(note)) | (((note >> AGE_SHIFT) & AGE_MASK) << AGE_TRAIT)
        if waits(traits):
            return NEVER
        last = records.model.likely_bucket(traits, bucket)
        return NEVER if last == NUM_BUCKETS else begin + records.end_of_bucket(last)
