"""Full blocks below each other that were published at once: told of in one note, taken apart by who drains."""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr


@final
@mypyc_attr(native_class=True)
class PublishedRun:
    """Nobody changes what is in it."""

    __slots__ = ("parent", "first_pages", "places", "_packed", "_begin", "_block_bytes")

    parent: Final[i64]
    """Of the first block; each other one is below the one before it."""
    first_pages: Final[vec[i64]]
    places: Final[vec[i64]]
    """Of each page of each block, level | priority << 8; negative where there is none."""
    _packed: Final[bytes]
    """The blocks' tokens from ``_begin`` on, packed as int32; no digest is among them."""
    _begin: Final[i64]
    _block_bytes: Final[i64]

    def __init__(
        self, parent: i64, first_pages: vec[i64], places: vec[i64], packed: bytes, begin: i64, block_bytes: i64
    ) -> None:
        self.parent = parent
        self.first_pages = first_pages
        self.places = places
        self._packed = packed
        self._begin = begin
        self._block_bytes = block_bytes

    def key(self, ordinal: i64) -> bytes:
        """The tokens of a block of the run."""
        begin = self._begin + ordinal * self._block_bytes
        return self._packed[begin : begin + self._block_bytes]
