"""Codecs that pack each buffer of a page by itself, in numpy on the host device: what all of this folder share.

A packed page is its buffers, one after another, each as `NumpyCodec.pack` returns it, or as it is.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final, TypeAlias, final

import numpy as np
import numpy.typing as npt
from mypy_extensions import mypyc_attr

from ..base.checks import to_text
from ..base.handle import Handle
from ..device.cold_page_codec import ColdPageCodec
from ..device.host_array import host_bytes
from ..device.port import Device, HostKernel, MemoryAccess
from ..layout.slot_desc import SlotDescVariant

Bytes: TypeAlias = npt.NDArray[np.uint8]

ITEM_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
_ALIGNMENT: Final = 16


@final
@mypyc_attr(native_class=True)
class BufferSpan(Handle):
    """Buffers that lie side by side in one pool of a page, and in the packed page: all of them are packed, or none is."""

    __slots__ = ("pool", "hot_begin", "cold_begin", "buffer_bytes", "packed_bytes", "is_packed", "num_buffers")

    def __init__(self, pool: int, hot_begin: int, cold_begin: int, buffer_bytes: int, packed_bytes: int, is_packed: bool) -> None:
        self.pool: Final = pool
        self.hot_begin: Final = hot_begin
        self.cold_begin: Final = cold_begin
        self.buffer_bytes: Final = buffer_bytes
        """Of each buffer, and ``packed_bytes`` of each as it is packed."""
        self.packed_bytes: Final = packed_bytes
        self.is_packed: Final = is_packed
        self.num_buffers = 0


class NumpyCodec(ColdPageCodec):
    """``dtype``: of the packed buffers' numbers."""

    def __init__(self, dtype: str) -> None:
        self._dtype: Final = to_text(dtype, "dtype")
        if self._dtype not in ITEM_BYTES:
            raise ValueError(f"dtype is {dtype!r}; it is one of {', '.join(ITEM_BYTES)}")
        self._item_bytes: Final = ITEM_BYTES[self._dtype]

    def validate(self, device: Device) -> None:
        if not device.is_software or not device.has_memory:
            raise ValueError(
                f"{type(self).__name__} packs with numpy on the host, and level 0 is on {device.name}: give a HostDevice, or a "
                "ColdPageCodec of your own that launches kernels there, as Float8Codec does on a CudaDevice"
            )

    def cold_bytes(self, page: SlotDescVariant) -> int:
        num_bytes = 0
        for coalesced in page.coalesced_buffers:
            for buffer_id in coalesced.buffer_ids:
                num_bytes += self.packed_bytes(buffer_id.role, coalesced.single_buffer_size)
        return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT

    def packs(self, role: str) -> bool:
        """Whether buffers of this role are packed."""
        return True

    def spans(self, page: SlotDescVariant) -> list[BufferSpan]:
        """All buffers of a page, in their order."""
        found: list[BufferSpan] = []
        begin = 0
        for pool, coalesced in enumerate(page.coalesced_buffers):
            for position, buffer_id in enumerate(coalesced.buffer_ids):
                size, is_packed = coalesced.single_buffer_size, self.packs(buffer_id.role)
                packed_bytes = self.packed_bytes(buffer_id.role, size)
                last = found[-1] if position > 0 else None
                if last is None or last.is_packed != is_packed:
                    last = BufferSpan(pool, position * size, begin, size, packed_bytes, is_packed)
                    found.append(last)
                last.num_buffers += 1
                begin += packed_bytes
        return found

    @abstractmethod
    def packed_bytes(self, role: str, num_bytes: int) -> int:
        """Of a buffer of that many bytes. `ValueError` for one that cannot be packed."""

    @abstractmethod
    def pack(self, hot: Bytes) -> Bytes:
        """The bytes of packed buffers, one a row, for those of their pages."""

    @abstractmethod
    def unpack(self, cold: Bytes) -> Bytes:
        """What `pack` was given, with the codec's error."""

    def encode(
        self, device: Device, stream: int, page: SlotDescVariant, hot_addresses: Sequence[Sequence[int]], cold_addresses: Sequence[int]
    ) -> None:
        device.launch(stream, _Transcoding(self, page, hot_addresses, cold_addresses, True))

    def decode(
        self, device: Device, stream: int, page: SlotDescVariant, hot_addresses: Sequence[Sequence[int]], cold_addresses: Sequence[int]
    ) -> None:
        device.launch(stream, _Transcoding(self, page, hot_addresses, cold_addresses, False))


class _Transcoding(HostKernel):
    """Packs pages or unpacks them; the addresses are those of the codec's calls."""

    def __init__(
        self, codec: NumpyCodec, page: SlotDescVariant, hot: Sequence[Sequence[int]], cold: Sequence[int], is_packing: bool
    ) -> None:
        self._codec: Final = codec
        self._page: Final = page
        self._hot: Final = [list(addresses) for addresses in hot]
        self._cold: Final = list(cold)
        self._is_packing: Final = is_packing

    def accesses(self) -> Sequence[MemoryAccess]:
        reads: list[MemoryAccess] = []
        writes: list[MemoryAccess] = []
        hot, cold = (reads, writes) if self._is_packing else (writes, reads)
        for span in self._codec.spans(self._page):
            num_bytes, packed_bytes = span.num_buffers * span.buffer_bytes, span.num_buffers * span.packed_bytes
            hot.extend([MemoryAccess(address + span.hot_begin, num_bytes, not self._is_packing) for address in self._hot[span.pool]])
            cold.extend([MemoryAccess(address + span.cold_begin, packed_bytes, self._is_packing) for address in self._cold])
        return reads + writes

    def run(self) -> None:
        for span in self._codec.spans(self._page):
            hot = self._rows(self._hot[span.pool], span.hot_begin, span.num_buffers, span.buffer_bytes)
            cold = self._rows(self._cold, span.cold_begin, span.num_buffers, span.packed_bytes)
            sources, targets = (hot, cold) if self._is_packing else (cold, hot)
            found = np.concatenate(sources)
            if span.is_packed:
                found = self._codec.pack(found) if self._is_packing else self._codec.unpack(found)
            for position, target in enumerate(targets):
                target[:] = found[position * span.num_buffers : (position + 1) * span.num_buffers]

    def _rows(self, addresses: list[int], begin: int, count: int, num_bytes: int) -> list[Bytes]:
        """Of each page its buffers, as rows."""
        return [host_bytes(address + begin, count * num_bytes).reshape(count, num_bytes) for address in addresses]
