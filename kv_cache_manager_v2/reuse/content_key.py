"""A number for what a page holds: for eviction policies, which remember content after its pages are gone.

Chained down the path, computed when first asked for, and kept in the block. Two contents may have the same number (one pair in
2**61): a policy then takes one for the other, and nothing else depends on it. Not of Python's ``hash``, so that ranks agree.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from .block import Block

_FACTOR: Final = 0x1E3779B97F4A7C15
_MASK: Final = (1 << 62) - 1
NO_KEY: Final = 0


def mix_key(key: i64, word: i64) -> i64:
    """Never `NO_KEY`."""
    mixed = ((key ^ ((word ^ (word >> 33)) & _MASK)) * _FACTOR + 1) & _MASK
    mixed ^= mixed >> 31
    return mixed if mixed != NO_KEY else 1


def text_key(data: bytes) -> i64:
    """Of a whole text, for roots."""
    key: i64 = 1
    for byte in data:
        key = mix_key(key, byte)
    return key


def block_key(block: Block) -> i64:
    """Of a published block; its root has one."""
    path: list[Block] = []
    above = block
    while above.content_key == NO_KEY:
        path.append(above)
        parent = above.parent
        assert parent is not None, "a root without a content key"
        above = parent
    key = above.content_key
    position: i64 = len(path)
    while position > 0:
        position -= 1
        below = path[position]
        data = below.key
        key = mix_key(key, len(data))
        if len(data) % 8 != 0:
            data += bytes(4)
        words = vec[i64](memoryview(data).cast("q"))
        at: i64 = 0
        while at < len(words):
            key = mix_key(key, words[at])
            at += 1
        below.content_key = key
    return key
