"""`HandleTable`: distinct while live, recognised when stale, dense indices."""

import random

import pytest

from kv_cache_manager_v2.base.errors import LogicError
from kv_cache_manager_v2.device.handle_table import HandleTable, handle_index


def test_indices_are_dense_and_the_last_freed_comes_first() -> None:
    table = HandleTable("event")
    handles = [table.allocate() for _ in range(100)]
    assert [handle_index(handle) for handle in handles] == list(range(100))
    assert min(handles) > 0
    table.free(handles[30])
    table.free(handles[70])
    assert handle_index(table.allocate()) == 70
    assert handle_index(table.allocate()) == 30
    assert handle_index(table.allocate()) == 100
    assert table.num_live() == 101


def test_against_a_set_and_stale_handles_stay_dead() -> None:
    generator = random.Random(3)
    table = HandleTable("stream")
    live: list[int] = []
    dead: list[int] = []
    for _ in range(5000):
        if live and generator.random() < 0.5:
            handle = live.pop(generator.randrange(len(live)))
            table.free(handle)
            dead.append(handle)
        else:
            handle = table.allocate()
            assert handle not in live and handle not in dead[-200:]
            live.append(handle)
        assert table.num_live() == len(live)
    assert len(set(live)) == len(live) and not set(live) & set(dead)
    assert all(table.is_live(handle) for handle in live)
    for handle in [*dead[:50], *dead[-50:], 0, -1, 5, 1 << 40, (1 << 62) - 1]:
        assert not table.is_live(handle)
        with pytest.raises(LogicError):
            table.require_live(handle)
        with pytest.raises(LogicError):
            table.free(handle)
    assert table.num_live() == len(live)
