"""A page's row is two words: each number stands in its own bits, up to its greatest, and the locks where the links of others are."""

import itertools

import pytest

from kv_cache_manager_v2.config.manager_config import MAX_CACHE_TIERS
from kv_cache_manager_v2.events.published_run import unpack_level, unpack_priority
from kv_cache_manager_v2.storage.page_rows import (
    MOST_HOLDS,
    ONE_HOLD,
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
