"""A growable memory range: addresses reserved once, of which a growing and shrinking first part is mapped.

One per pool. The address never changes, and bytes that stay mapped keep their contents. All or
nothing: if `resize` raises, as much is mapped as before.
"""

from typing import Final, final


from ..base.errors import LogicError
from ..base.handle import Handle
from ..base.ids import CacheTier
from .port import Device
from .slot_watch import SlotWatch


@final
class MemoryRange(Handle):
    """A memory range. Law: exactly ``[address, address + mapped_bytes)`` is mapped. Who creates it calls `close`."""

    __slots__ = ("tier", "address", "max_bytes", "mapped_bytes", "_device", "_granularity_bytes", "_is_closed")

    def __init__(self, device: Device, tier: CacheTier, max_bytes: int, path: str | None = None, watch: SlotWatch | None = None) -> None:
        """``path``: the folder of the range's file, for the DISK tier and for no other; with ``watch`` the path of a file that outlives
        the process."""
        if (path is not None) != (tier == CacheTier.DISK):
            raise ValueError(f"path is {path!r} for a range of {tier.name}: a folder goes with DISK, and only with DISK")
        if max_bytes <= 0:
            raise ValueError(f"max_bytes is {max_bytes}: a memory range needs at least 1 byte to grow to")
        granularity_bytes = device.granularity_bytes(tier)
        self._device: Final = device
        self.tier: Final = tier
        self._granularity_bytes: Final[int] = granularity_bytes
        self.max_bytes: Final[int] = (max_bytes + granularity_bytes - 1) // granularity_bytes * granularity_bytes
        """The largest size: the requested one, rounded up to the device's granularity."""
        self.mapped_bytes = 0
        """The mapped bytes from `address` on: a multiple of the device's granularity."""
        self._is_closed = False
        self.address: Final[int] = _reserve(device, tier, self.max_bytes, path, watch)
        """The first address; the same for the life of the range."""

    def resize(self, num_bytes: int) -> None:
        """Map at least the first ``num_bytes``, and nothing beyond their last granule.

        Before shrinking, the caller makes sure that no stream touches the part to be unmapped.
        """
        if self._is_closed:
            raise LogicError("this memory range is closed; make a new one")
        if num_bytes < 0 or num_bytes > self.max_bytes:
            raise ValueError(f"{num_bytes} bytes asked of a range that can have 0 to {self.max_bytes}")
        granularity_bytes = self._granularity_bytes
        new_bytes = (num_bytes + granularity_bytes - 1) // granularity_bytes * granularity_bytes
        old_bytes = self.mapped_bytes
        if new_bytes > old_bytes:
            self._device.map_memory(self.tier, self.address + old_bytes, new_bytes - old_bytes)
        elif new_bytes < old_bytes:
            self._device.unmap_memory(self.tier, self.address + new_bytes, old_bytes - new_bytes)
        self.mapped_bytes = new_bytes

    def close(self) -> None:
        """Release memory and addresses. Idempotent; if it raises, it may be called again."""
        if self._is_closed:
            return
        self.resize(0)
        self._device.release_range(self.tier, self.address, self.max_bytes)
        self._is_closed = True


def _reserve(device: Device, tier: CacheTier, num_bytes: int, path: str | None, watch: SlotWatch | None) -> int:
    if path is None:
        return device.reserve_range(tier, num_bytes)
    if watch is None:
        return device.reserve_disk_range(path, num_bytes)
    return device.reserve_durable_range(path, num_bytes, watch)
