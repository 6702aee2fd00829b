"""What tests of disks work on, over `FakeFiles`: slots of each tier of a device, or one file and memory."""

import ctypes
from collections.abc import Iterable

from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.disk_extent import DiskExtent
from kv_cache_manager_v2.device.disk_file import DiskFile
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.port import CopyBatch, Device

from .fake_files import FakeFiles

GPU, HOST, DISK = CacheTier.GPU_MEM, CacheTier.HOST_MEM, CacheTier.DISK
PAGE = 4096
BASE = 1 << 58


class TierBench:
    """So many slots of each tier; each of the host's is filled with its number."""

    def __init__(self, device: Device, files: FakeFiles, slot_bytes: int = PAGE, num_slots: int = 16) -> None:
        self.files = files
        self.slot_bytes = slot_bytes
        self.ranges = {
            tier: MemoryRange(device, tier, num_slots * slot_bytes, "/nowhere" if tier == DISK else None) for tier in (GPU, HOST, DISK)
        }
        for memory in self.ranges.values():
            memory.resize(num_slots * slot_bytes)
        for slot in range(num_slots):
            ctypes.memset(self.address(HOST, slot), slot, slot_bytes)

    def address(self, tier: CacheTier, slot: int) -> int:
        return self.ranges[tier].address + slot * self.slot_bytes

    def batch(self, dst: CacheTier, src: CacheTier, pairs: Iterable[tuple[int, int]], num_bytes: int = 0) -> CopyBatch:
        """Of whole slots, unless ``num_bytes`` says how much of each."""
        batch = CopyBatch(dst, src, num_bytes or self.slot_bytes)
        for dst_slot, src_slot in pairs:
            batch.add(self.address(dst, dst_slot), self.address(src, src_slot))
        return batch

    def value(self, tier: CacheTier, slot: int) -> int:
        """The byte that fills the slot."""
        (value,) = set(ctypes.string_at(self.address(tier, slot), self.slot_bytes))
        return value

    def close(self) -> None:
        self.files.let_go()
        for memory in self.ranges.values():
            memory.close()


class FileBench:
    """One file of that many pages, and page-aligned memory for as many."""

    def __init__(self, num_pages: int) -> None:
        self.files = FakeFiles()
        self.file = DiskFile(self.files, "/nowhere", BASE, num_pages * PAGE)
        self.file.grow(BASE, num_pages * PAGE)
        self._buffer = ctypes.create_string_buffer((num_pages + 1) * PAGE)
        self.memory = (ctypes.addressof(self._buffer) + PAGE - 1) // PAGE * PAGE

    def extent(self, first_page: int, memory: int, num_pages: int = 1, pieces: int = 1) -> DiskExtent:
        extent = DiskExtent(self.file, BASE + first_page * PAGE)
        size = num_pages * PAGE // pieces
        for index in range(pieces):
            extent.add(memory + index * size, size)
        extent.make_ready()
        return extent

    def on_disk(self, first_page: int, num_pages: int = 1) -> bytes:
        return bytes(self.files.contents[self.file.file][first_page * PAGE : (first_page + num_pages) * PAGE])
