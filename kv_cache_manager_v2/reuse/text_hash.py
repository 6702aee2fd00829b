"""A 62-bit hash of a text, block by block: to know it again in statistics, never to decide.

A polynomial of the words of two tokens; at the end of a block its upper half is folded into the lower one. Interpreted and compiled
give the same: 62 bits are kept of numbers of any length, or of numbers that wrap at 64.
"""

from typing import Final

from librt.strings import read_i32_le, read_i64_le
from librt.vecs import vec
from mypy_extensions import i64

EMPTY_TEXT: Final = 0
WORD_BYTES: Final = 8

_MASK: Final = (1 << 62) - 1
_FIRST_FACTOR: Final = 0x1E3779B97F4A7C15
_SECOND_FACTOR: Final = 0x0F58476D1CE4E5B9


def hash_block(parent_text: i64, key: bytes) -> i64:
    """The text that ``parent_text`` becomes with the packed tokens ``key`` behind it; never negative."""
    num_bytes: i64 = len(key)
    text = parent_text ^ (num_bytes * _SECOND_FACTOR)
    position: i64 = 0
    while position + WORD_BYTES <= num_bytes:
        text = ((text ^ read_i64_le(key, position)) * _FIRST_FACTOR) & _MASK
        position += WORD_BYTES
    if position < num_bytes:
        text = ((text ^ i64(read_i32_le(key, position))) * _FIRST_FACTOR) & _MASK
    return ((text * _SECOND_FACTOR) & _MASK) ^ (text >> 31)


def hash_run(parent_text: i64, words: vec[i64], texts: vec[i64]) -> None:
    """The same for as many blocks below each other as there are ``texts``, of equally many ``words`` each, at a third of the work."""
    words_per_block: i64 = len(words) // len(texts)
    length = words_per_block * WORD_BYTES * _SECOND_FACTOR
    text = parent_text ^ length
    left = words_per_block
    block: i64 = 0
    # A loop over the items needs no look at an index, and one loop no call for each block.
    for word in words:
        text = (text ^ word) * _FIRST_FACTOR
        left -= 1
        if left == 0:
            text &= _MASK
            text = ((text * _SECOND_FACTOR) & _MASK) ^ (text >> 31)
            texts[block] = text
            text ^= length
            block += 1
            left = words_per_block
