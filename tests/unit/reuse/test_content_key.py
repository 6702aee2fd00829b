"""Content keys: one for each content, however it was published and whenever it was asked for.

A policy finds its ghosts by these keys. If a run of blocks had others than the same blocks one by one, what comes back would look new.
"""

from random import Random

import pytest

from kv_cache_manager_v2.reuse.block import Block
from kv_cache_manager_v2.reuse.content_key import NO_KEY, block_key, make_run_keys, page_key, text_key

TOKEN_BYTES = 4


def make_path(packed: bytes, block_bytes: int, as_run: bool) -> list[Block]:
    """The blocks of that text below a root; ``as_run``: they know their keys from the beginning."""
    root = Block(-1)
    root.content_key = text_key(b"root")
    blocks: list[Block] = []
    for begin in range(0, len(packed), block_bytes):
        block = Block(begin)
        block.parent = blocks[-1] if blocks else root
        block.tokens = packed
        block.tokens_begin = begin
        blocks.append(block)
    if as_run:
        make_run_keys(root, blocks, packed, 0, block_bytes)
    return blocks


@pytest.mark.parametrize("tokens_per_block", [1, 2, 3, 4, 5, 8, 31, 64])
def test_runs_have_the_keys_of_single_blocks(tokens_per_block: int) -> None:
    random = Random(tokens_per_block)
    packed = random.randbytes(6 * tokens_per_block * TOKEN_BYTES)
    size = tokens_per_block * TOKEN_BYTES
    at_once = make_path(packed, size, True)
    keys = [block.content_key for block in at_once]
    assert NO_KEY not in keys and len(set(keys)) == len(keys)
    # Asked from the top down, from the end up, and in any order.
    for order in (range(6), range(5, -1, -1), random.sample(range(6), 6)):
        asked = make_path(packed, size, False)
        for ordinal in order:
            assert block_key(asked[ordinal], size) == keys[ordinal]
        assert [block.content_key for block in asked] == keys


@pytest.mark.parametrize("tokens_per_block", [1, 2, 3, 8, 16])
def test_the_first_two_and_the_last_two_tokens_of_each_block_count(tokens_per_block: int) -> None:
    size = tokens_per_block * TOKEN_BYTES
    packed = bytes(3 * size)
    keys = {block_key(make_path(packed, size, False)[-1], size)}
    counted = {0, 1, tokens_per_block - 2, tokens_per_block - 1}
    places = [place for place in range(3 * tokens_per_block) if place % tokens_per_block in counted]
    for place in places:
        changed = bytearray(packed)
        changed[place * TOKEN_BYTES] = 1
        keys.add(block_key(make_path(bytes(changed), size, False)[-1], size))
    assert len(keys) == 1 + len(places)


def test_pages_of_a_block_have_keys_of_their_own() -> None:
    keys = {page_key(key, life_cycle) for key in (1, 2, (1 << 62) - 1) for life_cycle in range(5)}
    assert len(keys) == 15 and NO_KEY not in keys
