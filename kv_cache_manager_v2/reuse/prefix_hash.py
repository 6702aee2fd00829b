"""A 62-bit hash of a prefix, block by block: to know it again in statistics, or when it comes back to a policy, never to match it.

Four polynomials of the words of two tokens, each of every fourth word, so that a processor works on all of them at once, and on those of
the next block too, as the prefix above comes in only where they are added up; then the upper half is folded into the lower one. Words that
make no four, and a last single token, go into the first. Interpreted and compiled give the same: 62 bits are kept of numbers of any length,
or of numbers that wrap at 64.
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
_SECOND_FACTOR: Final = 0x2545F4914F6CDD1D
_THIRD_FACTOR: Final = 0x369DEA0F31A53F85
_FOURTH_FACTOR: Final = 0x27BB2EE687B0B0FD
_PREFIX_FACTOR: Final = 0x1B873593CC9E2D51
_LAST_FACTOR: Final = 0x0F58476D1CE4E5B9


def hash_block(parent_prefix: i64, key: bytes) -> i64:
    """The prefix that ``parent_prefix`` becomes with the packed tokens ``key`` behind it; never negative."""
    num_bytes: i64 = len(key)
    first = num_bytes
    second: i64 = 0
    third: i64 = 0
    fourth: i64 = 0
    position: i64 = 0
    while position + 4 * WORD_BYTES <= num_bytes:
        first = ((first ^ read_i64_le(key, position)) * _FIRST_FACTOR) & _MASK
        second = ((second ^ read_i64_le(key, position + WORD_BYTES)) * _SECOND_FACTOR) & _MASK
        third = ((third ^ read_i64_le(key, position + 2 * WORD_BYTES)) * _THIRD_FACTOR) & _MASK
        fourth = ((fourth ^ read_i64_le(key, position + 3 * WORD_BYTES)) * _FOURTH_FACTOR) & _MASK
        position += 4 * WORD_BYTES
    while position + WORD_BYTES <= num_bytes:
        first = ((first ^ read_i64_le(key, position)) * _FIRST_FACTOR) & _MASK
        position += WORD_BYTES
    if position < num_bytes:
        first = ((first ^ i64(read_i32_le(key, position))) * _FIRST_FACTOR) & _MASK
    prefix = (parent_prefix * _PREFIX_FACTOR + first + second + third + fourth) & _MASK
    return ((prefix * _LAST_FACTOR) & _MASK) ^ (prefix >> 31)


def hash_run(parent_prefix: i64, words: vec[i64], words_per_block: i64, prefixes: vec[i64], begin: i64) -> None:
    """Hash blocks below each other, of equally many ``words`` each, at a third of the work: `prefixes` from ``begin`` on."""
    assert words_per_block % RUN_WORDS == 0, "a run of blocks of odd sizes was to be hashed"
    num_bytes = words_per_block * WORD_BYTES
    prefix = parent_prefix
    first = num_bytes
    second: i64 = 0
    third: i64 = 0
    fourth: i64 = 0
    left = words_per_block
    block = begin
    at: i64 = 0
    end: i64 = len(words)
    # One loop rather than a call for each block; written out, as a step of it costs as much as two words.
    while at < end:
        first = (first ^ words[at]) * _FIRST_FACTOR
        second = (second ^ words[at + 1]) * _SECOND_FACTOR
        third = (third ^ words[at + 2]) * _THIRD_FACTOR
        fourth = (fourth ^ words[at + 3]) * _FOURTH_FACTOR
        first = (first ^ words[at + 4]) * _FIRST_FACTOR
        second = (second ^ words[at + 5]) * _SECOND_FACTOR
        third = (third ^ words[at + 6]) * _THIRD_FACTOR
        fourth = (fourth ^ words[at + 7]) * _FOURTH_FACTOR
        at += RUN_WORDS
        left -= RUN_WORDS
        if left == 0:
            prefix = (prefix * _PREFIX_FACTOR + first + second + third + fourth) & _MASK
            prefix = ((prefix * _LAST_FACTOR) & _MASK) ^ (prefix >> 31)
            prefixes[block] = prefix
            first = num_bytes
            second = 0
            third = 0
            fourth = 0
            block += 1
            left = words_per_block
