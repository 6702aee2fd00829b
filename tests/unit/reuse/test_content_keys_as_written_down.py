"""A content key is the number that the module's docstring describes, computed here with integers without end."""

import random
from array import array

import pytest

from kv_cache_manager_v2.reuse.block import Block
from kv_cache_manager_v2.reuse.content_key import NO_KEY, block_key, make_run_keys, mix_key, page_key, text_key

MASK = (1 << 62) - 1
FACTOR = 0x1E3779B97F4A7C15
FIRST, SECOND, THIRD, LAST = 0x2545F4914F6CDD1D, 0x369DEA0F31A53F85, 0x27BB2EE687B0B0FD, 0x1B873593CC9E2D51


def mix(key: int, word: int) -> int:
    mixed = ((key ^ ((word ^ (word >> 33)) & MASK)) * FACTOR + 1) & MASK
    return mixed ^ (mixed >> 31) or 1


def key_below(key: int, tokens: list[int]) -> int:
    """Two tokens of the beginning, of the first third, of the second third and of the end; a single token is mixed in by itself."""
    count = len(tokens)
    if count == 1:
        return mix(mix(key, 4), tokens[0])
    third = count // 3
    places = [0, min(third, count - 2), min(min(third, count - 2) + third, count - 2), count - 2]
    words = [(tokens[place] & 0xFFFFFFFF) + (tokens[place + 1] << 32) for place in places]
    mixed = (key * FACTOR + sum(w * f for w, f in zip(words, (FIRST, SECOND, THIRD, LAST), strict=True)) + 4 * count) & MASK
    return mix(mixed, mixed >> 30)


def path_of(root: Block, texts: list[list[int]]) -> list[Block]:
    packed = b"".join([array("i", text).tobytes() for text in texts])
    blocks: list[Block] = []
    begin = 0
    for text in texts:
        block = Block(begin)
        block.parent = blocks[-1] if blocks else root
        block.tokens, block.tokens_begin = packed, begin
        blocks.append(block)
        begin += 4 * len(text)
    return blocks


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 31, 32, 64])
def test_keys_of_a_path(size: int) -> None:
    """Of single blocks and of runs, also below a block whose own key was not asked for yet; with digests, which are negative."""
    choices = random.Random(size)
    for largest in (1, 1 << 17, (1 << 31) - 1):
        texts = [[choices.randint(-largest - 1, largest) for _ in range(size)] for _ in range(6)]
        keys = [text_key(b"root")]
        for text in texts:
            keys.append(key_below(keys[-1], text))
        root = Block(-1)
        root.content_key = keys[0]
        assert block_key(path_of(root, texts)[5], 4 * size) == keys[6]
        for first in (0, 1, 3):
            blocks = path_of(root, texts)
            packed = blocks[0].tokens
            make_run_keys(blocks[first - 1] if first > 0 else root, blocks[first:], packed, 4 * size * first, 4 * size)
            assert [block.content_key for block in blocks[first:]] == keys[first + 1 :]
            assert [block_key(block, 4 * size) for block in blocks] == keys[1:]


def test_the_key_of_a_root() -> None:
    key = 1
    for byte in b"\x00a scope\xff":
        key = mix(key, byte)
    assert text_key(b"\x00a scope\xff") == key
    assert text_key(b"") == 1


def test_words_of_any_sign_are_mixed() -> None:
    choices = random.Random(1)
    for _ in range(200):
        key, word = choices.getrandbits(62), choices.randint(-(1 << 63), (1 << 63) - 1)
        assert mix_key(key, word) == mix(key, word)


def test_no_content_has_the_key_of_none() -> None:
    # What becomes 0 when it is multiplied and 1 is added, modulo 2 to the 62nd.
    key = -pow(FACTOR, -1, 1 << 62) & MASK
    assert NO_KEY == 0
    assert mix_key(key, 0) == 1
    assert page_key(5, 3) == 5 + 3 * FIRST & MASK
    assert page_key(-3 * FIRST & MASK, 3) == 1
