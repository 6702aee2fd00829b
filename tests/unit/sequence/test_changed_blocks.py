"""Readers of a page table learn of every entry that changed, each for itself."""

import random

from librt.vecs import vec

from kv_cache_manager_v2.sequence.changed_blocks import ChangedBlocks
from kv_cache_manager_v2.sequence.page_table import PageTable


def in_ranges(reader, ordinal):
    return reader.filled_begin <= ordinal < reader.filled_end or reader.erased_begin <= ordinal < reader.erased_end


def test_nothing_at_first_and_after_clear():
    table, reader = PageTable(), ChangedBlocks(vec[bool]([False]), 0)
    table.add_reader(reader)
    assert reader.is_empty
    table.resize(8)
    assert reader.is_empty, "a table that grows has bad entries until they are set"
    table.set(3, 7)
    assert (reader.filled_begin, reader.filled_end) == (3, 4) and not reader.is_empty
    table.set(1, -1)
    table.set(2, -1)
    assert (reader.erased_begin, reader.erased_end, reader.filled_begin) == (1, 3, 3)
    reader.clear()
    assert reader.is_empty
    reader.record_all()
    assert all(in_ranges(reader, ordinal) for ordinal in range(8))


def test_readers_come_and_go():
    rng = random.Random(5)
    table = PageTable()
    table.resize(20)
    seen = {}
    for _ in range(2000):
        action = rng.random()
        if action < 0.1 and len(seen) < 4:
            reader = ChangedBlocks(vec[bool]([False]), 0)
            table.add_reader(reader)
            seen[reader] = set()
        elif action < 0.2 and seen:
            reader = rng.choice(list(seen))
            table.remove_reader(reader)
            del seen[reader]
            before = reader.filled_end, reader.erased_end
            table.set(19, 3)
            assert (reader.filled_end, reader.erased_end) == before
            for changed in seen.values():
                changed.add(19)
        elif action < 0.4 and seen:
            reader = rng.choice(list(seen))
            reader.clear()
            seen[reader] = set()
        else:
            ordinal = rng.randrange(20)
            table.set(ordinal, rng.choice([-1, 5]))
            for changed in seen.values():
                changed.add(ordinal)
        for reader, changed in seen.items():
            assert all(in_ranges(reader, ordinal) for ordinal in changed)
            assert reader.is_empty == (not changed)


def test_cut_off_entries_are_noted():
    table, reader = PageTable(), ChangedBlocks(vec[bool]([False]), 0)
    table.resize(6)
    for ordinal in range(6):
        table.set(ordinal, ordinal)
    table.add_reader(reader)
    table.resize(4)
    assert in_ranges(reader, 4) and in_ranges(reader, 5) and not in_ranges(reader, 3)
