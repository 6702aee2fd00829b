"""A 62-bit hash of a text, block by block: to know it again in statistics, never to decide.

A block's words of two tokens are taken four at a time, two products of two words each: a multiplication for every second word,
and only one in four that waits for the one before. What is left of a block goes word by word. At its end the upper half is folded
into the lower one.

Interpreted and compiled give the same: 62 bits are kept of numbers of any length, or of numbers that wrap at 64.
"""

from typing import Final

from librt.strings import read_i32_le, read_i64_le
from librt.vecs import vec
from mypy_extensions import i64

EMPTY_TEXT: Final = 0
WORD_BYTES: Final = 8
WORDS_AT_ONCE: Final = 8
"""Of `hash_words`."""
_GROUP_BYTES: Final = 4 * WORD_BYTES

_MASK: Final = (1 << 62) - 1
_FIRST_FACTOR: Final = 0x1E3779B97F4A7C15
_SECOND_FACTOR: Final = 0x0F58476D1CE4E5B9
# What the words of a group are shifted by, so that each place counts otherwise. A sum must not end in many zero bits, for these
# take as many upper bits from the other factor: with ids under 2**18 no sum here ends in more than 18.
_A: Final = 0x13198A2E0370734D
_B: Final = 0x2243F6A8885A308D
_C: Final = 0x082EFA98EC4A6C8B
_D: Final = 0x14A4093822299F33


def hash_block(parent_text: i64, key: bytes) -> i64:
    """The text that ``parent_text`` becomes with the packed tokens ``key`` behind it; never negative."""
    num_bytes: i64 = len(key)
    text = parent_text ^ (num_bytes * _SECOND_FACTOR)
    position: i64 = 0
    while position + _GROUP_BYTES <= num_bytes:
        first = (read_i64_le(key, position) + _A) * (read_i64_le(key, position + 8) + _B)
        second = (read_i64_le(key, position + 16) + _C) * (read_i64_le(key, position + 24) + _D)
        text = ((text ^ (first + second)) * _FIRST_FACTOR) & _MASK
        position += _GROUP_BYTES
    while position + WORD_BYTES <= num_bytes:
        text = ((text ^ read_i64_le(key, position)) * _FIRST_FACTOR) & _MASK
        position += WORD_BYTES
    if position < num_bytes:
        text = ((text ^ i64(read_i32_le(key, position))) * _FIRST_FACTOR) & _MASK
    text &= _MASK
    return ((text * _SECOND_FACTOR) & _MASK) ^ (text >> 31)


def hash_words(parent_text: i64, words: vec[i64], begin: i64, end: i64) -> i64:
    """The same for the packed tokens ``words[begin:end]``, a multiple of `WORDS_AT_ONCE`: half of the work."""
    text = parent_text ^ ((end - begin) * WORD_BYTES * _SECOND_FACTOR)
    position = begin
    while position < end:
        first = (words[position] + _A) * (words[position + 1] + _B)
        second = (words[position + 2] + _C) * (words[position + 3] + _D)
        text = (text ^ (first + second)) * _FIRST_FACTOR
        first = (words[position + 4] + _A) * (words[position + 5] + _B)
        second = (words[position + 6] + _C) * (words[position + 7] + _D)
        # Masked for the sake of interpreted code alone, whose numbers grow.
        text = ((text ^ (first + second)) * _FIRST_FACTOR) & _MASK
        position += WORDS_AT_ONCE
    return ((text * _SECOND_FACTOR) & _MASK) ^ (text >> 31)
