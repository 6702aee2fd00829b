"""The table of segments beside a Python list in the order of age: what is found, and by how many looks."""

from random import Random

import pytest
from unit.storage.learned_laws import collect_segments

from kv_cache_manager_v2.storage.eviction.hazard_model import NUM_BUCKETS
from kv_cache_manager_v2.storage.eviction.segment_table import (
    BUCKET_SHIFT,
    COUNTS,
    KEY,
    NO_SEGMENT,
    ONE_GHOST,
    PRIORITY_SHIFT,
    QUEUE_SHIFT,
    SEGMENT_WORDS,
    STAMP,
    STATE,
    SegmentTable,
    bucket_of_state,
)
from kv_cache_manager_v2.storage.eviction.segment_traits import PATH_SHIFT, WAITING

NUM_QUEUES = 2
MOST_PASSED, MOST_LOOKS, MOST_COMPARED = 16, 64, 32
ORDER, PLACE, TOP, BOTTOM = 4, 5, 6, 7


class PlainTable:
    """``order``: all segments, the oldest first. Each pointer is a segment, or NO_SEGMENT behind the newest."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.free: list[int] = []
        self.made = 0
        self.queue: dict[int, int] = {}
        self.stamp: dict[int, int] = {}
        self.key: dict[int, int] = {}
        self.num_pages: dict[int, int] = {}
        self.waits: dict[int, bool] = {}
        self.passed: dict[int, int] = {}
        self.marks = [NO_SEGMENT] * (NUM_BUCKETS + 1)
        self.seen = {True: NO_SEGMENT, False: NO_SEGMENT}
        self.oldest = [NO_SEGMENT] * NUM_QUEUES
        self.looked = [NO_SEGMENT] * NUM_QUEUES
        self.chosen = [NO_SEGMENT] * NUM_QUEUES

    def newer(self, segment: int) -> int:
        at = self.order.index(segment) + 1 if segment else 0
        return self.order[at] if at < len(self.order) else NO_SEGMENT

    def older(self, segment: int) -> int:
        at = self.order.index(segment)
        return self.order[at - 1] if at else NO_SEGMENT

    def add(self, older: int, queue: int, stamp: int, waits: bool, passed: int) -> int:
        if self.free:
            segment = self.free.pop()
        else:
            self.made += 1
            segment = self.made
        self.order.insert(self.order.index(older) + 1 if older else 0, segment)
        self.queue[segment], self.stamp[segment], self.waits[segment] = queue, stamp, waits
        self.key[segment] = self.num_pages[segment] = 0
        self.passed[segment] = passed
        if self.order[-1] == segment:
            self.marks = [0] + [segment if edge > passed and not mark else mark for edge, mark in enumerate(self.marks)][1:]
        return segment

    def remove(self, segment: int) -> None:
        newer = self.newer(segment)

        def moved(pointer: int) -> int:
            return newer if pointer == segment else pointer

        self.marks = [moved(mark) for mark in self.marks]
        self.seen = {which: self.older(segment) if seen == segment else seen for which, seen in self.seen.items()}
        self.oldest = [moved(oldest) for oldest in self.oldest]
        self.looked = [moved(looked) for looked in self.looked]
        self.chosen = [NO_SEGMENT if chosen == segment else chosen for chosen in self.chosen]
        self.order.remove(segment)
        self.free.append(segment)

    def next_one(self, has_pages: bool) -> int:
        for _ in range(MOST_PASSED):
            segment = self.seen[has_pages] = self.newer(self.seen[has_pages])
            if segment and bool(self.num_pages[segment]) == has_pages:
                return segment
        return NO_SEGMENT

    def note_queued(self, segment: int) -> None:
        queue = self.queue[segment]
        oldest, stamp = self.oldest[queue] or segment, self.stamp[segment]
        if self.stamp[oldest] < stamp:
            return
        self.oldest[queue] = segment

    def is_droppable(self, segment: int, queue: int) -> bool:
        return bool(segment and self.num_pages[segment]) and self.queue[segment] == queue and not self.waits[segment]

    def passed_empty(self, queue: int) -> int:
        segment = self.oldest[queue]
        for _ in range(MOST_LOOKS):
            if not segment or self.is_droppable(segment, queue):
                break
            segment = self.newer(segment)
        return segment

    def least_of_oldest(self, queue: int, limit: int) -> int:
        chosen = self.chosen[queue]
        if chosen and self.stamp[chosen] < limit and self.is_droppable(chosen, queue):
            return chosen
        best = oldest = self.passed_empty(queue)
        if not self.is_droppable(oldest, queue):
            return NO_SEGMENT
        self.oldest[queue] = oldest
        if self.stamp[oldest] >= limit:
            return oldest
        segment = self.looked[queue]
        for _ in range(MOST_COMPARED):
            if not segment or self.stamp[segment] >= limit:
                segment = oldest
            if self.key[segment] < self.key[best] and self.is_droppable(segment, queue):
                best = segment
            segment = self.newer(segment)
        self.looked[queue], self.chosen[queue] = segment, best
        return best


@pytest.mark.parametrize("seed", range(12))
def test_against_lists(seed: int) -> None:
    """Few segments, or more than any number of looks; few or most of them have pages."""
    choices = Random(seed)
    table, plain = SegmentTable(), PlainTable()
    assert (table.num_segments, table.num_ghosts, collect_segments(table)) == (0, 0, [])
    for _ in range(NUM_QUEUES):
        table.add_queue()
    many = choices.choice((3, 12, 40, 150))
    share = choices.choice((0.03, 0.5, 0.95))
    ghosts = 0
    clock = 1

    def set_pages(segment: int, num_pages: int) -> None:
        had_none = not plain.num_pages[segment]
        plain.num_pages[segment] = num_pages
        table.words[segment * SEGMENT_WORDS + COUNTS] = num_pages + ghosts * ONE_GHOST
        if had_none and num_pages:
            table.note_queued(segment)
            plain.note_queued(segment)

    for step in range(1200):
        kind = choices.random()
        queue = choices.randrange(NUM_QUEUES)
        if len(plain.order) < choices.randrange(many + 2):
            clock += choices.choice((0, 0, 0, 1, 5)) if many < 100 else choices.choice((0,) * 60 + (1,))
            newest = plain.order[-1] if plain.order else NO_SEGMENT
            assert table.newest == newest
            older = choices.choice(plain.order) if plain.order and choices.random() < 0.2 else newest
            stamp = clock if older == newest else plain.stamp[older]
            waits, passed = choices.random() < 0.1, choices.randrange(NUM_BUCKETS + 1) if choices.random() < 0.2 else 0
            state = (WAITING if waits else 1) << PATH_SHIFT | passed << BUCKET_SHIFT | queue << QUEUE_SHIFT
            segment = int(table.add(older, state, stamp))
            assert segment == plain.add(older, queue, stamp, waits, passed)
            at = segment * SEGMENT_WORDS
            words = [int(table.words[at + word]) for word in (KEY, STATE, STAMP, COUNTS, PLACE, TOP, BOTTOM)]
            assert words == [0, state, stamp, 0, 0, 0, 0]
            plain.key[segment] = choices.randrange(4) << PRIORITY_SHIFT | choices.randrange(5)
            table.words[at + KEY] = plain.key[segment]
            table.words[at + PLACE] = table.words[at + TOP] = table.words[at + BOTTOM] = 77
            if choices.random() < share:
                ghosts = choices.choice((0, 2))
                set_pages(segment, choices.randrange(1, 4))
        elif kind < 0.25 and plain.order:
            segment = choices.choice(plain.order[: choices.choice((1, 5, many))])
            if plain.num_pages[segment]:
                ghosts = choices.choice((0, 2))
                set_pages(segment, plain.num_pages[segment] - 1)
            elif choices.random() < share:
                set_pages(segment, 2)
        elif kind < 0.4:
            segment = int(table.next_one(False))
            assert segment == plain.next_one(False)
            if segment and choices.random() < 0.7:
                table.words[segment * SEGMENT_WORDS + COUNTS] = 0
                table.free_if_empty(segment)
                plain.remove(segment)
        elif kind < 0.45 and plain.order and not plain.num_pages[segment := choices.choice(plain.order)]:
            table.words[segment * SEGMENT_WORDS + COUNTS] = 0
            table.free_if_empty(segment)
            plain.remove(segment)
        elif kind < 0.47:
            # One that has pages or ghosts stays, and so does the sentinel.
            table.free_if_empty(choices.choice([NO_SEGMENT, *[one for one in plain.order if table.words[one * SEGMENT_WORDS + COUNTS]]]))
        elif kind < 0.6:
            assert table.next_one(True) == plain.next_one(True)
        elif kind < 0.65:
            table.pass_empty()
            plain.oldest = [plain.passed_empty(each) for each in range(NUM_QUEUES)]
            plain.chosen = [NO_SEGMENT] * NUM_QUEUES
        elif plain.order:
            limit = choices.choice((plain.stamp[choices.choice(plain.order)], clock + 1))
            assert table.least_of_oldest(queue, limit) == plain.least_of_oldest(queue, limit), step
        assert (table.num_segments, collect_segments(table)) == (len(plain.order), plain.order)
        assert list(table.marks) == plain.marks
        assert table.newest == (plain.order[-1] if plain.order else NO_SEGMENT)
        for segment in range(plain.made + 2):
            is_used = segment in plain.order
            assert table.is_used(segment) == is_used
            if is_used:
                assert bucket_of_state(table.words[segment * SEGMENT_WORDS + STATE]) == plain.passed[segment]
                assert (table.newer(segment), table.queue_of(segment)) == (plain.newer(segment), plain.queue[segment])
            priority = plain.key[segment] >> PRIORITY_SHIFT if is_used else 0
            expected = is_used and plain.num_pages[segment] > 0 and plain.queue[segment] == queue
            assert table.has_pages_of(segment, queue, priority) == expected
            assert not table.has_pages_of(segment, queue, priority + 1)


def make_segments(table: SegmentTable, queue: int, count: int) -> list[int]:
    return [int(table.add(table.newest, 1 << PATH_SHIFT | queue << QUEUE_SHIFT, 7)) for _ in range(count)]


@pytest.mark.parametrize("queue", range(NUM_QUEUES))
@pytest.mark.parametrize(("num_empty", "num_passes"), [(64, 0), (65, 1), (128, 1), (129, 2)])
def test_each_look_for_the_oldest_passes_so_many_empty_ones(queue: int, num_empty: int, num_passes: int) -> None:
    """A look goes on from the latest one that `pass_empty` made: one that found none leaves nothing behind."""
    table = SegmentTable()
    for _ in range(NUM_QUEUES):
        table.add_queue()
    segments = make_segments(table, queue, num_empty + 1)
    for number in (0, num_empty):
        table.words[segments[number] * SEGMENT_WORDS + COUNTS] = 1
    table.note_queued(segments[0])
    table.words[segments[0] * SEGMENT_WORDS + COUNTS] = 0
    for _ in range(num_passes):
        assert [table.least_of_oldest(queue, 0) for _ in range(2)] == [NO_SEGMENT] * 2
        table.pass_empty()
    assert table.least_of_oldest(queue, 0) == segments[-1]


@pytest.mark.parametrize("num_segments", [1, 2, 70])
def test_what_was_reserved_is_not_copied(num_segments: int) -> None:
    """The sentinel has words, too. A smaller reserve, and the same one, change nothing."""
    table = SegmentTable()
    table.add_queue()
    table.reserve(num_segments)
    words = table.words
    table.reserve(num_segments)
    table.reserve(num_segments // 2)
    make_segments(table, 0, num_segments)
    words[KEY] = 5
    assert table.words[KEY] == 5
    make_segments(table, 0, 1)
    words[KEY] = 6
    assert table.words[KEY] == 5
