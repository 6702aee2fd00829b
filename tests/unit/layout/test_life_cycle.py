"""Worked numbers of stale and scratch blocks; the arithmetic beside each of them."""

import weakref

import pytest

from kv_cache_manager_v2.base.ranges import HalfOpenRange
from kv_cache_manager_v2.layout.life_cycle import AttnLifeCycle, LifeCycle, SsmLifeCycle
from kv_cache_manager_v2.layout.windows import compute_scratch_range


def scratch(history: int, capacity: int, window: int | None, tokens_per_block: int = 32, rewind: int = 0) -> list[int]:
    life_cycle = AttnLifeCycle(window)
    return list(compute_scratch_range(history, capacity, life_cycle, tokens_per_block, rewind))


def test_window_of_1000_with_one_token_per_block() -> None:
    # The next token of 2000 sits at 2000 and reads 2000 - 999 = 1001 .. 2000: blocks 0 .. 1000 are gone.
    assert AttnLifeCycle(1000).compute_stale_range(2000, 1) == HalfOpenRange(0, 1001)
    assert AttnLifeCycle(1000).compute_stale_range(4000, 1) == HalfOpenRange(0, 3001)


def test_a_window_that_is_not_full_yet_drops_nothing() -> None:
    # At history 127 the next token reads 0 .. 127: 128 tokens. One more, and position 0 is out; block 0 goes at 159.
    for history in (0, 1, 127, 158):
        assert not AttnLifeCycle(128).compute_stale_range(history, 32)
    assert AttnLifeCycle(128).compute_stale_range(159, 32) == HalfOpenRange(0, 1)


def test_a_window_of_one_token_keeps_only_the_block_that_is_being_written() -> None:
    assert AttnLifeCycle(1).compute_stale_range(31, 32) == HalfOpenRange(0, 0)
    assert AttnLifeCycle(1).compute_stale_range(32, 32) == HalfOpenRange(0, 1)


def test_sinks_are_never_stale() -> None:
    life_cycle = AttnLifeCycle.make(64, 33, 32)  # 33 tokens reach into a second block
    assert life_cycle.num_sink_blocks == 2
    # (320 + 1 - 64) // 32 = 8
    assert life_cycle.compute_stale_range(320, 32) == HalfOpenRange(2, 8)
    # (96 + 1 - 64) // 32 = 1: what the window has left behind is sinks.
    assert len(life_cycle.compute_stale_range(96, 32)) == 0


def test_sinks_longer_than_the_history() -> None:
    stale = AttnLifeCycle(1, 8).compute_stale_range(40, 32)
    assert (stale.beg, stale.end) == (2, 2)  # 40 tokens are in 2 blocks


def test_without_a_window_nothing_is_ever_stale() -> None:
    assert not AttnLifeCycle().compute_stale_range(10**9, 32)
    assert not SsmLifeCycle().compute_stale_range(10**9, 32)


def test_32_blocks_of_a_prefill_of_1024_with_window_128() -> None:
    # (1024 + 1 - 128) // 32 = 28 of the 32 blocks are stale at the end.
    assert scratch(0, 1024, 128) == list(range(28))


def test_window_32_and_256_tokens() -> None:
    assert scratch(0, 256, 32) == list(range(7))  # (256 + 1 - 32) // 32 = 7
    assert scratch(0, 256, 32, rewind=64) == list(range(5))  # (192 + 1 - 32) // 32 = 5


def test_two_chunks_with_windows_64_and_256() -> None:
    assert scratch(0, 256, 64) == list(range(6))  # (256 + 1 - 64) // 32 = 6
    assert scratch(0, 256, 64, rewind=32) == list(range(5))  # (224 + 1 - 64) // 32 = 5
    assert scratch(0, 256, 256) == []  # (256 + 1 - 256) // 32 = 0
    assert scratch(256, 352, 64) == [8]  # from 256 / 32 = 8 to (352 + 1 - 64) // 32 = 9
    assert scratch(256, 352, 64, rewind=32) == []  # (320 + 1 - 64) // 32 = 8
    assert scratch(256, 352, 256) == []  # (352 + 1 - 256) // 32 = 3


def test_the_block_that_history_shares_is_no_scratch() -> None:
    # Tokens 40 .. 255: block 1 has tokens 32 .. 39 of the history. (256 + 1 - 32) // 32 = 7.
    assert scratch(40, 256, 32) == [2, 3, 4, 5, 6]


def test_a_rewind_longer_than_the_step_leaves_no_scratch() -> None:
    assert scratch(0, 256, 32, rewind=256) == []
    assert scratch(0, 256, 32, rewind=1000) == []


def test_sinks_are_no_scratch() -> None:
    assert list(compute_scratch_range(0, 256, AttnLifeCycle(32, 2), 32)) == [2, 3, 4, 5, 6]


def test_full_attention_and_state_have_no_scratch() -> None:
    assert not compute_scratch_range(0, 4096, AttnLifeCycle(), 32)
    assert not compute_scratch_range(0, 4096, SsmLifeCycle(), 32)


def test_life_cycles_are_values() -> None:
    assert AttnLifeCycle(128) == AttnLifeCycle(128, 0) == AttnLifeCycle.make(128, None, 32)
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
