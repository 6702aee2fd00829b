"""The committed tokens of a sequence that do not fill a block yet, packed as the block's key will be."""

from typing import final

from librt.strings import BytesWriter, write_i32_le
from mypy_extensions import i32, i64, mypyc_attr

from ..reuse.token_packing import TOKEN_BYTES


@final
@mypyc_attr(native_class=True)
class TokenTail:
    """Little-endian, which is the native order of every machine that has a device for us."""

    __slots__ = ("_packed", "count")

    _packed: BytesWriter
    count: i64

    def __init__(self) -> None:
        self._packed = BytesWriter()
        self.count = 0

    def append(self, token: i32) -> None:
        write_i32_le(self._packed, token)
        self.count += 1

    def extend(self, packed: bytes) -> None:
        self._packed.write(packed)
        self.count += len(packed) // TOKEN_BYTES

    def take_back(self) -> None:
        """The last token was not appended."""
        kept = self._packed.getvalue()
        self._packed = BytesWriter()
        self._packed.write(kept[: len(kept) - TOKEN_BYTES])
        self.count -= 1

    def packed(self) -> bytes:
        return self._packed.getvalue()

    def clear(self) -> None:
        self._packed = BytesWriter()
        self.count = 0
