"""A path that is published at once is remembered as block by block; what is sampled of it too."""

import random

import pytest
from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2 import ReuseScope, StatisticsClock
from kv_cache_manager_v2.reuse.block import Block
from kv_cache_manager_v2.reuse.block_history import BlockHistory
from kv_cache_manager_v2.reuse.prefix_hash import hash_block
from kv_cache_manager_v2.reuse.removal_history import IS_HERE, NOT_KNOWN
from kv_cache_manager_v2.stats.block_times import BlockTimes
from kv_cache_manager_v2.storage.page_rows import PageRows

TOKEN_BYTES = 4
ROOT = -1


class Ticks(StatisticsClock):
    """One second later each time it is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def seconds(self) -> float:
        self.now += 1.0
        return self.now


def make_history(num_life_cycles: int, sampling: float) -> tuple[BlockHistory, PageRows]:
    rows = PageRows(num_life_cycles, 10)
    history = BlockHistory(rows, 1024, sampling)
    if sampling > 0.0:
        history.times = BlockTimes(Ticks())
    history.record_root(ROOT, ReuseScope())
    return history, rows


# Three tokens are no whole number of words: those take the other way. 3 is no power of two.
@pytest.mark.parametrize("tokens_per_block", [3, 4, 8, 32])
@pytest.mark.parametrize("num_life_cycles", [1, 3, 4])
@pytest.mark.parametrize("num_scopes", [1, 2])
def test_a_run_is_noted_as_one_by_one(tokens_per_block: int, num_life_cycles: int, num_scopes: int) -> None:
    choices = random.Random(tokens_per_block * 10 + num_life_cycles)
    at_once, rows = make_history(num_life_cycles, 0.5)
    one_by_one, other_rows = make_history(num_life_cycles, 0.5)
    if num_scopes == 2:
        at_once.record_root(ROOT - 1, ReuseScope(lora_id=1))
        one_by_one.record_root(ROOT - 1, ReuseScope(lora_id=1))
    size = tokens_per_block * TOKEN_BYTES
    blocks = []
    packed = choices.randbytes(20 * size)
    for ordinal in range(20):
        block = Block(rows.add_block())
        assert other_rows.add_block() == block.first_page
        blocks.append(block)
    # First 8 blocks, then 12 below them.
    pages = [block.first_page for block in blocks]
    at_once.record_published_run(ROOT, vec[i64](pages[:8]), memoryview(packed)[: 8 * size])
    at_once.record_published_run(pages[7], vec[i64](pages[8:]), memoryview(packed)[8 * size :])
    above = ROOT
    text = 0
    for ordinal, block in enumerate(blocks):
        key = packed[ordinal * size : (ordinal + 1) * size]
        one_by_one.record_published(above, block.first_page, key)
        text = hash_block(text, key)
        assert at_once.prefix_of(block.first_page) == one_by_one.prefix_of(block.first_page) == text
        above = block.first_page
    assert at_once.num_blocks == one_by_one.num_blocks == 20
    scope = at_once.scope_of(ROOT)
    for history in (at_once, one_by_one):
        history.record_lookup(blocks[-1].first_page)
        history.record_use(blocks[-1].first_page)
        # While there is one scope, the tree knows what is here.
        assert history.find(text, scope) == (IS_HERE if num_scopes == 2 else NOT_KNOWN)
    assert at_once.times is not None and one_by_one.times is not None
    assert list(at_once.times.reuse_gaps.counts) == list(one_by_one.times.reuse_gaps.counts)
    assert 0 < sum(at_once.times.reuse_gaps.counts) < 20


def test_blocks_from_before_the_second_scope_are_known() -> None:
    history, rows = make_history(1, 0.0)
    block = Block(rows.add_block())
    history.record_published(ROOT, block.first_page, bytes(16))
    text = history.prefix_of(block.first_page)
    scope = history.scope_of(ROOT)
    assert history.find(text, scope) == NOT_KNOWN
    history.record_root(ROOT - 1, ReuseScope(salt=5))
    assert history.find(text, scope) == IS_HERE
    history.record_removal(block.first_page, 0)
    assert history.find(text, scope) not in (IS_HERE, NOT_KNOWN)


@pytest.mark.parametrize("as_path", [True, False])
def test_a_lookup_is_one_of_each_sampled_block_of_its_path(as_path: bool) -> None:
    """All five blocks are sampled: the path to the third finds three, and the removal of all ends five lifetimes."""
    history, rows = make_history(1, 1.0)
    pages = [rows.add_block() for _ in range(5)]
    packed = random.Random(5).randbytes(5 * 16)
    if as_path:
        history.record_published_run(ROOT, vec[i64](pages), memoryview(packed))
    else:
        for ordinal, above in enumerate([ROOT, *pages[:4]]):
            history.record_published(above, pages[ordinal], packed[16 * ordinal : 16 * ordinal + 16])
    history.record_lookup(pages[2])
    times = history.times
    assert times is not None and sum(times.reuse_gaps.counts) == 3
    history.record_path_removal(vec[i64](pages[::-1]), 5, 0)
    assert sum(times.lifetimes.counts) == 5 and history.num_blocks == 0


def test_blocks_from_before_the_clock_have_no_times() -> None:
    history, rows = make_history(1, 0.0)
    pages = [rows.add_block() for _ in range(2)]
    history.record_published(ROOT, pages[0], bytes(16))
    history.times = times = BlockTimes(Ticks())
    history.record_lookup(pages[0])
    history.record_removal(pages[0], 0)
    assert sum(times.reuse_gaps.counts) == sum(times.lifetimes.counts) == 0


def test_an_empty_path_has_no_blocks_to_look_up() -> None:
    """A prompt of which no block is here, or a sequence without one, ends at the root. Also without a clock."""
    for sampling in (0.0, 1.0):
        history, rows = make_history(1, sampling)
        pages = [rows.add_block() for _ in range(5)]
        history.record_published_run(ROOT, vec[i64](pages), memoryview(bytes(range(80))))
        history.record_lookup(ROOT)
        history.record_use(ROOT)
        assert history.times is None or sum(history.times.reuse_gaps.counts) == 0
