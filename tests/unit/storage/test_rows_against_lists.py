"""Page rows and their columns are what plain lists hold, and what was reserved for them is not copied as they grow."""

from random import Random

import pytest
from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2.storage.page_rows import LINKS, NO_PAGE, NOT_QUEUED, ONE_HOLD, PLACE, ROW_WORDS, PageRows, WordColumn, pack_place

Number = tuple[int, int, int, int]
"""Of a page: slot, level, priority, holds."""


def shares_items(old: vec[i64], new: vec[i64]) -> bool:
    """Whether a change of one is seen in the other: nothing was copied in between."""
    before = old[0]
    new[0] = before ^ 1
    is_shared = bool(old[0] == before ^ 1)
    new[0] = before
    return is_shared


@pytest.mark.parametrize("num_life_cycles", [1, 2, 3, 4, 7, 8, 12])
def test_against_lists(num_life_cycles: int) -> None:
    """Random blocks, reserves, columns and pages; every entry and every answer after each step."""
    choices = Random(num_life_cycles)
    num_sentinels = choices.choice((1, 5, 101))
    rows = PageRows(num_life_cycles, num_sentinels)
    assert rows.block_shift == {1: 0, 2: 1, 4: 2, 8: 3}.get(num_life_cycles, -1)
    assert (len(rows.words), rows.num_rows, rows.num_blocks) == (2 * num_sentinels, num_sentinels, 0)
    pages: list[Number | None] = [None] * num_sentinels
    links: list[int] = [NOT_QUEUED] * num_sentinels
    columns: list[tuple[WordColumn, list[int], int, bool, int]] = []
    num_blocks = 0
    for step in range(120):
        kind = choices.random()
        if kind < 0.2:
            assert rows.add_block() == num_sentinels + num_blocks * num_life_cycles
            num_blocks += 1
        elif kind < 0.3:
            wanted = choices.randrange(num_blocks + 4)
            rows.grow(wanted)
            num_blocks = max(num_blocks, wanted)
        elif kind < 0.4:
            rows.reserve(choices.randrange(2 * num_blocks + 2))
        elif kind < 0.47:
            empty, is_per_block, num_before = choices.choice((-1, 0, 9)), choices.random() < 0.5, choices.choice((0, 1, 6))
            column = rows.add_words(empty, is_per_block, num_before)
            columns.append((column, [empty] * num_before, empty, is_per_block, num_before))
        elif rows.num_rows > num_sentinels:
            page = choices.randrange(num_sentinels, int(rows.num_rows))
            words = rows.words
            number = choices.randrange(99), choices.randrange(5), choices.randrange(101), choices.randrange(4)
            pages[page] = None if choices.random() < 0.3 else number
            links[page] = choices.choice((NOT_QUEUED, 0, 3 << 32 | 2, NOT_QUEUED - 1, NOT_QUEUED - 3))
            words[page * ROW_WORDS + PLACE] = NO_PAGE if pages[page] is None else pack_place(*number[:3]) + number[3] * ONE_HOLD
            words[page * ROW_WORDS + LINKS] = links[page]
            for column, values, _empty, is_per_block, num_before in columns:
                at = choices.randrange(len(values)) if values else -1
                if at >= 0:
                    values[at] = column.words[at] = step
        num_rows = num_sentinels + num_blocks * num_life_cycles
        pages += [None] * (num_rows - len(pages))
        links += [NOT_QUEUED] * (num_rows - len(links))
        assert (rows.num_rows, rows.num_blocks, len(rows.words)) == (num_rows, num_blocks, 2 * num_rows)
        for page, number_there in enumerate(pages):
            assert rows.has_page(page) == (number_there is not None)
            if number_there is not None:
                assert (rows.slot(page), rows.level(page), rows.priority(page), rows.num_holds(page)) == number_there
            assert (rows.is_queued(page), rows.num_locks(page)) == (links[page] >= 0, max(NOT_QUEUED - links[page], 0))
            if page >= num_sentinels:
                assert rows.block_number(page) == (page - num_sentinels) // num_life_cycles
        for column, values, empty, is_per_block, num_before in columns:
            values += [empty] * (num_before + (num_blocks if is_per_block else num_rows) - len(values))
            assert list(column.words) == values, step


@pytest.mark.parametrize("is_per_block", [False, True])
@pytest.mark.parametrize("is_added_later", [False, True])
def test_what_was_reserved_is_not_copied(is_per_block: bool, is_added_later: bool) -> None:
    """As many rows as were reserved are added in place; with one more, all are copied."""
    rows = PageRows(3, 5)
    column = WordColumn(7, is_per_block, 2)
    if not is_added_later:
        rows.add_column(column)
    rows.reserve(40)
    if is_added_later:
        rows.add_column(column)
    rows.grow(1)
    words, entries = rows.words, column.words
    rows.reserve(40)
    rows.reserve(39)
    assert shares_items(words, rows.words)
    assert shares_items(entries, column.words)
    rows.grow(40)
    assert shares_items(words, rows.words)
    assert shares_items(entries, column.words)
    rows.grow(41)
    assert not shares_items(words, rows.words)
    assert not shares_items(entries, column.words)


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_the_first_reserve_may_be_of_one_block(num_blocks: int) -> None:
    rows = PageRows(3, 5)
    rows.reserve(num_blocks)
    words = rows.words
    rows.grow(num_blocks)
    assert shares_items(words, rows.words)


def test_without_a_reserve_rows_are_copied_as_they_grow() -> None:
    """So the test above sees what reserving does. A later, larger reserve is taken too."""
    rows = PageRows(3, 5)
    column = rows.add_words(7)
    words, entries = rows.words, column.words
    rows.grow(40)
    assert not shares_items(words, rows.words)
    assert not shares_items(entries, column.words)
    for num_blocks in (1, 41, 80):
        rows.reserve(num_blocks)
    words, entries = rows.words, column.words
    rows.grow(80)
    assert shares_items(words, rows.words)
    assert shares_items(entries, column.words)
