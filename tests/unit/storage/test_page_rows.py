"""A page's row is two words: each number stands in its own bits, up to its greatest, and the locks where the links of others are."""

import itertools

import pytest

from kv_cache_manager_v2.config.manager_config import MAX_CACHE_TIERS
from kv_cache_manager_v2.events.published_run import unpack_level, unpack_priority
from kv_cache_manager_v2.storage.eviction_queue import EvictionQueue
from kv_cache_manager_v2.storage.page_rows import (
    LINKS,
    LOCKED_ONCE,
    MOST_HOLDS,
    NOT_QUEUED,
    ONE_HOLD,
    ONE_LOCK,
    PLACE,
    ROW_WORDS,
    PageRows,
    add_priority,
    moved_place,
    pack_place,
    level_and_priority_of,
)
from kv_cache_manager_v2.storage.victim_queue import NUM_PRIORITIES

MOST_SLOT = 2**31 - 1  # a page index is an int32
MOST_LEVEL = MAX_CACHE_TIERS - 1
MOST_PRIORITY = NUM_PRIORITIES - 1


def rows_of(num_life_cycles: int) -> tuple[PageRows, int]:
    """Rows of one queue and one block; the first page id of the block."""
    rows = PageRows(num_life_cycles, NUM_PRIORITIES)
    return rows, int(rows.add_block())


def test_a_page_is_two_words() -> None:
    rows, _ = rows_of(3)
    before = len(rows.words)
    rows.add_block()
    assert len(rows.words) == before + 3 * 2


@pytest.mark.parametrize(
    ("slot", "level", "priority", "holds"),
    list(itertools.product((0, 1, MOST_SLOT), (0, 1, MOST_LEVEL), (0, 1, MOST_PRIORITY), (0, 1, MOST_HOLDS))),
)
def test_each_number_stands_for_itself(slot: int, level: int, priority: int, holds: int) -> None:
    rows, page = rows_of(1)
    at = page * ROW_WORDS
    rows.words[at + PLACE] = pack_place(slot, level, priority) + holds * ONE_HOLD
    assert rows.has_page(page)
    assert (rows.slot(page), rows.level(page), rows.priority(page), rows.num_holds(page)) == (slot, level, priority, holds)
    level_and_priority = level_and_priority_of(rows.words[at + PLACE])
    assert (unpack_level(level_and_priority), unpack_priority(level_and_priority)) == (level, priority)
    other_level, other_slot = MOST_LEVEL - level, MOST_SLOT - slot
    rows.words[at + PLACE] = moved_place(rows.words[at + PLACE], other_level, other_slot)
    assert (rows.slot(page), rows.level(page), rows.priority(page)) == (other_slot, other_level, priority)
    assert rows.num_holds(page) == holds
    rows.words[at + PLACE] = add_priority(rows.words[at + PLACE], 35 - priority)
    assert (rows.slot(page), rows.level(page), rows.priority(page)) == (other_slot, other_level, 35)
    assert rows.num_holds(page) == holds


def test_a_row_without_a_page_says_so() -> None:
    rows, page = rows_of(2)
    for empty in (page, page + 1):
        assert not rows.has_page(empty)
        assert not rows.is_queued(empty)
        assert rows.num_locks(empty) == 0
        assert level_and_priority_of(rows.words[empty * ROW_WORDS + PLACE]) < 0


def test_locks_are_counted_where_links_would_be() -> None:
    rows, page = rows_of(1)
    at = page * ROW_WORDS
    rows.words[at + PLACE] = pack_place(5, 0, 35) + 3 * ONE_HOLD
    rows.words[at + LINKS] = LOCKED_ONCE
    for num_locks in (1, 2, 3):
        assert rows.num_locks(page) == num_locks
        assert not rows.is_queued(page)
        rows.words[at + LINKS] += ONE_LOCK
    rows.words[at + LINKS] = NOT_QUEUED
    assert rows.num_locks(page) == 0


def test_a_queued_page_has_no_locks_whatever_its_links_are() -> None:
    """The least and the greatest links: next to the first sentinel, and behind a page with a large id."""
    rows, page = rows_of(4)
    queue = EvictionQueue(rows, 0)
    for each in range(page, page + 4):
        rows.words[each * ROW_WORDS + PLACE] = pack_place(each, 0, 0)
        queue.push(each)
    for each in range(page, page + 4):
        assert rows.is_queued(each)
        assert rows.num_locks(each) == 0
    rows.words[page * ROW_WORDS + LINKS] = MOST_SLOT | (MOST_SLOT << 32)
    assert rows.is_queued(page)
    assert rows.num_locks(page) == 0


def test_rows_never_become_fewer() -> None:
    """Blocks are made ahead of their use, so there may be more than a caller needs."""
    rows = PageRows(2, NUM_PRIORITIES)
    rows.grow(5)
    before = rows.num_rows
    rows.grow(3)
    assert (rows.num_blocks, rows.num_rows) == (5, before)
    rows.grow(6)
    assert (rows.num_blocks, rows.num_rows) == (6, before + 2)
