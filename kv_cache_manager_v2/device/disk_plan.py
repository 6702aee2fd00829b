"""Plans of disk jobs: from a batch of copies to as few extents as possible."""

from mypy_extensions import i64

from ..base.ids import CacheTier
from .copy_runs import CopyRuns
from .disk_extent import MAX_EXTENT_BYTES, DiskExtent
from .disk_file import DiskFile
from .disk_job import DiskJob
from .disk_ranges import DiskRanges
from .port import CopyBatch


def plan_job(batch: CopyBatch, ranges: DiskRanges) -> DiskJob:
    """One job for a batch between disk and memory that the host can address, or from disk to disk.

    ``batch`` has at least one copy, and all its addresses are mapped.
    """
    runs = CopyRuns(batch)
    sources: list[DiskExtent] = []
    targets: list[DiskExtent] = []
    if batch.src_tier != CacheTier.DISK:
        targets = plan_extents(runs, ranges, True)
    elif batch.dst_tier != CacheTier.DISK:
        sources = plan_extents(runs, ranges, False)
    else:
        _plan_pairs(runs, ranges, sources, targets)
    for extent in sources:
        extent.make_ready()
    for extent in targets:
        extent.make_ready()
    return DiskJob(sources, targets, runs)


def plan_extents(runs: CopyRuns, ranges: DiskRanges, to_disk: bool) -> list[DiskExtent]:
    """The extents of the copies: adjacent ones on the disk together, wherever their bytes are in memory."""
    extents: list[DiskExtent] = []
    for disk, memory, size in _sort_runs(runs, to_disk):
        moved = 0
        while moved < size:
            file = ranges.file_of(disk)
            num_bytes = _bound_piece(file, disk + moved, size - moved)
            if not extents or not extents[-1].takes(disk + moved, num_bytes):
                extents.append(DiskExtent(file, disk + moved))
            extents[-1].add(memory + moved, num_bytes)
            moved += num_bytes
    return extents


def _bound_piece(file: DiskFile, address: int, num_bytes: int) -> int:
    """How many of so many bytes, from ``address`` on, may be moved in one piece. Watched slots are moved by whole chunks."""
    if file.watch is not None:
        offset = address - file.address
        num_bytes = min(num_bytes, int(file.watch.chunk_end(offset)) - offset)
    return min(num_bytes, MAX_EXTENT_BYTES)


def _sort_runs(runs: CopyRuns, to_disk: bool) -> list[tuple[int, int, int]]:
    """Disk address, memory address and size of each run, in the order of the disk."""
    sorted_runs: list[tuple[int, int, int]] = []
    index: i64 = 0
    while index < runs.count:
        dst: int = runs.dst_addresses[index]
        src: int = runs.src_addresses[index]
        size: int = runs.sizes[index]
        sorted_runs.append((dst, src, size) if to_disk else (src, dst, size))
        index += 1
    sorted_runs.sort()
    return sorted_runs


def _plan_pairs(runs: CopyRuns, ranges: DiskRanges, sources: list[DiskExtent], targets: list[DiskExtent]) -> None:
    """From disk to disk: the memory in between is the worker's, and is set when it runs."""
    index: i64 = 0
    while index < runs.count:
        dst: int = runs.dst_addresses[index]
        src: int = runs.src_addresses[index]
        left: int = runs.sizes[index]
        while left > 0:
            source_file = ranges.file_of(src)
            target_file = ranges.file_of(dst)
            num_bytes = _bound_piece(target_file, dst, _bound_piece(source_file, src, left))
            source = DiskExtent(source_file, src)
            source.add(0, num_bytes)
            target = DiskExtent(target_file, dst)
            target.add(0, num_bytes)
            sources.append(source)
            targets.append(target)
            dst += num_bytes
            src += num_bytes
            left -= num_bytes
        index += 1
