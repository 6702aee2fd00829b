"""A codec made of copies, which says whether it is lossless: a packed page is its buffers in reverse order, behind some bytes that are
never read.

Everything that a device checks of copies, it checks of these: who waits for whom, what was written, what fails. A page that is not
unpacked, or as one of another layer group, has wrong bytes.
"""

from collections.abc import Sequence
from typing import Final, final


from ..base.ids import CacheTier
from ..device.cold_page_codec import ColdPageCodec
from ..device.port import CopyBatch, Device
from ..layout.slot_desc import SlotDescVariant


@final
class ReversingCodec(ColdPageCodec):
    """``num_padding_bytes`` in front of each packed page, and one more for each layer group before it."""

    __slots__ = ("_num_padding_bytes", "_is_lossless")

    def __init__(self, num_padding_bytes: int, is_lossless: bool = True) -> None:
        self._num_padding_bytes: Final[int] = num_padding_bytes
        self._is_lossless: Final[bool] = is_lossless

    @property
    def identity(self) -> str:
        return f"reversing/1 {self._num_padding_bytes}"

    @property
    def is_lossless(self) -> bool:
        return self._is_lossless

    def cold_bytes(self, page: SlotDescVariant) -> int:
        buffers = sum([buffer.single_buffer_size * buffer.num_buffers for buffer in page.coalesced_buffers])
        return self._padding(page) + buffers

    def encode(
        self, device: Device, stream: int, page: SlotDescVariant, hot_addresses: Sequence[Sequence[int]], cold_addresses: Sequence[int]
    ) -> None:
        self._copy(device, stream, page, hot_addresses, cold_addresses, True)

    def decode(
        self, device: Device, stream: int, page: SlotDescVariant, hot_addresses: Sequence[Sequence[int]], cold_addresses: Sequence[int]
    ) -> None:
        self._copy(device, stream, page, hot_addresses, cold_addresses, False)

    def _padding(self, page: SlotDescVariant) -> int:
        return self._num_padding_bytes + page.layer_group_id

    def _copy(
        self, device: Device, stream: int, page: SlotDescVariant, hot: Sequence[Sequence[int]], cold: Sequence[int], is_packing: bool
    ) -> None:
        begin = self._padding(page)
        for pool in reversed(range(len(page.coalesced_buffers))):
            coalesced = page.coalesced_buffers[pool]
            size = coalesced.single_buffer_size
            target, source = (CacheTier.HOST_MEM, CacheTier.GPU_MEM) if is_packing else (CacheTier.GPU_MEM, CacheTier.HOST_MEM)
            batch = CopyBatch(target, source, size)
            for position in reversed(range(coalesced.num_buffers)):
                for number in range(len(cold)):
                    high, low = hot[pool][number] + position * size, cold[number] + begin
                    if is_packing:
                        batch.add(low, high)
                    else:
                        batch.add(high, low)
                begin += size
            device.copy_batch(stream, batch)
