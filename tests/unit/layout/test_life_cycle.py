"""Life cycles as values, and what they refuse. (Stale and scratch blocks: `tests/property/layout/test_windows_against_brute_force.py`.)"""

import weakref

import pytest

from kv_cache_manager_v2.base.ranges import HalfOpenRange
from kv_cache_manager_v2.layout.life_cycle import AttnLifeCycle, LifeCycle, SsmLifeCycle
from kv_cache_manager_v2.layout.windows import compute_scratch_range


def test_life_cycles_are_values() -> None:
    assert AttnLifeCycle(128) == AttnLifeCycle(128, 0) == AttnLifeCycle.make(128, None, 32)
    assert AttnLifeCycle.make(64, 33, 32).num_sink_blocks == 2, "33 tokens reach into a second block"
    assert AttnLifeCycle(128) != AttnLifeCycle(129)
    assert AttnLifeCycle(128) != AttnLifeCycle(128, 1)
    assert AttnLifeCycle(128, 0, 1) != AttnLifeCycle(128) != AttnLifeCycle(128, part=2)
    assert AttnLifeCycle(part=1) == AttnLifeCycle(None, 0, 1)
    assert AttnLifeCycle() != AttnLifeCycle(1)
    both: list[LifeCycle] = [AttnLifeCycle(), SsmLifeCycle()]
    assert both[0] != both[1] and both[1] == SsmLifeCycle()
    assert len({AttnLifeCycle(128), AttnLifeCycle(128), SsmLifeCycle(), SsmLifeCycle()}) == 2
    others: list[object] = [128, None, "full"]
    assert not any(value == other or not value != other for value in both for other in others)
    assert AttnLifeCycle(64, 2).get_stale_range(319, 32) == AttnLifeCycle(64, 2).compute_stale_range(319, 32) == HalfOpenRange(2, 8)
    assert repr(AttnLifeCycle(128, 1, 3)) == "AttnLifeCycle(window_size=128, num_sink_blocks=1, part=3)"
    assert repr(AttnLifeCycle(128, 1)) == "AttnLifeCycle(window_size=128, num_sink_blocks=1)"


def test_only_attention_has_a_page_per_block() -> None:
    assert AttnLifeCycle().has_page_per_block and AttnLifeCycle(4).has_page_per_block
    assert not SsmLifeCycle().has_page_per_block
    assert SsmLifeCycle().window_size is None and SsmLifeCycle().num_sink_blocks == 0


def test_weak_references_are_refused() -> None:
    # A compiled class that accepted a weak reference would leave it dangling.
    values: list[object] = [AttnLifeCycle(4), SsmLifeCycle(), HalfOpenRange(0, 1)]
    for value in values:
        with pytest.raises(TypeError):
            weakref.ref(value)


def test_bad_values() -> None:
    for window, sinks in ((0, 0), (-1, 0), (4, -1), (None, 1)):
        with pytest.raises(ValueError):
            AttnLifeCycle(window, sinks)
    for history, capacity, tokens_per_block, rewind in ((5, 4, 32, 0), (-1, 4, 32, 0), (0, 4, 0, 0), (0, 4, 32, -1)):
        with pytest.raises(ValueError):
            compute_scratch_range(history, capacity, AttnLifeCycle(4), tokens_per_block, rewind)
    with pytest.raises(ValueError):
        AttnLifeCycle(4).compute_stale_range(-1, 32)
