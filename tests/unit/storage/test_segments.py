"""Segments of LEARNED: how requests become segments, what is remembered of those that are gone, and how many bytes that takes."""

from random import Random

import pytest
from librt.vecs import vec
from mypy_extensions import i64
from unit.storage.learned_laws import check_records, collect_segments

from kv_cache_manager_v2 import EvictionPolicy
from kv_cache_manager_v2.storage.eviction.learned import LearnedQueue, NUM_SENTINELS, make_queue
from kv_cache_manager_v2.storage.eviction.segment_records import GHOSTS_PER_SLOT, SPARE_SEGMENTS, Learning, SegmentRecords
from kv_cache_manager_v2.storage.eviction.segment_table import (
    COUNTS,
    KEY,
    LAST_LINE,
    LOW,
    NO_SEGMENT,
    PRIORITY_SHIFT,
    SEGMENT_WORDS,
    STAMP_SHIFT,
    STATE,
    TRAITS_MASK,
    SegmentTable,
)
from kv_cache_manager_v2.storage.page_rows import PLACE, ROW_WORDS, PageRows, pack_place
from kv_cache_manager_v2.storage.victim_queue import ContentKeys


class Numbers(ContentKeys):
    """By number: a page always holds the same."""

    def content_key(self, page: int) -> int:
        return page * 7919 + 1


class Level:
    """A queue and the pages in it, the root's first in each path."""

    def __init__(self, capacity: int, rows: PageRows | None = None, records: SegmentRecords | None = None, number: int = 0) -> None:
        self.rows = PageRows(1, 2 * NUM_SENTINELS) if rows is None else rows
        self.records = SegmentRecords(Learning(), 1) if records is None else records
        queue = make_queue(EvictionPolicy.LEARNED, self.rows, number * NUM_SENTINELS, Numbers(), capacity, self.records)
        assert isinstance(queue, LearnedQueue)
        self.queue = queue
        lines = self.records.lines[-1]
        assert lines is not None
        self.lines = lines

    def make(self, count: int, priority: int = 35) -> list[int]:
        pages = [self.rows.add_block() for _ in range(count)]
        for page in pages:
            self.rows.words[page * ROW_WORDS + PLACE] = pack_place(0, 0, priority)
        return pages

    def push(self, path: list[int], num_generated: int = 0) -> None:
        self.records.request.begin(len(path), num_generated, 10 * num_generated)
        self.queue.push_run(vec[i64](list(reversed(path))), len(path))
        self.records.request.end()

    def use(self, path: list[int]) -> None:
        self.queue.hold_run(vec[i64](path), len(path))
        self.queue.use_held_run(vec[i64](path), len(path))

    def evict(self, count: int) -> list[int]:
        victims: list[int] = []
        for _ in range(count):
            victims.append(int(self.queue.first()))
            self.queue.evict(victims[-1])
        return victims

    def segments(self) -> list[tuple[int, int]]:
        """The number of pages and the traits of each segment that has some, by age."""
        words = self.records.table.words
        found: list[tuple[int, int]] = []
        for segment in collect_segments(self.records.table):
            counts = words[segment * SEGMENT_WORDS + COUNTS] & LOW
            if counts > 0:
                found.append((int(counts), int(words[segment * SEGMENT_WORDS + STATE] & TRAITS_MASK)))
        return found


def uses(traits: int) -> int:
    return traits & 7


def is_last(traits: int) -> int:
    return traits >> 19 & 1


def path_kind(traits: int) -> int:
    return traits >> 24 & 3


def is_generated(traits: int) -> int:
    return traits >> 26 & 1


def test_the_last_block_of_a_prompt_is_a_segment_of_its_own() -> None:
    level = Level(100)
    level.push(level.make(10))
    assert [(count, is_last(traits)) for count, traits in level.segments()] == [(1, 1), (9, 0)]


def test_generated_blocks_are_a_segment_of_their_own() -> None:
    level = Level(100)
    level.push(level.make(10), num_generated=4)
    assert [(count, is_last(traits), is_generated(traits)) for count, traits in level.segments()] == [(1, 1, 1), (3, 0, 1), (6, 0, 0)]


def test_a_path_is_new_goes_on_or_branches() -> None:
    level = Level(100)
    path = level.make(10)
    level.push(path)
    assert {path_kind(traits) for _count, traits in level.segments()} == {0}
    # All of it, and more.
    level.use(path)
    longer = path + level.make(5)
    level.push(longer)
    assert [(count, uses(traits), path_kind(traits)) for count, traits in level.segments()] == [(1, 0, 1), (4, 0, 1), (10, 1, 1)]
    # Its first half, and something else.
    level.use(longer[:6])
    level.push(longer[:6] + level.make(3))
    branched = [(count, uses(traits), path_kind(traits)) for count, traits in level.segments()][-3:]
    assert branched == [(1, 0, 2), (2, 0, 2), (6, 2, 2)]
    check_records(level.records, level.rows)


@pytest.mark.parametrize("num_evicted", [3, 10])
def test_content_that_comes_back_is_known(num_evicted: int) -> None:
    """Whether all of it was gone or its end only, found by the two ends of what is gone."""
    level = Level(100)
    path = level.make(10)
    level.push(path)
    assert level.evict(num_evicted) == path[::-1][:num_evicted]
    check_records(level.records, level.rows)
    level.use(path[: 10 - num_evicted])
    level.push(path)
    # All of it is back, so it is no branch of what was there.
    assert {(uses(traits), path_kind(traits)) for _count, traits in level.segments()} == {(1, 1)}
    assert level.records.table.num_ghosts == 0
    check_records(level.records, level.rows)


def test_a_path_that_leaves_that_of_the_ghosts_is_known_in_part() -> None:
    level = Level(100)
    path = level.make(11)
    level.push(path)
    level.evict(11)
    # The last block and the ten above it were two segments. The path leaves the second one somewhere: half of it counts.
    level.push(path[:9] + level.make(6))
    known = [(count, uses(traits), path_kind(traits)) for count, traits in level.segments()]
    assert known == [(1, 0, 2), (9, 0, 2), (5, 1, 2)]
    check_records(level.records, level.rows)


def test_a_path_that_goes_on_behind_a_segment_of_ghosts_has_all_of_it_back() -> None:
    """Ten blocks of the prompt, without the last one, which was a segment of its own; then six new ones."""
    level = Level(100)
    path = level.make(11)
    level.push(path)
    level.evict(11)
    level.push(path[:10] + level.make(6))
    known = [(count, uses(traits), path_kind(traits)) for count, traits in level.segments()]
    assert known == [(1, 0, 1), (5, 0, 1), (10, 1, 1)]
    check_records(level.records, level.rows)


def test_a_page_that_moves_stays_as_old_as_it_was() -> None:
    rows = PageRows(1, 2 * NUM_SENTINELS)
    records = SegmentRecords(Learning(), 1)
    gpu, host = Level(40, rows, records, 0), Level(80, rows, records, 1)
    path = gpu.make(8)
    gpu.push(path)
    before = gpu.segments()
    clock = records.clock
    victims: list[int] = []
    for _ in range(8):
        page = int(gpu.queue.first())
        gpu.queue.take_victim(page)
        victims.append(page)
    assert gpu.queue.num_pages == 0
    for page in victims:
        host.queue.push(page)
    check_records(records, rows)
    assert host.queue.collect() == victims
    assert (host.segments(), records.clock) == (before, clock)
    assert records.table.num_ghosts == 0
    # What goes from there is gone.
    host.evict(8)
    assert records.table.num_ghosts == 8
    check_records(records, rows)


def test_a_segment_is_deferred_as_a_whole_until_its_value_is_computed_anew() -> None:
    """All pages of the older prompt have those of the younger one below them: its last block is one segment, the others another."""
    level = Level(2000)
    older, younger = level.make(300), level.make(10)
    level.push(older)
    level.push(younger)
    below = younger[0]
    for page in (older[-1], older[-2]):
        assert level.queue.first() == page
        level.queue.defer(page, below)
    assert [count for count, _traits in level.segments()] == [1, 299, 1, 9]
    for page in younger[:0:-1]:
        assert level.queue.first() == page
        level.queue.remove(page)
    # What was deferred and is so once more goes into the other's segment, page by page: here a test asks for it too late.
    level.queue.defer(older[-2], below)
    assert [count for count, _traits in level.segments()] == [1, 298, 2]
    for page in (below, older[-2], older[-1], *older[-3::-1]):
        assert level.queue.first() == page
        level.queue.remove(page)
    check_records(level.records, level.rows)


def test_raised_priorities_share_a_segment() -> None:
    level = Level(100)
    path = level.make(10)
    level.push(path)
    for page in path[:9]:
        level.rows.words[page * ROW_WORDS + PLACE] = pack_place(0, 0, 80)
        level.queue.requeue(page)
    assert sorted(count for count, _traits in level.segments()) == [1, 9]
    assert level.queue.first() == path[-1]
    check_records(level.records, level.rows)


@pytest.mark.parametrize("old", [35, 36])
def test_another_priority_is_exactly_that_one(old: int) -> None:
    """Raised to 80 it goes before all of 81, though these are older, and lowered to 20 before all of 21."""
    level = Level(100)
    for raised, other in ((80, 81), (20, 21)):
        level.push(level.make(4, other))
        moved = level.make(4, old)
        level.push(moved)
        for page in moved:
            level.rows.words[page * ROW_WORDS + PLACE] = pack_place(0, 0, raised)
            level.queue.requeue(page)
        check_records(level.records, level.rows)
    priorities = [int(level.rows.priority(page)) for page in level.evict(16)]
    assert priorities == [20] * 4 + [21] * 4 + [80] * 4 + [81] * 4


@pytest.mark.parametrize(("line", "expected"), [(100, [101, 0]), (101, [101, 102, 0]), (254, [254, 255, 0]), (255, [255, 0])])
def test_a_page_that_goes_after_one_of_another_level_has_its_line_or_the_next(line: int, expected: list[int]) -> None:
    """Which of two levels drops is decided by the lines, and by the age in one line: who is asked again goes one further. Where there is
    none, or that was not enough, the page leaves its segment, which has line 0 here, as it is gone."""
    rows = PageRows(1, 2 * NUM_SENTINELS)
    records = SegmentRecords(Learning(), 1)
    records.all_learn = True
    gpu, host = Level(40, rows, records, 0), Level(80, rows, records, 1)
    (page,), (below,) = gpu.make(1), host.make(1)
    gpu.push([page])
    host.push([below])
    words = records.table.words
    segment, segment_below = collect_segments(records.table)
    gpu.lines.move(segment, (35 << PRIORITY_SHIFT) | 100, False)
    host.lines.move(segment_below, (35 << PRIORITY_SHIFT) | line, False)
    lines = []
    while records.table.is_used(segment):
        gpu.queue.defer(page, below)
        lines.append(int(words[segment * SEGMENT_WORDS + KEY] & LAST_LINE) * records.table.is_used(segment))
        check_records(records, rows)
    assert lines == expected


def test_the_check_of_a_queue_has_the_checks_of_the_counts() -> None:
    level = Level(10)
    level.push(level.make(2))
    level.queue.check()
    level.records.table.num_pages = -1
    with pytest.raises(AssertionError, match="-1 pages in segments"):
        level.queue.check()


@pytest.mark.parametrize("most_blocks", [1, 3, 40])
def test_memory_is_bounded_by_the_slots(most_blocks: int) -> None:
    """At most 42 bytes a slot, whatever comes: 22 more than the 4 a page and 16 a slot that two kinds of content took."""
    capacity = 1000
    level = Level(capacity)
    random = Random(3)
    table = level.records.table
    paths: list[list[int]] = []
    for _ in range(6000 // most_blocks if most_blocks < 10 else 1000):
        if paths and random.random() < 0.3:
            path = random.choice(paths[-150:])
            cached = [page for page in path if level.rows.is_queued(page)]
            level.use(cached)
            missing = len(path) - len(cached)
        else:
            path = level.make(random.randint(1, most_blocks))
            paths.append(path)
            missing = len(path)
        num_queued = int(level.queue.num_pages)
        in_use = len(path) - missing
        if num_queued + in_use + missing > capacity:
            level.evict(num_queued + in_use + missing - capacity)
        level.push(path)
    level.queue.check()
    assert table.num_ghosts <= GHOSTS_PER_SLOT * capacity
    assert table.num_segments <= capacity * 7 // 16 + SPARE_SEGMENTS
    # Words of eight bytes each, links of four; the sentinel and the spare ones are of no slot.
    ghosts_bytes = 4 * len(table._links)
    segment_bytes = 8 * (len(table.words) - (1 + SPARE_SEGMENTS) * SEGMENT_WORDS)
    ghosts_of_spare = 4 * 2 * (1 + SPARE_SEGMENTS)
    page_notes = 4 * capacity
    assert segment_bytes + ghosts_bytes - ghosts_of_spare + page_notes <= 36 * capacity


@pytest.mark.parametrize("seed", range(4))
def test_pages_that_are_described_share_segments_as_in_their_process(seed: int) -> None:
    """Pages of one segment come one after another, at one time; each request's come later than those before."""
    random = Random(seed)
    level, later = Level(400), Level(400)
    for _ in range(20):
        level.push(level.make(random.randint(1, 12), random.choice((35, 60))), random.choice((0, 0, 2)))
    described = sorted(level.queue.describe_all(), key=lambda one: (one[0], one[2], level.rows.priority(one[1])))
    before = 0
    for used_at, page, description in described:
        (again,) = later.make(1, int(level.rows.priority(page)))
        later.queue.push_described(again, description, used_at - before)
        before = used_at
    assert sorted(later.segments()) == sorted(level.segments())


def test_pages_find_a_segment_where_there_are_as_many_as_there_may_be() -> None:
    """Single blocks of two priorities: each is a segment while there is room for it, and joins another one after that."""
    level = Level(2400)
    for number in range(2400):
        level.push(level.make(1, 35 + number % 2))
    assert level.queue.num_pages == 2400
    assert level.records.table.num_segments == 2400 * 7 // 16 + SPARE_SEGMENTS
    level.queue.check()
    victims = level.evict(2400)
    assert [level.rows.priority(page) for page in victims] == [35] * 1200 + [36] * 1200


@pytest.mark.parametrize("num_empty", [1, 3, 60])
def test_segments_without_pages_are_found_wherever_they_are(num_empty: int) -> None:
    """Room for a new segment comes from these: sixteen looks a call go round all 200 of them in thirteen calls."""
    table = SegmentTable()
    table.add_queue()
    segments = [table.add(table.newest, 0, number << STAMP_SHIFT) for number in range(200)]
    empty = set(Random(num_empty).sample(segments[20:], num_empty))
    for segment in segments:
        table.words[segment * SEGMENT_WORDS + COUNTS] = int(segment not in empty)
    while empty:
        found = [table.next_one(False) for _ in range(13)]
        assert set(found) - {NO_SEGMENT} <= empty
        one = next(segment for segment in found if segment != NO_SEGMENT)
        table.free_if_empty(one)
        empty.remove(one)
    assert [table.next_one(False) for _ in range(13)] == [NO_SEGMENT] * 13
