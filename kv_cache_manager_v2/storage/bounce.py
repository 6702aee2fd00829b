"""The bounce slots: host memory for two pages of each pool group, outside every quota. Where two levels are full, pages swap through it.

Both pages are saved as they are before either is overwritten, so that an exchange that is undone leaves the bytes that there were. Where a
codec packs pages, the page that is packed waits in a third slot, as a codec reaches no disk.

Without them a suspended sequence whose pages lie below could never be onboarded again while every level is full of pages that
must stay.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.errors import StorageIOError
from ..base.ids import CacheTier
from ..device.memory_range import MemoryRange
from ..device.port import CopyBatch, Device
from ..layout.slot_layout import SlotLayout
from ..pools.pool_group import PoolGroup
from .page_packer import PagePacker


@final
class BounceSlots:
    """Owns its memory from `open` until `close`. Used by one stream: in stream order it is always free."""

    __slots__ = ("_device", "_packer", "_ranges")

    def __init__(self, device: Device, packer: PagePacker | None) -> None:
        self._device: Final = device
        self._packer: Final = packer
        self._ranges: Final[list[list[MemoryRange]]] = []
        """By pool group: for each pool of level 0, for each one below it, and, with a packer, for what is packed."""

    def open(self, layout: SlotLayout) -> None:
        """An error leaves what `close` releases."""
        for pool_group in range(layout.num_pool_groups):
            ranges: list[MemoryRange] = []
            self._ranges.append(ranges)
            for num_bytes in layout.slot_bytes(pool_group) + layout.slot_bytes(pool_group, 1) * (1 if self._packer is None else 2):
                memory = MemoryRange(self._device, CacheTier.HOST_MEM, num_bytes)
                ranges.append(memory)
                memory.resize(num_bytes)

    def addresses(self) -> list[list[int]]:
        """By pool group, of its ranges."""
        return [[memory.address for memory in ranges] for ranges in self._ranges]

    def swap(
        self,
        stream: int,
        pool_group: i64,
        low: PoolGroup,
        low_slot: i64,
        high: PoolGroup,
        high_slot: i64,
        waits: bool,
        rising: i64,
        sinking: i64,
    ) -> None:
        """Enqueue the exchange: the page ``rising`` comes from below, ``sinking`` goes there. Where the device refuses a copy, the exchange
        is undone and its error raised. ``waits``: not before what ``low`` holds was read for certain."""
        ranges = self._ranges[pool_group]
        saved = ranges[len(high.slot_bytes) :]
        self._copy(stream, high, high_slot, ranges, False)
        if waits:
            self._wait(stream)
        self._copy(stream, low, low_slot, saved, False)
        if waits:
            self._device.synchronize_stream(stream)
        is_written = False
        packer = self._packer
        try:
            if packer is None:
                self._copy(stream, high, high_slot, saved, True)
            else:
                packer.pack(stream, vec[i64]([sinking]), high, vec[i64]([high_slot]), vec[i64]([i64(saved[1].address)]))
                packer.unpack(stream, vec[i64]([rising]), high, vec[i64]([high_slot]), vec[i64]([i64(saved[0].address)]))
            is_written = True
            self._copy(stream, low, low_slot, ranges if packer is None else saved[1:], True)
        except Exception as error:
            self.undo_swap(stream, pool_group, low, low_slot, high, high_slot, is_written, error)
            raise

    def undo_swap(
        self, stream: int, pool_group: i64, low: PoolGroup, low_slot: i64, high: PoolGroup, high_slot: i64, is_written: bool, why: Exception
    ) -> None:
        """Both slots as they were before `swap`, that of ``low`` if it may have been written to; what reads it is waited for.

        An assertion fails where the device refuses that as well: then bytes of a held page are lost, and the manager is broken.
        """
        ranges = self._ranges[pool_group]
        try:
            self._copy(stream, high, high_slot, ranges, True)
            if is_written:
                if low.tier == CacheTier.DISK:
                    self._wait(stream)
                self._copy(stream, low, low_slot, ranges[len(high.slot_bytes) :], True)
        except Exception:
            raise AssertionError(f"the device refused to swap two pages, and to undo what it had done of it: {why!r}") from why

    def _wait(self, stream: int) -> None:
        """For all that is enqueued. A read that failed before is not raised, lest it is taken for one behind: `DiskReads` hears of it from
        the device."""
        try:
            self._device.synchronize_stream(stream)
        except StorageIOError:
            return

    def _copy(self, stream: int, group: PoolGroup, slot: i64, memories: list[MemoryRange], is_back: bool) -> None:
        """A slot to these ranges, one for each pool; or back from there."""
        for pool in range(len(group.slot_bytes)):
            num_bytes = group.slot_bytes[pool]
            address = group.base_addresses[pool] + slot * num_bytes
            memory: i64 = memories[pool].address
            batch = CopyBatch(group.tier if is_back else CacheTier.HOST_MEM, CacheTier.HOST_MEM if is_back else group.tier, num_bytes)
            batch.add(address if is_back else memory, memory if is_back else address)
            self._device.copy_batch(stream, batch)

    def close(self) -> None:
        for ranges in self._ranges:
            for memory in ranges:
                memory.close()
        self._ranges.clear()
