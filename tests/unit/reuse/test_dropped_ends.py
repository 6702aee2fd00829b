"""Notes of dropped blocks: as many first tokens as are asked for, behind their own parent only, and the oldest of too many go."""

import struct

from kv_cache_manager_v2.reuse.block import Block
from kv_cache_manager_v2.reuse.content_key import text_key
from kv_cache_manager_v2.reuse.dropped_ends import DroppedEnds

BLOCK_BYTES = 16
MOST_NOTES = 10_000


def packed(*tokens: int) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def root_of(name: bytes) -> Block:
    root = Block(-1)
    root.content_key = text_key(name)
    return root


def below(parent: Block, *tokens: int) -> Block:
    block = Block(0)
    block.tokens = packed(*tokens)
    block.parent = parent
    return block


def test_first_tokens_are_counted_behind_their_parent() -> None:
    ends = DroppedEnds(BLOCK_BYTES)
    parent, other = root_of(b"one"), root_of(b"two")
    ends.note(below(parent, 5, 6, 7, 8), 3)
    ends.note(below(parent, 5, 9), 3)
    ends.note(below(parent, 4, 4, -1, 4), 3)
    ends.note(below(parent, 0, 0), 3)
    asked = [(5, 6, 7, 8), (5, 6, 7, 1), (5, 6), (5, 9, 7, 8), (6, 7), (4, 4, 4, 4), (12,), ()]
    assert [ends.count_tokens(parent, packed(*tokens)) for tokens in asked] == [3, 3, 2, 2, 0, 0, 0, 0], "a digest's number is not noted"
    assert ends.count_tokens(other, packed(5, 6, 7, 8)) == 0
    ends.clear()
    assert ends.count_tokens(parent, packed(5, 6, 7, 8)) == 0


def test_the_oldest_of_too_many_notes_go() -> None:
    root = Block(-1)
    root.content_key = text_key(b"root")
    ends = DroppedEnds(8)
    for number in range(MOST_NOTES + 2):
        block = Block(number)
        block.parent = root
        block.tokens = number.to_bytes(4, "little") * 2
        ends.note(block, 1)
    tokens = [number.to_bytes(4, "little") for number in (0, 1, 2, MOST_NOTES + 1, MOST_NOTES + 2)]
    assert [ends.count_tokens(root, token) for token in tokens] == [0, 0, 1, 1, 0]
