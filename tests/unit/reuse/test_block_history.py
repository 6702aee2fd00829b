"""A path that is published at once is remembered as block by block; what is sampled of it too."""

import random

import pytest
from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2 import ReuseScope
from kv_cache_manager_v2.events.removal_cause import CAPACITY, REQUESTED, UNREACHABLE
from kv_cache_manager_v2.reuse.block import Block
from kv_cache_manager_v2.reuse.block_history import BlockHistory
from kv_cache_manager_v2.reuse.prefix_hash import hash_block
from kv_cache_manager_v2.reuse.removal_history import IS_HERE, NOT_KNOWN
from kv_cache_manager_v2.stats.reuse_log import BELOW, KEY_SHIFT, KIND_MASK
from kv_cache_manager_v2.stats.reuse_sampler import ReuseSampler
from kv_cache_manager_v2.storage.page_rows import PageRows

TOKEN_BYTES = 4
ROOT = -1


def make_history(num_life_cycles: int, sampling: float) -> tuple[BlockHistory, PageRows]:
    rows = PageRows(num_life_cycles, 10)
    history = BlockHistory(rows, 1024, ReuseSampler(sampling) if sampling > 0.0 else None)
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
        history.record_lookup(blocks[-1].first_page, 20)
        history.record_release(blocks[-1].first_page)
        # While there is one scope, the tree knows what is here.
        assert history.find(text, scope) == (IS_HERE if num_scopes == 2 else NOT_KNOWN)
    assert at_once.sampler is not None and one_by_one.sampler is not None
    assert at_once.sampler.num_queries == one_by_one.sampler.num_queries > 0
    assert list(at_once.sampler.distances) == list(one_by_one.sampler.distances)


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
def test_the_full_size_is_the_mean_of_what_was_there_when_room_was_made(as_path: bool) -> None:
    """Ten blocks: one is dropped on request, two for want of room (9 and 8 were there), one as it cannot be reached (7): 8 on average."""
    history, rows = make_history(1, 0.0)
    pages = [rows.add_block() for _ in range(10)]
    for page, above in zip(pages, [ROOT, *pages]):
        history.record_published(above, page, bytes(16))
    assert history.compute_full_size() == 0.0
    for count, cause in ((1, REQUESTED), (2, CAPACITY), (1, UNREACHABLE)):
        gone = [pages.pop() for _ in range(count)]
        if as_path:
            history.record_path_removal(vec[i64](gone), count, cause)
        else:
            for page in gone:
                history.record_removal(page, cause)
    assert history.compute_full_size() == (9 + 8 + 7) / 3
    history.forget_full_size()
    assert history.compute_full_size() == 0.0


@pytest.mark.parametrize("as_path", [True, False])
def test_each_sampled_block_is_below_the_one_before_it(as_path: bool) -> None:
    """All blocks are sampled: each is told of by itself, and from the second one on with the block above it just before."""
    history, rows = make_history(1, 1.0)
    pages = [rows.add_block() for _ in range(5)]
    packed = random.Random(5).randbytes(5 * 16)
    if as_path:
        history.record_published_run(ROOT, vec[i64](pages), memoryview(packed))
    else:
        for ordinal, above in enumerate([ROOT, *pages[:4]]):
            history.record_published(above, pages[ordinal], packed[16 * ordinal : 16 * ordinal + 16])
    assert history.sampler is not None
    words = [int(word) for word in history.sampler.log.copy_words()]
    assert [word & KIND_MASK == BELOW for word in words] == [False] + [True, False] * 4
    keys = [word >> KEY_SHIFT for word in words]
    published = [keys[0], *keys[2::2]]
    assert len(set(published)) == 5 and keys[1::2] == published[:4]


def test_an_empty_path_tells_nothing_of_blocks() -> None:
    """A prompt of which no block is here, or a sequence without one, ends at the root: no sampled block was asked for, held or released.
    Also without a sampler, and where all rows are blocks that are sampled."""
    for sampling in (0.0, 1.0):
        history, rows = make_history(1, sampling)
        pages = [rows.add_block() for _ in range(5)]
        history.record_published_run(ROOT, vec[i64](pages), memoryview(bytes(range(80))))
        before = [] if history.sampler is None else list(history.sampler.log.copy_words())
        history.record_lookup(ROOT, 0)
        history.record_held(ROOT)
        history.record_release(ROOT)
        if history.sampler is not None:
            assert list(history.sampler.log.copy_words()) == before
            assert history.sampler.num_found == 0
