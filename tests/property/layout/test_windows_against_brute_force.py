"""Stale and scratch ranges against a look at every position."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache_manager_v2.layout.life_cycle import AttnLifeCycle, LifeCycle, SsmLifeCycle
from kv_cache_manager_v2.layout.windows import compute_scratch_range

from .brute_force import is_stale, scratch_blocks

TOKENS_PER_BLOCK = st.integers(1, 9)
LENGTHS = st.integers(0, 90)


def windowed(window: int, num_sink_blocks: int) -> LifeCycle:
    return AttnLifeCycle(window, num_sink_blocks)


LIFE_CYCLES: st.SearchStrategy[LifeCycle] = st.one_of(
    st.builds(windowed, st.integers(1, 40), st.integers(0, 4)),
    st.builds(windowed, st.integers(1, 12), st.just(0)),
    st.just(AttnLifeCycle()),
    st.just(SsmLifeCycle()),
)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(LIFE_CYCLES, LENGTHS, TOKENS_PER_BLOCK)
def test_stale_blocks(life_cycle: LifeCycle, history: int, tokens_per_block: int) -> None:
    stale = life_cycle.compute_stale_range(history, tokens_per_block)
    blocks = range(history // tokens_per_block + 3)
    assert list(stale) == [block for block in blocks if is_stale(life_cycle, block, history, tokens_per_block)]
    assert stale.end >= stale.beg >= 0
    assert stale.beg == life_cycle.compute_stale_beg(history, tokens_per_block)
    assert stale.end == life_cycle.compute_stale_end(history, tokens_per_block)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(LIFE_CYCLES, LENGTHS, TOKENS_PER_BLOCK)
def test_a_stale_block_stays_stale(life_cycle: LifeCycle, history: int, tokens_per_block: int) -> None:
    before = life_cycle.compute_stale_range(history, tokens_per_block)
    after = life_cycle.compute_stale_range(history + 1, tokens_per_block)
    assert set(before) <= set(after)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(LIFE_CYCLES, LENGTHS, LENGTHS, TOKENS_PER_BLOCK, st.integers(0, 40))
def test_scratch_blocks(
    life_cycle: LifeCycle, history: int, num_inputs: int, tokens_per_block: int, max_rewind_len: int
) -> None:
    capacity = history + num_inputs
    scratch = compute_scratch_range(history, capacity, life_cycle, tokens_per_block, max_rewind_len)
    assert list(scratch) == scratch_blocks(life_cycle, history, capacity, tokens_per_block, max_rewind_len)
    assert scratch.end >= scratch.beg
