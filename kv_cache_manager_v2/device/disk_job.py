"""A batch of copies from or to disk files, cut into tasks that worker threads can carry out in any order.

A job is made by the device's caller, handed to `DiskWorkers`, and looked at by the caller again when `is_done`. Copies that
are neighbours on the disk are moved together, wherever their bytes are in memory. From disk to disk the bytes go through
memory that the worker brings along.
"""

import logging
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from ..base.errors import StorageIOError
from ..base.ids import CacheTier
from .copy_runs import CopyRuns
from .disk_extent import MAX_EXTENT_BYTES, DiskExtent
from .disk_ranges import DiskRanges
from .disk_transfers import DiskTransfers
from .port import CopyBatch
from .staging_memory import StagingMemory

_logger: Final = logging.getLogger(__name__)


@final
@mypyc_attr(native_class=True)
class DiskJob:
    """A task is a run of extents. The fields from ``num_left`` on belong to `DiskWorkers` and its lock until it is done."""

    __slots__ = (
        "is_started", "_runs", "_sources", "_targets", "_task_ends", "num_left", "num_blockers", "followers", "is_done",
        "read_error", "write_errors",
    )  # fmt: skip

    is_started: bool  # handed to the workers
    _runs: Final[CopyRuns]
    _sources: list[DiskExtent]  # to be read; empty where the bytes come from memory
    _targets: list[DiskExtent]  # to be written; empty where they go to memory
    _task_ends: Final[list[int]]
    num_left: int  # tasks
    num_blockers: int  # jobs that must be done before this one begins
    followers: list["DiskJob"]
    is_done: bool
    read_error: StorageIOError | None
    write_errors: list[StorageIOError]

    def __init__(self, batch: CopyBatch, ranges: DiskRanges) -> None:
        """``batch`` has at least one copy, and all its addresses are mapped."""
        self.is_started = False
        self._runs = CopyRuns(batch)
        self._sources = []
        self._targets = []
        self._task_ends = []
        if batch.src_tier != CacheTier.DISK:
            self._targets = _make_extents(_sort_runs(self._runs, True), ranges)
            self._cut_tasks(self._targets)
        elif batch.dst_tier != CacheTier.DISK:
            self._sources = _make_extents(_sort_runs(self._runs, False), ranges)
            self._cut_tasks(self._sources)
        else:
            self._add_disk_pairs(ranges)
            self._cut_tasks(self._sources)
        self.num_left = len(self._task_ends)
        self.num_blockers = 0
        self.followers = []
        self.is_done = False
        self.read_error = None
        self.write_errors = []

    def num_tasks(self) -> int:
        return len(self._task_ends)

    def conflicts_with(self, other: "DiskJob") -> bool:
        """Whether the two could touch the same bytes, one of them writing; True may be said too often.

        Addresses of the disk and of memory never meet, so the tiers need no look.
        """
        ours = self._runs
        theirs = other._runs
        return (
            (ours.dst_beg < theirs.dst_end and theirs.dst_beg < ours.dst_end)
            or (ours.dst_beg < theirs.src_end and theirs.src_beg < ours.dst_end)
            or (ours.src_beg < theirs.dst_end and theirs.dst_beg < ours.src_end)
        )

    def note_failed_writes(self) -> None:
        """Once the job is done: what its files remember, and what the log hears of it."""
        for error in self.write_errors:
            for extent in self._targets:
                if extent.address == error.address and extent.file.failure is None:
                    extent.file.failure = error
                    _logger.error("%s; these bytes are kept in memory", error)

    def run_task(self, index: int, transfers: DiskTransfers, staging: StagingMemory) -> list[StorageIOError]:
        """Carry out one task, on any thread; what went wrong."""
        errors: list[StorageIOError] = []
        position = self._task_ends[index - 1] if index > 0 else 0
        while position < self._task_ends[index]:
            error: StorageIOError | None = None
            if not self._sources:
                error = transfers.write(self._targets[position])
            elif not self._targets:
                error = transfers.read(self._sources[position])
            else:
                source = self._sources[position]
                target = self._targets[position]
                source.addresses[0] = staging.address()
                target.addresses[0] = staging.address()
                error = transfers.read(source)
                if error is None:
                    error = transfers.write(target)
            if error is not None:
                errors.append(error)
            position += 1
        return errors

    def _add_disk_pairs(self, ranges: DiskRanges) -> None:
        """From disk to disk; where the memory is, shows when a worker brings it."""
        runs = self._runs
        index: i64 = 0
        while index < runs.count:
            dst: int = runs.dst_addresses[index]
            src: int = runs.src_addresses[index]
            left: int = runs.sizes[index]
            while left > 0:
                num_bytes = min(left, MAX_EXTENT_BYTES)
                source = DiskExtent(ranges.file_of(src), src)
                source.add(0, num_bytes)
                source.make_ready()
                target = DiskExtent(ranges.file_of(dst), dst)
                target.add(0, num_bytes)
                target.make_ready()
                self._sources.append(source)
                self._targets.append(target)
                dst += num_bytes
                src += num_bytes
                left -= num_bytes
            index += 1

    def _cut_tasks(self, extents: list[DiskExtent]) -> None:
        task_bytes = 0
        for position in range(len(extents)):
            num_bytes = extents[position].num_bytes
            if task_bytes > 0 and task_bytes + num_bytes > MAX_EXTENT_BYTES:
                self._task_ends.append(position)
                task_bytes = 0
            task_bytes += num_bytes
        self._task_ends.append(len(extents))


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


def _make_extents(sorted_runs: list[tuple[int, int, int]], ranges: DiskRanges) -> list[DiskExtent]:
    extents: list[DiskExtent] = []
    for disk, memory, size in sorted_runs:
        moved = 0
        while moved < size:
            num_bytes = min(size - moved, MAX_EXTENT_BYTES)
            if not extents or not extents[-1].takes(disk + moved, num_bytes):
                extents.append(DiskExtent(ranges.file_of(disk), disk + moved))
            extents[-1].add(memory + moved, num_bytes)
            moved += num_bytes
    for extent in extents:
        extent.make_ready()
    return extents
