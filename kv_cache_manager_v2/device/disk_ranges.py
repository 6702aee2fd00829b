"""The DISK tier's ranges: each is a file, in an address space of their own.

Their addresses are far above those of memory, so that a stray one in another tier is noticed; there is a gap between two ranges.
Reserved and mapped bytes are recorded in a `RangeTable`, as for every tier.
"""

from typing import Final, final


from ..base.errors import OutOfMemoryError, StorageIOError
from ..base.ids import CacheTier
from .disk_file import DiskFile
from .file_port import FilePort
from .range_table import RangeTable
from .slot_watch import SlotWatch

DISK_TOTAL_BYTES: Final = 1 << 44
"""The upper bound of a range; how much space the disk has shows when it is mapped."""

_FIRST_ADDRESS: Final = 1 << 58
_END_ADDRESS: Final = 1 << 61
_MAX_RANGE_BYTES: Final = 1 << 56


@final
class DiskRanges:
    """The ranges. Law: one file per reserved range."""

    __slots__ = ("table", "port", "_granularity_bytes", "_files")

    def __init__(self, port: FilePort, granularity_bytes: int) -> None:
        self.table: Final = RangeTable(CacheTier.DISK, granularity_bytes)
        self._granularity_bytes: Final = granularity_bytes
        self.port: Final = port
        self._files: list[DiskFile] = []  # by address; replaced, as the workers look files up too

    def reserve(self, path: str, num_bytes: int, watch: SlotWatch | None = None) -> int:
        """``path``: a folder; with ``watch`` the path of a file that outlives the process."""
        self.table.validate_num_bytes(num_bytes)
        if path == "":
            raise ValueError("path is empty; give the folder of the disk range")
        address, index = self._find_addresses(num_bytes)
        self._files = [*self._files[:index], DiskFile(self.port, path, address, num_bytes, watch), *self._files[index:]]
        self.table.add(address, num_bytes)
        return address

    def release(self, address: int, num_bytes: int) -> None:
        self.table.require_releasable(address, num_bytes)
        file = self.file_of(address)
        self._files = [other for other in self._files if other is not file]
        self.table.remove(address)
        file.close()

    def map(self, address: int, num_bytes: int) -> None:
        reserved = self.table.require_unmapped(address, num_bytes)
        self.file_of(address).grow(address, num_bytes)
        reserved.mapped.add(address, address + num_bytes)

    def unmap(self, address: int, num_bytes: int) -> None:
        reserved = self.table.require_mapped(address, num_bytes)
        self.file_of(address).discard(address, num_bytes, reserved.mapped)
        reserved.mapped.remove(address, address + num_bytes)

    def file_of(self, address: int) -> DiskFile:
        """The file of the reserved range that contains the address."""
        for file in self._files:
            if file.address <= address < file.end():
                return file
        raise AssertionError(f"{address:#x} is in no file")

    def failure_of(self, address: int) -> StorageIOError | None:
        self.table.require_reserved(address)
        return self.file_of(address).failure

    def _find_addresses(self, num_bytes: int) -> tuple[int, int]:
        """The first gap that is wide enough, and the index of the file behind it."""
        if num_bytes <= _MAX_RANGE_BYTES:
            beg = _FIRST_ADDRESS
            for index in range(len(self._files) + 1):
                end = self._files[index].address if index < len(self._files) else _END_ADDRESS
                if beg + num_bytes + self._granularity_bytes <= end:
                    return beg, index
                if index < len(self._files):
                    beg = self._files[index].end() + self._granularity_bytes
        raise OutOfMemoryError(f"cannot reserve {num_bytes} bytes of addresses of the DISK tier: there are not so many")
