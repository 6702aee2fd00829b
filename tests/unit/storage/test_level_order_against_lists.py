"""The order of value over levels, asked of segments that a test wrote, beside lists of pages and the words of the docstrings."""

from dataclasses import dataclass
from math import prod
from random import Random

import pytest

from kv_cache_manager_v2.storage.eviction.hazard_model import NUM_BUCKETS
from kv_cache_manager_v2.storage.eviction.segment_records import Learning, LevelOrder, NEVER, SegmentRecords
from kv_cache_manager_v2.storage.eviction.page_notes import FIRST_BIT, in_segment, in_use
from kv_cache_manager_v2.storage.eviction.segment_table import (
    BUCKET_SHIFT,
    COUNTS,
    HIGH_SHIFT,
    KEY,
    ONE_GHOST,
    PRIORITY_SHIFT,
    SEGMENT_WORDS,
    STAMP,
    STAMP_SHIFT,
    STATE,
)
from kv_cache_manager_v2.storage.eviction.segment_table import PLACE as FIRST_OF_SEGMENT
from kv_cache_manager_v2.storage.eviction.segment_traits import AGE_SHIFT, PATH_SHIFT, WAITING, level_of_uses
from kv_cache_manager_v2.storage.page_rows import LINKS, PLACE, ROW_WORDS, PageRows, pack_place

CAPACITY = 20_000
NUM_SENTINELS = 6


@dataclass(frozen=True)
class Segment:
    key: int
    traits: int
    bucket: int
    stamp: int
    pages: list[int]


class Levels:
    """Segments of two levels, and one line of evict-first pages at each of two sentinels: these have no segment."""

    def __init__(self, choices: Random) -> None:
        self.rows = PageRows(2, NUM_SENTINELS)
        self.records = SegmentRecords(Learning(), 2)
        self.records.notes.join(self.rows)
        for number in range(2):
            self.records.add_level(None)
            self.records.all_learn = True
            self.records.set_capacity(number, CAPACITY // 2)
        self.records.note_pushed(choices.randrange(2 * CAPACITY, 90 * CAPACITY))
        self.order = LevelOrder(self.rows, self.records)
        self.segment_of: dict[int, Segment | None] = {}
        self.lines: list[list[int]] = []
        self.priorities: dict[int, int] = {}
        keys = [choices.randrange(1 << 48) for _ in range(3)]
        stamps = [choices.randrange(self.records.clock + 1) << STAMP_SHIFT | part for part in (0, 1, 7)]
        stamps += [self.records.clock - choices.choice((0, 1, 50, 900)) << STAMP_SHIFT | 3 for _ in range(3)]
        for sentinel in (0, NUM_SENTINELS - 1):
            pages = self.make_pages(choices.randrange(1, 5), choices.choice((0, 35)))
            choices.shuffle(pages)
            self.link([sentinel, *pages])
            for page in pages:
                self.records.notes.set(page, in_use(1, 2, False) | FIRST_BIT)
                self.segment_of[page] = None
        for _ in range(12):
            self._add_segment(choices, choices.choice(keys), choices.choice(stamps))

    def make_pages(self, count: int, priority: int) -> list[int]:
        pages = [int(self.rows.add_block()) for _ in range(count)]
        for page in pages:
            self.rows.words[page * ROW_WORDS + PLACE] = pack_place(7, 0, priority)
            self.priorities[page] = priority
        return pages

    def link(self, nodes: list[int]) -> None:
        for at, node in enumerate(nodes):
            self.rows.words[node * ROW_WORDS + LINKS] = nodes[(at + 1) % len(nodes)] | nodes[at - 1] << 32
        self.lines.append([node for node in nodes if node >= NUM_SENTINELS])

    def _add_segment(self, choices: Random, value: int, stamp: int) -> None:
        priority = choices.choice((0, 35, 35, 35, 100))
        pages = self.make_pages(choices.randrange(1, 6), priority)
        path = choices.choice((0, 1, 2, WAITING)) if choices.random() < 0.4 else 0
        traits = choices.randrange(7) | choices.randrange(16) << AGE_SHIFT | path << PATH_SHIFT
        bucket = choices.choice((0, 1, 5, NUM_BUCKETS - 1, NUM_BUCKETS))
        segment = Segment(priority << PRIORITY_SHIFT | value, traits, bucket, stamp, pages)
        number = int(self.records.add_segment(choices.randrange(2), traits, priority, 0))
        words, at = self.records.table.words, number * SEGMENT_WORDS
        words[at + KEY] = segment.key
        words[at + STATE] = traits | bucket << BUCKET_SHIFT
        words[at + STAMP] = stamp
        words[at + COUNTS] = len(pages) + choices.choice((0, 3)) * ONE_GHOST
        words[at + FIRST_OF_SEGMENT] = pages[0] | choices.choice((0, 9)) << HIGH_SHIFT
        self.link(pages)
        for page in pages:
            self.records.notes.set(page, in_segment(number, choices.choice((1, 2, 3))))
            self.segment_of[page] = segment

    def ranks_under(self, page: int, other: int) -> bool:
        if self.priorities[page] != self.priorities[other]:
            return self.priorities[page] < self.priorities[other]
        one, two = self.segment_of[page], self.segment_of[other]
        if one is None or two is None:
            return one is None and two is not None
        by_value = self.records.values_decide(one.stamp) and self.records.values_decide(two.stamp) and one.key != two.key
        return one.key < two.key if by_value else one.stamp < two.stamp

    def expect_return(self, traits: int, stamp: int | None) -> int:
        """``stamp``: None of a page in use."""
        begin, bucket = int(self.records.clock), 0
        if stamp is not None and self.records.bucket_of(stamp) < NUM_BUCKETS:
            begin, bucket = stamp >> STAMP_SHIFT, int(self.records.bucket_of(stamp))
        last = self.records.model.likely_bucket(traits, bucket)
        if traits >> PATH_SHIFT & 3 == WAITING or last == NUM_BUCKETS:
            return NEVER
        return begin + int(self.records.edges[last + 1])


def teach(records: SegmentRecords, choices: Random) -> None:
    for _ in range(400):
        traits = choices.randrange(7) | choices.randrange(16) << AGE_SHIFT
        records.model.learn(traits, choices.randrange(NUM_BUCKETS), float(choices.random() < 0.5), choices.choice((1, 4)))


@pytest.mark.parametrize("seed", range(12))
def test_against_lists(seed: int) -> None:
    choices = Random(seed)
    levels = Levels(choices)
    records, order = levels.records, levels.order
    if seed % 4:
        teach(records, choices)
    # Recency rules in half of the histories, and then would keep about half of the segments.
    records.shadow.rules = seed % 2 == 0
    records.shadow.oldest = records.part_of(choices.choice([segment.stamp for segment in levels.segment_of.values() if segment]))
    assert order.clock == records.clock
    pages = list(levels.segment_of)
    for page in pages:
        for other in pages:
            assert order.ranks_under(page, other) == levels.ranks_under(page, other), (page, other)
    for line in levels.lines:
        for page in line:
            segment = levels.segment_of[page]
            if segment is None:
                assert order.chance_of_reuse(page) == 0.0
                continue
            remaining = range(segment.bucket, NUM_BUCKETS)
            assert order.chance_of_reuse(page) == 1.0 - prod([1.0 - records.model.chance(segment.traits, each) for each in remaining])
            assert order.expect_return(page) == levels.expect_return(segment.traits, segment.stamp)
    for uses, age, is_branch in [(1, 0, False), (2, 3, True), (33, 15, False), (9, 1, True), (5, 0, False)]:
        (page,) = levels.make_pages(1, 35)
        assert order.expect_return(page) == levels.expect_return(0, None)
        records.notes.set(page, in_use(uses, age, is_branch))
        assert order.expect_return(page) == levels.expect_return(int(level_of_uses(uses)) | age << AGE_SHIFT, None)


def test_a_page_of_which_nothing_is_known_was_not_used_before() -> None:
    """What was used once comes back at once, what was used twice late."""
    levels = Levels(Random(0))
    model = levels.records.model
    for _ in range(300):
        for bucket in range(NUM_BUCKETS):
            model.learn(0, bucket, float(bucket == 0), 4)
            model.learn(1, bucket, float(bucket == NUM_BUCKETS - 1), 4)
    assert model.likely_bucket(0, 0) < model.likely_bucket(1, 0)
    (page,) = levels.make_pages(1, 35)
    assert levels.order.expect_return(page) == levels.expect_return(0, None) != levels.expect_return(1, None)
