"""A 62-bit hash of a prefix, block by block: to know it again in statistics, never to decide.

Two polynomials of the words of two tokens, one of every other word, so that a processor works on both at once; at the end of a block
they are added, and the upper half is folded into the lower one. Interpreted and compiled give the same: 62 bits are kept of numbers
of any length, or of numbers that wrap at 64.
"""

from typing import Final

from librt.strings import read_i32_le, read_i64_le
from librt.vecs import vec
from mypy_extensions import i64

EMPTY_PREFIX: Final = 0
WORD_BYTES: Final = 8
RUN_WORDS: Final = 8
"""`hash_run` takes blocks of a multiple of these words."""

_MASK: Final = (1 << 62) - 1
_FIRST_FACTOR: Final = 0x1E3779B97F4A7C15
_OTHER_FACTOR: Final = 0x2545F4914F6CDD1D
_SECOND_FACTOR: Final = 0x0F58476D1CE4E5B9


def hash_block(parent_prefix: i64, key: bytes) -> i64:
    """The prefix that ``parent_prefix`` becomes with the packed tokens ``key`` behind it; never negative."""
    num_bytes: i64 = len(key)
    prefix = parent_prefix ^ (num_bytes * _SECOND_FACTOR)
    other: i64 = 0
    position: i64 = 0
    while position + 2 * WORD_BYTES <= num_bytes:
        prefix = ((prefix ^ read_i64_le(key, position)) * _FIRST_FACTOR) & _MASK
        other = ((other ^ read_i64_le(key, position + WORD_BYTES)) * _OTHER_FACTOR) & _MASK
        position += 2 * WORD_BYTES
    left = num_bytes - position
    if left >= WORD_BYTES:
        prefix = ((prefix ^ read_i64_le(key, position)) * _FIRST_FACTOR) & _MASK
        if left > WORD_BYTES:
            other = ((other ^ i64(read_i32_le(key, position + WORD_BYTES))) * _OTHER_FACTOR) & _MASK
    elif left > 0:
        prefix = ((prefix ^ i64(read_i32_le(key, position))) * _FIRST_FACTOR) & _MASK
    prefix = (prefix + other) & _MASK
    return ((prefix * _SECOND_FACTOR) & _MASK) ^ (prefix >> 31)


def hash_run(parent_prefix: i64, words: vec[i64], words_per_block: i64, prefixes: vec[i64], begin: i64) -> None:
    """The same for blocks below each other, of equally many ``words`` each, at a third of the work: `prefixes` from ``begin`` on."""
    assert words_per_block % RUN_WORDS == 0, "a run of blocks of odd sizes was to be hashed"
    length = words_per_block * WORD_BYTES * _SECOND_FACTOR
    prefix = parent_prefix ^ length
    other: i64 = 0
    left = words_per_block
    block = begin
    at: i64 = 0
    end: i64 = len(words)
    # One loop rather than a call for each block; written out, as a step of it costs as much as two words.
    while at < end:
        prefix = (prefix ^ words[at]) * _FIRST_FACTOR
        other = (other ^ words[at + 1]) * _OTHER_FACTOR
        prefix = (prefix ^ words[at + 2]) * _FIRST_FACTOR
        other = (other ^ words[at + 3]) * _OTHER_FACTOR
        prefix = (prefix ^ words[at + 4]) * _FIRST_FACTOR
        other = (other ^ words[at + 5]) * _OTHER_FACTOR
        prefix = (prefix ^ words[at + 6]) * _FIRST_FACTOR
        other = (other ^ words[at + 7]) * _OTHER_FACTOR
        at += RUN_WORDS
        left -= RUN_WORDS
        if left == 0:
            prefix = (prefix + other) & _MASK
            prefix = ((prefix * _SECOND_FACTOR) & _MASK) ^ (prefix >> 31)
            prefixes[block] = prefix
            prefix ^= length
            other = 0
            block += 1
            left = words_per_block
