"""Content keys: a number for what a page holds, for eviction policies, which remember content after its pages are gone.

Where statistics are kept, the key is their hash of the path. Else it is chained down the path, computed when first asked for, and kept in
the block; eight tokens of each block go into it, and so those of all blocks above. Two contents may have the same number: a policy then
takes one for the other, and nothing else depends on it. Not of Python's ``hash``, so that ranks agree.
"""

from typing import Final

from librt.strings import read_i32_le, read_i64_le
from mypy_extensions import i64

from .block import Block
from .block_tokens import count_key_bytes

_FACTOR: Final = 0x1E3779B97F4A7C15
_FIRST_FACTOR: Final = 0x2545F4914F6CDD1D
_SECOND_FACTOR: Final = 0x369DEA0F31A53F85
_THIRD_FACTOR: Final = 0x27BB2EE687B0B0FD
_LAST_FACTOR: Final = 0x1B873593CC9E2D51
_MASK: Final = (1 << 62) - 1
NO_KEY: Final = 0
_WORD_BYTES: Final = 8


def mix_key(key: i64, word: i64) -> i64:
    """Never `NO_KEY`."""
    mixed = ((key ^ ((word ^ (word >> 33)) & _MASK)) * _FACTOR + 1) & _MASK
    mixed ^= mixed >> 31
    return 1 if mixed == NO_KEY else mixed


def text_key(data: bytes) -> i64:
    """The key of a whole prefix, for roots."""
    key: i64 = 1
    for byte in data:
        key = mix_key(key, byte)
    return key


def block_key(block: Block, block_bytes: i64) -> i64:
    """The key of a published block; its root has one."""
    if block.content_key != NO_KEY:
        return block.content_key
    parent = block.parent
    assert parent is not None, "a root without a content key"
    if parent.content_key == NO_KEY:
        _make_keys_above(parent, block_bytes)
    key = _continue_key(parent.content_key, block.tokens, block.tokens_begin, count_key_bytes(block, block_bytes))
    block.content_key = key
    return key


def _make_keys_above(lowest: Block, block_bytes: i64) -> None:
    path = [lowest]
    above = lowest.parent
    while above is not None and above.content_key == NO_KEY:
        path.append(above)
        above = above.parent
    assert above is not None, "a root without a content key"
    key = above.content_key
    position: i64 = len(path)
    while position > 0:
        position -= 1
        block = path[position]
        key = _continue_key(key, block.tokens, block.tokens_begin, block_bytes)
        block.content_key = key


def make_run_keys(parent: Block, blocks: list[Block], packed: bytes, position: i64, block_bytes: i64) -> None:
    """Keys of full blocks, each below the one before and the first below ``parent``; their tokens are those from ``position`` on."""
    key = block_key(parent, block_bytes) if parent.content_key == NO_KEY else parent.content_key
    if block_bytes < _WORD_BYTES:
        for block in blocks:
            key = _continue_key(key, packed, position, block_bytes)
            block.content_key = key
            position += block_bytes
        return
    second = _second_place(block_bytes)
    third = _third_place(second, block_bytes)
    for block in blocks:
        key = _mix_words(key, packed, position, position + second, position + third, block_bytes)
        block.content_key = key
        position += block_bytes


def page_key(key: i64, life_cycle: i64) -> i64:
    """The key of a block's page; never `NO_KEY`. Who looks a key up mixes it."""
    mixed = (key + life_cycle * _FIRST_FACTOR) & _MASK
    return 1 if mixed == NO_KEY else mixed


def _continue_key(key: i64, text: bytes, begin: i64, num_bytes: i64) -> i64:
    """With the first two tokens of a block, its last two, and two pairs from between."""
    if num_bytes < _WORD_BYTES:
        return mix_key(mix_key(key, num_bytes), i64(read_i32_le(text, begin)))
    second = _second_place(num_bytes)
    return _mix_words(key, text, begin, begin + second, begin + _third_place(second, num_bytes), num_bytes)


def _second_place(num_bytes: i64) -> i64:
    """At most `_WORD_BYTES` before the end: of 8 bytes the first, of 12 and more no more than a third comes before it."""
    return (num_bytes // 12) * 4


def _third_place(second: i64, num_bytes: i64) -> i64:
    last = num_bytes - _WORD_BYTES
    third = second + (num_bytes // 12) * 4
    return third if third < last else last


def _mix_words(key: i64, text: bytes, begin: i64, second: i64, third: i64, num_bytes: i64) -> i64:
    """A sum of products: what wraps in compiled code is cut off in interpreted."""
    mixed = (
        key * _FACTOR
        + read_i64_le(text, begin) * _FIRST_FACTOR
        + read_i64_le(text, second) * _SECOND_FACTOR
        + read_i64_le(text, third) * _THIRD_FACTOR
        + read_i64_le(text, begin + num_bytes - _WORD_BYTES) * _LAST_FACTOR
        + num_bytes
    ) & _MASK
    return mix_key(mixed, mixed >> 30)
