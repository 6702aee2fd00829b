"""Pages as deflated byte planes: byte for byte what was written comes back."""

import zlib
from typing import Final, SupportsIndex

import numpy as np

from ..base.checks import to_int_within
from .numpy_codec import Bytes, NumpyCodec

_HEAD: Final = np.dtype("<u4")
_HEAD_BYTES: Final = 4
"""How many bytes follow; `_RAW`: the buffer itself does."""
_RAW: Final = 0


class LosslessCodec(NumpyCodec):
    """The first bytes of all numbers, then the second ones, and so on, deflated; a buffer that does not shrink stays as it is.

    A slot has room for a page that does not shrink, so no more pages fit into a level; behind a page that does shrink are zeros. That is
    for file systems and links that leave zeros out, and to try a codec that changes no byte. ``level``: of zlib, 1 to 9.
    """

    def __init__(self, dtype: str, level: SupportsIndex = 1) -> None:
        super().__init__(dtype)
        self._level: Final = int(to_int_within(level, "level", 1, 9))

    @property
    def identity(self) -> str:
        return f"byte_planes_zlib/1 {self._dtype}"

    @property
    def is_lossless(self) -> bool:
        return True

    def packed_bytes(self, role: str, num_bytes: int) -> int:
        if num_bytes % self._item_bytes != 0:
            raise ValueError(f"a buffer of role {role!r} has {num_bytes} bytes in a page, which are no whole numbers of type {self._dtype}")
        return _HEAD_BYTES + num_bytes

    def pack(self, hot: Bytes) -> Bytes:
        packed = np.zeros((len(hot), _HEAD_BYTES + hot.shape[1]), np.uint8)
        for source, target in zip(hot, packed):
            data = zlib.compress(source.reshape(-1, self._item_bytes).T.tobytes(), self._level)
            is_raw = len(data) >= hot.shape[1]
            target[:_HEAD_BYTES] = np.array([_RAW if is_raw else len(data)], _HEAD).view(np.uint8)
            target[_HEAD_BYTES : None if is_raw else _HEAD_BYTES + len(data)] = source if is_raw else np.frombuffer(data, np.uint8)
        return packed

    def unpack(self, cold: Bytes) -> Bytes:
        """`ValueError` for bytes that `pack` has not made."""
        num_bytes = cold.shape[1] - _HEAD_BYTES
        pages = np.empty((len(cold), num_bytes), np.uint8)
        for source, target in zip(cold, pages):
            length = int(np.ascontiguousarray(source[:_HEAD_BYTES]).view(_HEAD)[0])
            if length == _RAW:
                target[:] = source[_HEAD_BYTES:]
                continue
            if length > num_bytes:
                raise ValueError(f"a packed page is damaged: {length} bytes are said to follow, and a slot has {num_bytes}")
            try:
                planes = zlib.decompressobj().decompress(source[_HEAD_BYTES : _HEAD_BYTES + length].tobytes(), num_bytes + 1)
            except zlib.error as error:
                raise ValueError(f"a packed page is damaged: {error}") from error
            if len(planes) != num_bytes:
                raise ValueError(f"a packed page is damaged: {len(planes)} bytes come out at least, and {num_bytes} were packed")
            target[:] = np.frombuffer(planes, np.uint8).reshape(self._item_bytes, -1).T.reshape(-1)
        return pages
