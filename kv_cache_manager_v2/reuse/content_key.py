"""A number for what a page holds: for eviction policies, which remember content after its pages are gone.

Chained down the path, computed when first asked for, and kept in the block. Eight tokens of each block go into it, and so those of
all blocks above: two contents may have the same number, a policy then takes one for the other, and nothing else depends on it. Not
of Python's ``hash``, so that ranks agree.
"""

from typing import Final

from librt.strings import read_i32_le, read_i64_le
from mypy_extensions import i64

from .block import Block

_FACTOR: Final = 0x1E3779B97F4A7C15
_MASK: Final = (1 << 62) - 1
NO_KEY: Final = 0
_WORD_BYTES: Final = 8


def mix_key(key: i64, word: i64) -> i64:
    """Never `NO_KEY`."""
    mixed = ((key ^ ((word ^ (word >> 33)) & _MASK)) * _FACTOR + 1) & _MASK
    mixed ^= mixed >> 31
    if mixed == NO_KEY:
        return 1
    return mixed


def text_key(data: bytes) -> i64:
    """Of a whole text, for roots."""
    key: i64 = 1
    for byte in data:
        key = mix_key(key, byte)
    return key


def block_key(block: Block) -> i64:
    """Of a published block; its root has one."""
    if block.content_key != NO_KEY:
        return block.content_key
    parent = block.parent
    assert parent is not None, "a root without a content key"
    if parent.content_key == NO_KEY:
        _make_keys_above(parent)
    key = _continue_key(parent.content_key, block.key)
    block.content_key = key
    return key


def _make_keys_above(lowest: Block) -> None:
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
        key = _continue_key(key, path[position].key)
        path[position].content_key = key


def _continue_key(key: i64, tokens: bytes) -> i64:
    """With the first two tokens, the last two, and two pairs from between."""
    num_bytes: i64 = len(tokens)
    key = mix_key(key, num_bytes)
    if num_bytes < _WORD_BYTES:
        return mix_key(key, i64(read_i32_le(tokens, 0)))
    third = (num_bytes // 12) * 4
    last = num_bytes - _WORD_BYTES
    key = mix_key(key, read_i64_le(tokens, 0))
    key = mix_key(key, read_i64_le(tokens, third if third < last else last))
    key = mix_key(key, read_i64_le(tokens, 2 * third if 2 * third < last else last))
    return mix_key(key, read_i64_le(tokens, last))
