"""Windowed pages under LEARNED: they go with the page of their block that has no window, not before it."""

from random import Random

import pytest
from librt.vecs import vec
from mypy_extensions import i64
from unit.storage.learned_laws import check_records

from kv_cache_manager_v2 import EvictionPolicy
from kv_cache_manager_v2.storage.eviction.page_notes import BlockMates
from kv_cache_manager_v2.storage.eviction.learned import LearnedQueue, NUM_SENTINELS, make_queue
from kv_cache_manager_v2.storage.eviction.segment_records import Learning, SegmentRecords
from kv_cache_manager_v2.storage.page_rows import NO_PAGE, ONE_HOLD, PLACE, ROW_WORDS, PageRows, pack_place
from kv_cache_manager_v2.storage.victim_queue import NO_VICTIM, ContentKeys

FULL = 0
WINDOWED = 1


class Numbers(ContentKeys):
    def content_key(self, page: int) -> int:
        return page * 7919 + 1


class Blocks:
    """Blocks of two pages each, the first of a layer without a window."""

    def __init__(self, num_blocks: int, capacity: int) -> None:
        self.rows = PageRows(2, NUM_SENTINELS)
        self.first_pages = [int(self.rows.add_block()) for _ in range(num_blocks)]
        mates = BlockMates(self.rows, FULL, vec[i64]([WINDOWED]))
        self.records = SegmentRecords(Learning(), 2, mates)
        queue = make_queue(EvictionPolicy.LEARNED, self.rows, 0, Numbers(), capacity, self.records)
        assert isinstance(queue, LearnedQueue)
        self.queue = queue
        self.queued: set[int] = set()

    def place(self, page: int, holds: int = 0) -> None:
        self.rows.words[page * ROW_WORDS + PLACE] = pack_place(0, 0, 35) + holds * ONE_HOLD

    def push(self, pages: list[int], of_request: bool = True) -> None:
        for page in pages:
            self.place(page)
        if of_request:
            self.records.request.begin(len(pages), 0, 0)
        self.queue.push_run(vec[i64](pages), len(pages))
        self.records.request.end()
        self.queued.update(pages)

    def use(self, pages: list[int]) -> None:
        self.queue.hold_run(vec[i64](pages), len(pages))
        self.queue.use_held_run(vec[i64](pages), len(pages))
        for page in pages:
            self.place(page, 1)
        self.queued.difference_update(pages)

    def evict(self) -> int:
        page = int(self.queue.first())
        self.queue.evict(page)
        self.rows.words[page * ROW_WORDS + PLACE] = NO_PAGE
        self.queued.remove(page)
        return page

    def is_held(self, page: int) -> bool:
        return bool(self.rows.words[page * ROW_WORDS + PLACE] >= ONE_HOLD)

    def check(self) -> None:
        self.queue.check()
        check_records(self.records, self.rows)
        assert set(self.queue.collect()) == self.queued


def full_page_of(blocks: Blocks, page: int) -> int:
    return page - (page - blocks.first_pages[0]) % 2


def test_a_windowed_page_waits_while_its_block_is_in_use() -> None:
    blocks = Blocks(3, 100)
    first, second, third = blocks.first_pages
    blocks.place(first, 1)
    blocks.push([first + WINDOWED], of_request=False)
    blocks.push([third, second])
    # It was released before the others, and goes after them, as its block is still in use.
    assert [blocks.evict() for _ in range(3)] == [third, second, first + WINDOWED]


def test_a_windowed_page_goes_with_its_block_once_that_is_released() -> None:
    blocks = Blocks(3, 100)
    first, second, third = blocks.first_pages
    blocks.place(first, 1)
    blocks.push([first + WINDOWED], of_request=False)
    blocks.push([first])
    blocks.push([third, second])
    blocks.check()
    victims = [blocks.evict() for _ in range(4)]
    assert abs(victims.index(first) - victims.index(first + WINDOWED)) == 1


def test_what_a_match_leaves_unused_of_a_block_does_not_go_before_it() -> None:
    blocks = Blocks(3, 100)
    first, second, third = blocks.first_pages
    blocks.push([first, first + WINDOWED])
    # Another request needs the full page only.
    blocks.use([first])
    blocks.push([third, second])
    assert {blocks.evict(), blocks.evict()} == {second, third}
    blocks.check()
    blocks.push([first])
    assert {blocks.evict(), blocks.evict()} == {first, first + WINDOWED}
    assert blocks.queue.first() == NO_VICTIM


def test_a_page_that_is_deferred_takes_its_block_along() -> None:
    blocks = Blocks(2, 100)
    above, below = blocks.first_pages
    blocks.push([above, above + WINDOWED])
    blocks.push([below])
    # As the storage does, as the block below hangs under the other one.
    assert blocks.queue.first() == above
    blocks.queue.defer(above, below)
    assert [blocks.evict() for _ in range(3)][0] == below
    blocks.check()


@pytest.mark.parametrize("seed", range(6))
def test_no_windowed_page_goes_before_its_block(seed: int) -> None:
    random = Random(seed)
    blocks = Blocks(60, 80)
    num_early = 0
    for _ in range(400):
        kind = random.random()
        block = random.choice(blocks.first_pages)
        both = [block + FULL, block + WINDOWED]
        if kind < 0.3:
            path = random.sample(blocks.first_pages, 5)
            pages = [page for one in path for page in (one, one + WINDOWED) if page not in blocks.queued]
            blocks.push(pages)
        elif kind < 0.45 and both[0] not in blocks.queued and both[1] not in blocks.queued:
            blocks.place(both[0], 1)
            blocks.push(both[1:], of_request=False)
        elif kind < 0.6:
            used = [page for page in both[: random.randint(1, 2)] if page in blocks.queued]
            if used:
                blocks.use(used)
        else:
            while len(blocks.queued) > 30:
                others = {page for page in blocks.queued if not blocks.is_held(full_page_of(blocks, page))}
                victim = blocks.evict()
                full = full_page_of(blocks, victim)
                assert victim == full or full not in blocks.queued or not others
                num_early += victim != full and blocks.is_held(full) and len(others) > 0
        blocks.check()
    assert num_early == 0
