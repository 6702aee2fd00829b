"""`IndexChanges` against whole arrays compared, and what it keeps while no user looks."""

from random import Random

import pytest
from librt.vecs import vec
from mypy_extensions import i32

from kv_cache_manager_v2.base.ranges import HalfOpenRange
from kv_cache_manager_v2.sequence.page_table import PageTable


@pytest.mark.parametrize("seed", range(30))
def test_ranges_are_those_of_arrays_compared(seed: int) -> None:
    random = Random(seed)
    table = PageTable()
    known: list[int] | None = None
    for _ in range(200):
        draw = random.random()
        if draw < 0.2:
            table.resize(random.choice((0, table.num_blocks, table.num_blocks + 1, random.randrange(40))))
        elif draw < 0.3:
            begin = random.randrange(table.num_blocks + 1)
            table.set_bad_run(begin, random.randrange(begin, table.num_blocks + 1))
        elif draw < 0.35:
            table.clear()
        elif draw < 0.85 and table.num_blocks > 0:
            table.set(random.randrange(table.num_blocks), random.randrange(3))
        else:
            entries = table.view().tolist()
            ranges = table.take_changes()
            expected = [at for at, entry in enumerate(entries) if known is None or at >= len(known) or known[at] != entry]
            assert [at for changed in ranges for at in changed] == expected
            assert all(before.end < after.beg for before, after in zip(ranges, ranges[1:], strict=False))
            known = entries


def test_an_index_that_came_back_is_no_change() -> None:
    table = PageTable()
    table.resize(4)
    table.set(1, 7)
    assert table.take_changes() == [HalfOpenRange(0, 4)]
    table.set(1, 8)
    table.set(1, 7)
    assert table.take_changes() == []
    table.resize(0)
    table.resize(4)
    table.set(1, 7)
    assert table.take_changes() == []
    table.resize(1)
    assert table.take_changes() == []
    table.resize(2)
    assert table.take_changes() == [HalfOpenRange(1, 2)]


def test_without_a_look_no_more_is_kept_than_blocks() -> None:
    table = PageTable()
    table.resize(100)
    table.take_changes()
    for turn in range(3000):
        table.set((turn * 37) % 100, turn)
    exact = table._exact
    assert exact is not None and len(exact._begins) <= 2 * 50 + 32


def test_only_what_was_set_is_compared() -> None:
    """Entries that are changed behind the table's back are not found: it does not look at them."""
    table = PageTable()
    table.resize(1000)
    table.take_changes()
    entries: vec[i32] = table.entries
    entries[500] = i32(3)
    table.set(7, 1)
    assert table.take_changes() == [HalfOpenRange(7, 8)]
