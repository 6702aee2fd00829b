"""A run of full blocks, each the parent of the next, published at once: one log entry, split when the log is drained.

A page's level and priority are one number: level (bits 0-4) | priority (5-11), anything above; negative where there is no page.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

_LEVEL_MASK: Final = 31
_PRIORITY_SHIFT: Final = 5
_PRIORITY_MASK: Final = 127


def unpack_level(level_and_priority: i64) -> i64:
    return level_and_priority & _LEVEL_MASK


def unpack_priority(level_and_priority: i64) -> i64:
    return (level_and_priority >> _PRIORITY_SHIFT) & _PRIORITY_MASK


@final
class PublishedRun:
    """Immutable."""

    __slots__ = ("parent", "first_pages", "levels_and_priorities", "_packed", "_begin", "_block_bytes")

    def __init__(
        self, parent: i64, first_pages: vec[i64], levels_and_priorities: vec[i64], packed: bytes, begin: i64, block_bytes: i64
    ) -> None:
        self.parent: Final = parent
        """Parent of the first block; each other block's parent is the one before it."""
        self.first_pages: Final = first_pages
        self.levels_and_priorities: Final = levels_and_priorities
        """Level and priority of each page of each block."""
        self._packed: Final = packed
        """The blocks' tokens from ``_begin`` on, packed as int32; no digest is among them."""
        self._begin: Final = begin
        self._block_bytes: Final = block_bytes

    def key(self, ordinal: i64) -> bytes:
        """The tokens of a block of the run."""
        begin = self._begin + ordinal * self._block_bytes
        return self._packed[begin : begin + self._block_bytes]
