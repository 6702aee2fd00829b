"""The bounce slot: one slot of host memory for each pool group, outside every quota. Where two levels are full, pages swap through it.

Where a codec packs pages there are three: both pages are saved as they are before either is packed or unpacked, so that an exchange that
is undone leaves the bytes that there were, and the page that is packed waits in the third, as a codec reaches no disk.

Without it a suspended sequence whose pages lie below could never be onboarded again while every level is full of pages that
must stay.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.errors import StorageIOError
from ..base.ids import CacheTier
from ..device.memory_range import MemoryRange
from ..device.port import CopyBatch, Device
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
        """By pool group and pool; with a packer, two for packed pages behind them."""

    def open(self, slot_bytes: list[tuple[int, ...]]) -> None:
        try:
            for group_bytes in slot_bytes:
                ranges: list[MemoryRange] = []
                self._ranges.append(ranges)
                for num_bytes in group_bytes:
                    memory = MemoryRange(self._device, CacheTier.HOST_MEM, num_bytes)
                    ranges.append(memory)
                    memory.resize(num_bytes)
        except BaseException:
            self.close()
            raise

    def addresses(self) -> list[list[int]]:
        """By pool group and pool."""
        return [[memory.address for memory in ranges] for ranges in self._ranges]

    def swap(self, stream: int, pool_group: i64, low: PoolGroup, low_slot: i64, high: PoolGroup, high_slot: i64, waits: bool) -> None:
        """Enqueue the exchange; where the device refuses a copy, the exchange is undone and its error raised.

        An assertion fails where it refuses to undo it as well: then bytes of a held page are lost, and the manager is broken.
        ``waits``: not before what ``low`` holds was read for certain.
        """
        pool: i64 = 0
        try:
            while pool < len(low.slot_bytes):
                self._swap_pool(stream, pool_group, pool, low, low_slot, high, high_slot, waits)
                pool += 1
        except AssertionError:
            raise
        except Exception as error:
            self._swap_back(stream, pool_group, pool, low, low_slot, high, high_slot, error)
            raise

    def swap_packed(
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
        """`swap` where a codec packs pages: ``rising`` comes from below, ``sinking`` goes there."""
        packer = self._packer
        assert packer is not None
        ranges = self._ranges[pool_group]
        num_pools = len(high.slot_bytes)
        num_bytes = low.slot_bytes[0]
        address = low.base_addresses[0] + low_slot * num_bytes
        saved, packed = ranges[num_pools].address, ranges[num_pools + 1].address
        for pool in range(num_pools):
            size = high.slot_bytes[pool]
            self._copy(stream, CacheTier.HOST_MEM, ranges[pool].address, high.tier, high.base_addresses[pool] + high_slot * size, size)
        if waits:
            self._wait(stream)
        self._copy(stream, CacheTier.HOST_MEM, saved, low.tier, address, num_bytes)
        if waits:
            self._device.synchronize_stream(stream)
        is_written = False
        try:
            packer.pack(stream, vec[i64]([sinking]), high, vec[i64]([high_slot]), vec[i64]([i64(packed)]))
            packer.unpack(stream, vec[i64]([rising]), high, vec[i64]([high_slot]), vec[i64]([i64(saved)]))
            is_written = True
            self._copy(stream, low.tier, address, CacheTier.HOST_MEM, packed, num_bytes)
        except Exception as error:
            self._put_back_saved(stream, pool_group, low, low_slot, high, high_slot, is_written, error)
            raise

    def _put_back_saved(
        self, stream: int, pool_group: i64, low: PoolGroup, low_slot: i64, high: PoolGroup, high_slot: i64, is_written: bool, why: Exception
    ) -> None:
        """Both slots as they were before `swap_packed`; that of ``low`` if it may have been written to. What reads it is waited for."""
        ranges = self._ranges[pool_group]
        num_bytes = low.slot_bytes[0]
        try:
            for pool in range(len(high.slot_bytes)):
                size = high.slot_bytes[pool]
                self._copy(stream, high.tier, high.base_addresses[pool] + high_slot * size, CacheTier.HOST_MEM, ranges[pool].address, size)
            if is_written:
                if low.tier == CacheTier.DISK:
                    self._wait(stream)
                saved = ranges[len(high.slot_bytes)].address
                self._copy(stream, low.tier, low.base_addresses[0] + low_slot * num_bytes, CacheTier.HOST_MEM, saved, num_bytes)
        except Exception:
            raise _describe_lost_bytes(why) from why

    def undo_swap(
        self, stream: int, pool_group: i64, low: PoolGroup, low_slot: i64, high: PoolGroup, high_slot: i64, why: Exception
    ) -> None:
        """After a `swap` or `swap_packed` that was enqueued. An assertion fails as there."""
        if self._packer is not None:
            self._put_back_saved(stream, pool_group, low, low_slot, high, high_slot, True, why)
        else:
            self._swap_back(stream, pool_group, len(low.slot_bytes), low, low_slot, high, high_slot, why)

    def _swap_back(
        self, stream: int, pool_group: i64, num_pools: i64, low: PoolGroup, low_slot: i64, high: PoolGroup, high_slot: i64, why: Exception
    ) -> None:
        """Swapped again, what was swapped is back: the first pools. Disk reads for it are waited for: no later call looks at them."""
        is_disk = low.tier == CacheTier.DISK
        try:
            while num_pools > 0:
                num_pools -= 1
                self._swap_pool(stream, pool_group, num_pools, low, low_slot, high, high_slot, is_disk)
        except Exception:
            raise _describe_lost_bytes(why) from why

    def _swap_pool(
        self, stream: int, pool_group: i64, pool: i64, low: PoolGroup, low_slot: i64, high: PoolGroup, high_slot: i64, waits: bool
    ) -> None:
        num_bytes = low.slot_bytes[pool]
        bounce_address: i64 = self._ranges[pool_group][pool].address
        low_address = low.base_addresses[pool] + low_slot * num_bytes
        high_address = high.base_addresses[pool] + high_slot * num_bytes
        if waits:
            self._wait(stream)
        self._copy(stream, CacheTier.HOST_MEM, bounce_address, low.tier, low_address, num_bytes)
        if waits:
            self._device.synchronize_stream(stream)
        try:
            self._copy(stream, low.tier, low_address, high.tier, high_address, num_bytes)
        except Exception as error:
            try:
                self._copy(stream, low.tier, low_address, CacheTier.HOST_MEM, bounce_address, num_bytes)
            except Exception:
                raise _describe_lost_bytes(error) from error
            raise
        try:
            self._copy(stream, high.tier, high_address, CacheTier.HOST_MEM, bounce_address, num_bytes)
        except Exception as error:
            is_disk = low.tier == CacheTier.DISK
            try:
                if is_disk:
                    self._wait(stream)
                self._copy(stream, high.tier, high_address, low.tier, low_address, num_bytes)
                if is_disk:
                    self._device.synchronize_stream(stream)
                self._copy(stream, low.tier, low_address, CacheTier.HOST_MEM, bounce_address, num_bytes)
            except Exception:
                raise _describe_lost_bytes(error) from error
            raise

    def _wait(self, stream: int) -> None:
        """For all that is enqueued. A read that failed before is not raised, lest it is taken for one behind: `DiskReads` hears of it from
        the device."""
        try:
            self._device.synchronize_stream(stream)
        except StorageIOError:
            return

    def _copy(self, stream: int, target_tier: CacheTier, target: i64, source_tier: CacheTier, source: i64, num_bytes: i64) -> None:
        batch = CopyBatch(target_tier, source_tier, num_bytes)
        batch.add(target, source)
        self._device.copy_batch(stream, batch)

    def close(self) -> None:
        for ranges in self._ranges:
            for memory in ranges:
                memory.close()
        self._ranges.clear()


def _describe_lost_bytes(error: Exception) -> AssertionError:
    return AssertionError(f"the device refused to swap two pages, and to undo what it had done of it: {error!r}")
