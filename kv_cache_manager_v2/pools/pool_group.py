"""A pool group at one level: pools allocated in lockstep, the memory behind them, and which slots are free.

Owns one `MemoryRange` per pool and the `SlotAllocator`. Slot ``i`` is at ``base_addresses[p] + i * slot_bytes[p]`` in every
pool ``p``. Slot 0 is the null slot where one is reserved: it has memory, has no user and is not counted.
"""

from collections.abc import Sequence
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.ids import CacheTier
from ..device.memory_range import MemoryRange
from ..device.port import Device
from ..device.slot_watch import SlotWatch
from .slot_allocator import SlotAllocator


@final
class PoolGroup:
    __slots__ = ("tier", "slot_bytes", "base_addresses", "allocator", "_ranges")

    def __init__(
        self,
        device: Device,
        tier: CacheTier,
        slot_bytes: tuple[int, ...],
        num_slots: int,
        num_null_slots: int,
        path: str | None = None,
        max_slots: int = 0,
        watches: Sequence[SlotWatch] | None = None,
    ) -> None:
        """Reserves and maps ``num_slots + num_null_slots`` slots; `OutOfMemoryError` leaves nothing behind.

        ``path``: the folder of the pools' files, for the DISK tier; with ``watches``, one for each pool, what the names of files that
        outlive the process begin with. ``max_slots``: what there may be later, if more than now: addresses for them are reserved.
        """
        self.tier: Final = tier
        self.slot_bytes: Final = vec[i64](slot_bytes)
        self.allocator: Final = SlotAllocator(num_slots, num_null_slots)
        most_slots = max(num_slots, max_slots) + num_null_slots
        self._ranges: Final = _map_ranges(device, tier, slot_bytes, num_slots + num_null_slots, most_slots, path, watches)
        self.base_addresses: Final = vec[i64]([memory.address for memory in self._ranges])

    def resize_memory(self, num_slots: i64) -> None:
        """Have memory for ``num_slots`` slots and the null slots; what the device refuses, by any error, leaves all as it was.

        Before shrinking, the caller made sure that no stream touches the slots that go.
        """
        all_slots = num_slots + self.allocator.first_slot
        old_bytes = [memory.mapped_bytes for memory in self._ranges]
        try:
            for memory, slot_bytes in zip(self._ranges, self.slot_bytes):
                memory.resize(int(all_slots * slot_bytes))
        except BaseException:
            for memory, num_bytes in zip(self._ranges, old_bytes):
                memory.resize(num_bytes)
            raise

    def close(self) -> None:
        """Unmap and release all memory. The caller has synchronised."""
        for memory in self._ranges:
            memory.close()
        self._ranges.clear()


def _map_ranges(
    device: Device, tier: CacheTier, slot_bytes: tuple[int, ...], all_slots: int, most_slots: int, path: str | None,
    watches: Sequence[SlotWatch] | None,
) -> list[MemoryRange]:  # fmt: skip
    """One for each pool; where the device refuses, none."""
    ranges: list[MemoryRange] = []
    try:
        for pool, num_bytes in enumerate(slot_bytes):
            name = path if watches is None else f"{path}-{pool}"
            memory = MemoryRange(device, tier, most_slots * num_bytes, name, None if watches is None else watches[pool])
            ranges.append(memory)
            memory.resize(all_slots * num_bytes)
    except BaseException:
        for memory in ranges:
            memory.close()
        raise
    return ranges
