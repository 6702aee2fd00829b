"""What devices with memory share: ranges of three tiers with a table each, and the files and threads of the DISK tier.

Every address is checked against the tables before anything happens. A device says how memory of the other two tiers is reserved and
mapped, and how the work of the disk is followed, by overriding the first few methods.
"""

from typing import Final


from ..base.errors import LogicError, StorageIOError
from ..base.ids import CacheTier
from .disk_ranges import DISK_TOTAL_BYTES, DiskRanges
from .disk_workers import DiskWorkers
from .file_port import FilePort
from .host_memory import release_addresses, reserve_addresses, total_host_bytes
from .os_files import OsFiles
from .port import CopyBatch, Device
from .range_table import RangeTable
from .slot_watch import SlotWatch


class RangedDevice(Device):
    __slots__ = ("_gpu_ranges", "_host_ranges", "_disk_ranges", "_workers", "_is_closed")

    def __init__(self, gpu_granularity_bytes: int, granularity_bytes: int, files: FilePort | None, num_disk_threads: int) -> None:
        self._gpu_ranges: Final = RangeTable(CacheTier.GPU_MEM, gpu_granularity_bytes)
        self._host_ranges: Final = RangeTable(CacheTier.HOST_MEM, granularity_bytes)
        self._disk_ranges: Final = DiskRanges(OsFiles() if files is None else files, granularity_bytes)
        self._workers: Final = DiskWorkers(num_disk_threads)
        self._is_closed = False

    # -- what a device defines ----------------------------------------------------------------------------------------

    def _is_file(self, tier: CacheTier) -> bool:
        """Whether the ranges of that tier are files; the methods below are asked for the memory of the others."""
        return tier == CacheTier.DISK

    def _reserve(self, tier: CacheTier, num_bytes: int) -> int:
        return reserve_addresses(num_bytes, self._host_ranges.granularity_bytes)

    def _release(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        release_addresses(address, num_bytes)

    def _map(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        raise NotImplementedError("RangedDevice._map is for subclasses to define")

    def _unmap(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        raise NotImplementedError("RangedDevice._unmap is for subclasses to define")

    def _prepare_disk(self) -> None:
        """A range of DISK is about to be reserved."""

    def _poll_disk(self) -> None:
        """Record what the threads of the disk have done, where there are any."""

    def _drain_disk(self) -> None:
        """Block until the threads of the disk have done everything, where there are any."""

    # -- memory -------------------------------------------------------------------------------------------------------

    def granularity_bytes(self, tier: CacheTier) -> int:
        return self._ranges(tier).granularity_bytes

    def total_bytes(self, tier: CacheTier) -> int:
        return DISK_TOTAL_BYTES if tier == CacheTier.DISK else total_host_bytes()

    def reserve_range(self, tier: CacheTier, num_bytes: int) -> int:
        self._require_open()
        ranges = self._ranges(tier)
        if tier == CacheTier.DISK:
            raise ValueError("a range of DISK needs a folder for its file; use reserve_disk_range")
        ranges.validate_num_bytes(num_bytes)
        address = self._reserve(tier, num_bytes)
        ranges.add(address, num_bytes)
        return address

    def reserve_disk_range(self, path: str, num_bytes: int) -> int:
        self._require_open()
        self._prepare_disk()
        return self._disk_ranges.reserve(path, num_bytes)

    def file_port(self) -> FilePort | None:
        return self._disk_ranges.port

    def reserve_durable_range(self, path: str, num_bytes: int, watch: SlotWatch) -> int:
        self._require_open()
        self._prepare_disk()
        return self._disk_ranges.reserve(path, num_bytes, watch)

    def disk_failure(self, address: int) -> StorageIOError | None:
        self._require_open()
        self._poll_disk()
        return self._disk_ranges.failure_of(address)

    def take_failed_reads(self) -> list[StorageIOError]:
        self._require_open()
        return self._workers.take_failed_reads()

    def release_range(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self._require_open()
        if self._is_file(tier):
            self._disk_ranges.release(address, num_bytes)
            return
        ranges = self._ranges(tier)
        ranges.require_releasable(address, num_bytes)
        self._release(tier, address, num_bytes)
        ranges.remove(address)

    def map_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self._require_open()
        if self._is_file(tier):
            self._disk_ranges.map(address, num_bytes)
            return
        reserved = self._ranges(tier).require_unmapped(address, num_bytes)
        self._map(tier, address, num_bytes)
        reserved.mapped.add(address, address + num_bytes)

    def unmap_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self._require_open()
        # The caller has made sure that no work touches these bytes. A thread that does would crash, and a GPU may wait for a thread.
        self._drain_disk()
        if self._is_file(tier):
            self._disk_ranges.unmap(address, num_bytes)
            self._workers.transfers.rescued.forget_unmapped(address, num_bytes)
            return
        reserved = self._ranges(tier).require_mapped(address, num_bytes)
        self._unmap(tier, address, num_bytes)
        reserved.mapped.remove(address, address + num_bytes)

    # -- checks -------------------------------------------------------------------------------------------------------

    def _validate_batch(self, batch: CopyBatch) -> None:
        if batch.num_bytes <= 0:
            raise ValueError(f"a batch of copies of {batch.num_bytes} bytes each: it must be positive")
        self._ranges(batch.dst_tier).require_accessible(batch.dst_addresses, batch.count, batch.num_bytes)
        self._ranges(batch.src_tier).require_accessible(batch.src_addresses, batch.count, batch.num_bytes)

    def _validate_fill(self, address: int, num_bytes: int, value: int) -> None:
        if value < 0 or value > 255:
            raise ValueError(f"a fill with {value}: a byte is 0 to 255")
        self._gpu_ranges.require_bytes(address, num_bytes, "a fill")

    def _require_released(self) -> None:
        tables = (self._gpu_ranges, self._host_ranges, self._disk_ranges.table)
        num_ranges = sum([table.num_ranges() for table in tables])
        if num_ranges > 0:
            num_bytes = sum([table.reserved_bytes() for table in tables])
            raise LogicError(f"{num_ranges} ranges with {num_bytes} bytes are still reserved; release_range them first")

    def _require_open(self) -> None:
        if self._is_closed:
            raise LogicError("this device is closed; make a new one")

    def _ranges(self, tier: CacheTier) -> RangeTable:
        if tier == CacheTier.GPU_MEM:
            return self._gpu_ranges
        return self._host_ranges if tier == CacheTier.HOST_MEM else self._disk_ranges.table
