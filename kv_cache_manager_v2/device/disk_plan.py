"""Plans of disk jobs: from a batch of copies to as few extents as possible."""

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.growing_arrays import reserve_words
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
    disks = runs.dst_addresses if to_disk else runs.src_addresses
    memories = runs.src_addresses if to_disk else runs.dst_addresses
    sizes = runs.sizes
    order = _order_of(disks, runs.count)
    extents: list[DiskExtent] = []
    file: DiskFile | None = None
    last: DiskExtent | None = None
    index: i64 = 0
    while index < runs.count:
        run = index if len(order) == 0 else order[index]
        disk: int = disks[run]
        memory: int = memories[run]
        left: int = sizes[run]
        if file is None or not file.address <= disk < file.end():
            file = ranges.file_of(disk)
        while left > 0:
            num_bytes = _bound_piece(file, disk, left)
            if last is None or not last.takes(disk, num_bytes) or file.begins_unit(disk):
                last = DiskExtent(file, disk)
                extents.append(last)
            last.add(memory, num_bytes)
            disk += num_bytes
            memory += num_bytes
            left -= num_bytes
        index += 1
    return extents


def _bound_piece(file: DiskFile, address: int, num_bytes: int) -> int:
    """How many of so many bytes, from ``address`` on, may be moved in one piece. Watched slots are moved by whole chunks."""
    if file.watch is not None:
        offset = address - file.address
        num_bytes = min(num_bytes, int(file.watch.chunk_end(offset)) - offset)
        # A chunk is in one slot, and a unit of a file in several folders is some slots: no chunk is in two folders.
    return min(num_bytes, MAX_EXTENT_BYTES)


def _order_of(disks: vec[i64], count: i64) -> vec[i64]:
    """The runs in the order of the disk; empty if they are in that order already, as slots that were allocated together mostly are."""
    rises = True
    falls = True
    index: i64 = 1
    while index < count:
        if disks[index] < disks[index - 1]:
            rises = False
        else:
            falls = False
        index += 1
    order = vec[i64]()
    if rises:
        return order
    order = reserve_words(order, count)
    if falls:
        index = count - 1
        while index >= 0:
            order = append(order, index)
            index -= 1
    else:
        for _disk, run in sorted([(int(disks[number]), int(number)) for number in range(count)]):
            order = append(order, run)
    return order


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
