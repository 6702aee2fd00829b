"""How fast copies through the device port are, beside the plain system calls that move the same bytes in the same run.

    python -P benchmarks/disk_copies.py [--folder DIR] [--mib 256] [--rounds 5] [--buffered]

Disk: a file is written and read once from end to end by `pwrite` and `pread` on one thread, 1 MiB at a time, and in the same round
by the host device in batches of pages: pages in order, and memory pages shuffled. Where disk pages are shuffled, the same calls for
single pages in that order are the measure. Both use the page cache or neither. Memory: `memcpy` page by page against batches
of pages, both into pages in shuffled order. The best of the rounds counts, as everything that disturbs a round makes it slower.
"""

import argparse
import ctypes
import random
import tempfile
import time
from collections.abc import Callable, Sequence

from kv_cache_manager_v2 import CacheTier, CopyBatch, HostDevice
from kv_cache_manager_v2.device.file_port import FilePort
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.os_files import OsFiles

MIB = 1 << 20
KIB = 1 << 10
BATCH_BYTES = 16 * MIB
GPU, HOST, DISK = CacheTier.GPU_MEM, CacheTier.HOST_MEM, CacheTier.DISK


class BufferedFiles(FilePort):
    """The operating system's files through the page cache, whatever the file system can do."""

    def __init__(self) -> None:
        self._files = OsFiles()

    def open_file(self, path: str, is_direct: bool) -> int:
        if is_direct:
            raise OSError(22, "the page cache was asked for")
        return self._files.open_file(path, False)

    def close_file(self, file: int) -> None:
        self._files.close_file(file)

    def become_buffered(self, file: int) -> None:
        self._files.become_buffered(file)

    def grow(self, file: int, offset: int, num_bytes: int) -> None:
        self._files.grow(file, offset, num_bytes)

    def discard(self, file: int, offset: int, num_bytes: int, is_last: bool) -> None:
        self._files.discard(file, offset, num_bytes, is_last)

    def free_bytes(self, path: str) -> int:
        return self._files.free_bytes(path)

    def transfer(self, file: int, is_write: bool, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> int:
        return self._files.transfer(file, is_write, addresses, sizes, offset)


def seconds(action: Callable[..., None], *arguments: object) -> float:
    began = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - began


class Disk:
    """A device with a disk range and as much memory; and a plain file of the same size."""

    def __init__(self, folder: str, num_bytes: int, files: FilePort) -> None:
        self.num_bytes = num_bytes
        self.files = files
        self.device = HostDevice(files=files)
        self.disk = MemoryRange(self.device, DISK, num_bytes, folder)
        self.memory = MemoryRange(self.device, HOST, num_bytes)
        self.disk.resize(num_bytes)
        self.memory.resize(num_bytes)
        ctypes.memset(self.memory.address, 1, num_bytes)
        try:
            self.plain = files.open_file(folder, True)
            self.is_direct = True
        except OSError:
            self.plain = files.open_file(folder, False)
            self.is_direct = False
        files.grow(self.plain, 0, num_bytes)

    def transfer_plainly(self, is_write: bool, piece_bytes: int, pieces: Sequence[int]) -> None:
        for piece in pieces:
            offset = piece * piece_bytes
            moved = self.files.transfer(self.plain, is_write, [self.memory.address + offset], [piece_bytes], offset)
            assert moved == piece_bytes

    def batches(self, to_disk: bool, page_bytes: int, memory_pages: list[int], disk_pages: list[int]) -> list[CopyBatch]:
        batches: list[CopyBatch] = []
        per_batch = BATCH_BYTES // page_bytes
        for first in range(0, len(disk_pages), per_batch):
            batch = CopyBatch(DISK if to_disk else HOST, HOST if to_disk else DISK, page_bytes)
            for index in range(first, min(first + per_batch, len(disk_pages))):
                on_disk = self.disk.address + disk_pages[index] * page_bytes
                in_memory = self.memory.address + memory_pages[index] * page_bytes
                batch.add(on_disk if to_disk else in_memory, in_memory if to_disk else on_disk)
            batches.append(batch)
        return batches

    def run(self, batches: list[CopyBatch]) -> None:
        for batch in batches:
            self.device.copy_batch(0, batch)
        self.device.synchronize_stream(0)

    def close(self) -> None:
        self.files.close_file(self.plain)
        self.disk.close()
        self.memory.close()
        self.device.close()


def measure_disk(folder: str, num_bytes: int, rounds: int, files: FilePort) -> None:
    disk = Disk(folder, num_bytes, files)
    print(f"disk: {folder}, {num_bytes // MIB} MiB, {'past' if disk.is_direct else 'through'} the page cache")
    generator = random.Random(1)
    for page_bytes in (32 * KIB, 256 * KIB, 1 * MIB):
        in_order = list(range(num_bytes // page_bytes))
        shuffled = generator.sample(in_order, len(in_order))
        for is_write in (True, False):
            cases = {
                "in order": disk.batches(is_write, page_bytes, in_order, in_order),
                "memory shuffled": disk.batches(is_write, page_bytes, shuffled, in_order),
                "disk shuffled": disk.batches(is_write, page_bytes, in_order, shuffled),
            }
            in_order_seconds = shuffled_seconds = float("inf")
            ours = {name: float("inf") for name in cases}
            for _ in range(rounds):
                in_order_seconds = min(
                    in_order_seconds, seconds(disk.transfer_plainly, is_write, MIB, range(num_bytes // MIB))
                )
                shuffled_seconds = min(
                    shuffled_seconds, seconds(disk.transfer_plainly, is_write, page_bytes, shuffled)
                )
                for name, batches in cases.items():
                    ours[name] = min(ours[name], seconds(disk.run, batches))
            print(f"  {'write' if is_write else 'read'}, pages of {page_bytes // KIB} KiB", end="")
            for name, ours_seconds in ours.items():
                plain_seconds = shuffled_seconds if name == "disk shuffled" else in_order_seconds
                megabytes = num_bytes / 1e6
                print(f"; {name} {100 * plain_seconds / ours_seconds:.0f} % of {megabytes / plain_seconds:.0f} MB/s", end="")
            print()
    disk.close()


def copy_plainly(pairs: list[tuple[int, int]], page_bytes: int) -> None:
    for dst, src in pairs:
        ctypes.memmove(dst, src, page_bytes)


def copy_batches(device: HostDevice, batches: list[CopyBatch]) -> None:
    for batch in batches:
        device.copy_batch(0, batch)


def measure_memory(rounds: int) -> None:
    num_bytes = 128 * MIB
    device = HostDevice()
    source, target = MemoryRange(device, HOST, num_bytes), MemoryRange(device, GPU, num_bytes)
    for memory in (source, target):
        memory.resize(num_bytes)
        ctypes.memset(memory.address, 1, num_bytes)
    generator = random.Random(2)
    print(f"memory: {num_bytes // MIB} MiB, pages in shuffled order, batches of {BATCH_BYTES // MIB} MiB")
    for page_bytes in (4 * KIB, 32 * KIB, 256 * KIB):
        pages = generator.sample(range(num_bytes // page_bytes), num_bytes // page_bytes)
        pairs = [(target.address + page * page_bytes, source.address + i * page_bytes) for i, page in enumerate(pages)]
        batches: list[CopyBatch] = []
        for first in range(0, len(pairs), BATCH_BYTES // page_bytes):
            batch = CopyBatch(GPU, HOST, page_bytes)
            for dst, src in pairs[first : first + BATCH_BYTES // page_bytes]:
                batch.add(dst, src)
            batches.append(batch)
        plain = ours = float("inf")
        for _ in range(rounds):
            plain = min(plain, seconds(copy_plainly, pairs, page_bytes))
            ours = min(ours, seconds(copy_batches, device, batches))
        print(f"  pages of {page_bytes // KIB} KiB: memcpy {num_bytes / plain / 1e6:.0f} MB/s; ours {100 * plain / ours:.0f} %")
    source.close()
    target.close()
    device.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--buffered", action="store_true", help="through the page cache")
    options = parser.parse_args()
    measure_memory(options.rounds)
    measure_disk(options.folder, options.mib * MIB, options.rounds, BufferedFiles() if options.buffered else OsFiles())


if __name__ == "__main__":
    main()
