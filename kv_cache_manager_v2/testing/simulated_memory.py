"""The simulated device's address ranges: real host memory, so that kernels can run on it.

An `AddressRange` has memory behind all of it from the moment it is reserved (the operating system allocates pages only
when they are written); *mapped* is a state in the shadow memory. So a stray access never crashes the
process: it is reported, or finds poison. Memory is poisoned when it is mapped and when it is unmapped, with different
patterns.

A released range keeps its addresses until the device is closed, so that a late access is recognised as one to freed
memory and never hits another range by chance.
"""

import ctypes
import mmap
from bisect import bisect_right
from typing import Final, final


from ..base.errors import OutOfMemoryError
from ..base.ids import CacheTier

MAPPED_POISON: Final = 0xA5
"""The contents of freshly mapped memory."""

UNMAPPED_POISON: Final = 0xDB
"""The contents of unmapped memory."""

_MAP_NORESERVE: Final[int] = getattr(mmap, "MAP_NORESERVE", 0x4000)  # named from Python 3.13 on


@final
class AddressRange:
    """Reserved addresses ``[address, address + num_bytes)`` of one tier. Ranges are never adjacent: there is a gap."""

    __slots__ = ("tier", "address", "num_bytes", "is_released", "_memory")

    def __init__(self, tier: CacheTier, num_bytes: int, alignment: int) -> None:
        try:
            # More than requested, so that the address can be aligned; the rest is the gap behind the range.
            memory = mmap.mmap(-1, num_bytes + alignment, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        except (OSError, OverflowError, ValueError) as error:
            raise OutOfMemoryError(f"no address range of {num_bytes} bytes for {tier.name}: {error}")
        self._memory: mmap.mmap = memory
        # The temporary view keeps the mapping busy only for the length of this line.
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.tier: Final = tier
        self.address: Final[int] = (address + alignment - 1) // alignment * alignment
        self.num_bytes: Final = num_bytes
        self.is_released = False

    def end(self) -> int:
        return self.address + self.num_bytes

    def release(self) -> None:
        """Return the memory to the operating system; the addresses stay reserved."""
        self.is_released = True
        self._memory.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Release the addresses too."""
        self.is_released = True
        self._memory.close()

    def describe(self) -> str:
        return f"the {self.tier.name} range [{self.address:#x}, {self.end():#x})"


@final
class AddressRanges:
    """Every range ever reserved; ranges never overlap."""

    __slots__ = ("_addresses", "_ranges")

    def __init__(self) -> None:
        self._addresses: Final[list[int]] = []
        self._ranges: Final[list[AddressRange]] = []

    def reserve(self, tier: CacheTier, num_bytes: int, alignment: int) -> AddressRange:
        address_range = AddressRange(tier, num_bytes, alignment)
        position = bisect_right(self._addresses, address_range.address)
        self._addresses.insert(position, address_range.address)
        self._ranges.insert(position, address_range)
        return address_range

    def find(self, address: int) -> AddressRange | None:
        """The range that contains this address, released or not."""
        position = bisect_right(self._addresses, address) - 1
        if position < 0:
            return None
        address_range = self._ranges[position]
        return address_range if address < address_range.end() else None

    def range_of(self, address: int) -> AddressRange:
        """The range that contains this address, which is in one."""
        address_range = self.find(address)
        assert address_range is not None, f"{address:#x} is in no range"
        return address_range

    def close(self) -> None:
        for address_range in self._ranges:
            address_range.close()
        self._ranges.clear()
        self._addresses.clear()
