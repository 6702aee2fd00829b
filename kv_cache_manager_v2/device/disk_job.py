"""A batch of copies from or to disk files, cut into pieces that worker threads can carry out in any order.

A job is made by the device's caller, handed to `DiskWorkers`, and looked at by the caller again when `is_done`. Pieces that
are neighbours on both sides are one piece, up to the size of one transfer.
"""

import logging
from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from ..base.errors import StorageIOError
from ..base.ids import CacheTier
from .copy_runs import CopyRuns
from .disk_file import DIRECT_ALIGNMENT, DiskFile
from .disk_ranges import DiskRanges
from .disk_transfers import MAX_TRANSFER_BYTES, DiskTransfers, Staging
from .port import CopyBatch


_logger: Final = logging.getLogger(__name__)


@final
@mypyc_attr(native_class=True)
class DiskJob:
    """Pieces ``[i]``: ``dst_addresses[i] <- src_addresses[i]``, ``sizes[i]`` bytes; tasks are runs of pieces.

    The fields behind ``num_left`` belong to `DiskWorkers` and its lock until the job is done.
    """

    __slots__ = (
        "dst_tier", "src_tier", "is_started", "_runs", "_dst_addresses", "_src_addresses", "_sizes", "_dst_files",
        "_src_files", "_task_ends", "num_left", "num_blockers", "followers", "is_done", "read_error", "write_errors",
    )  # fmt: skip

    dst_tier: Final[CacheTier]
    src_tier: Final[CacheTier]
    is_started: bool  # handed to the workers
    _runs: Final[CopyRuns]
    _dst_addresses: vec[i64]
    _src_addresses: vec[i64]
    _sizes: vec[i64]
    _dst_files: Final[list[DiskFile]]  # by piece; empty where that side is memory
    _src_files: Final[list[DiskFile]]
    _task_ends: Final[list[int]]
    num_left: int  # tasks
    num_blockers: int  # jobs that must be done before this one begins
    followers: list["DiskJob"]
    is_done: bool
    read_error: StorageIOError | None
    write_errors: list[StorageIOError]

    def __init__(self, batch: CopyBatch, ranges: DiskRanges) -> None:
        """``batch`` has at least one copy, and all its addresses are mapped."""
        self.dst_tier = batch.dst_tier
        self.src_tier = batch.src_tier
        self.is_started = False
        self._runs = CopyRuns(batch)
        self._dst_addresses = vec[i64]()
        self._src_addresses = vec[i64]()
        self._sizes = vec[i64]()
        self._dst_files = []
        self._src_files = []
        self._task_ends = []
        self._cut_runs(ranges)
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
            for file in self._dst_files:
                if file.address <= error.address < file.end() and file.failure is None:
                    file.failure = error
                    _logger.error("%s; these bytes are kept in memory", error)

    def run_task(self, index: int, transfers: DiskTransfers, staging: Staging) -> list[StorageIOError]:
        """Carry out one task, on any thread; what went wrong."""
        errors: list[StorageIOError] = []
        piece = self._task_ends[index - 1] if index > 0 else 0
        while piece < self._task_ends[index]:
            dst: int = self._dst_addresses[piece]
            src: int = self._src_addresses[piece]
            num_bytes: int = self._sizes[piece]
            error: StorageIOError | None = None
            if not self._src_files:
                error = transfers.write(self._dst_files[piece], dst, src, num_bytes, staging)
            elif not self._dst_files:
                error = transfers.read(self._src_files[piece], src, dst, num_bytes, staging)
            else:
                memory = staging.address()
                error = transfers.read(self._src_files[piece], src, memory, num_bytes, staging)
                if error is None:
                    error = transfers.write(self._dst_files[piece], dst, memory, num_bytes, staging)
            if error is not None:
                errors.append(error)
            piece += 1
        return errors

    def _cut_runs(self, ranges: DiskRanges) -> None:
        runs = self._runs
        from_disk = self.src_tier == CacheTier.DISK
        to_disk = self.dst_tier == CacheTier.DISK
        dsts = self._dst_addresses
        srcs = self._src_addresses
        sizes = self._sizes
        task_bytes: i64 = 0
        index: i64 = 0
        while index < runs.count:
            dst = runs.dst_addresses[index]
            src = runs.src_addresses[index]
            left = runs.sizes[index]
            while left > 0:
                num_bytes: i64 = MAX_TRANSFER_BYTES if left > MAX_TRANSFER_BYTES else left
                if to_disk:
                    self._dst_files.append(_file_for(ranges, dst, num_bytes))
                if from_disk:
                    self._src_files.append(_file_for(ranges, src, num_bytes))
                if task_bytes > 0 and task_bytes + num_bytes > MAX_TRANSFER_BYTES:
                    self._task_ends.append(len(sizes))
                    task_bytes = 0
                dsts = append(dsts, dst)
                srcs = append(srcs, src)
                sizes = append(sizes, num_bytes)
                task_bytes += num_bytes
                dst += num_bytes
                src += num_bytes
                left -= num_bytes
            index += 1
        self._task_ends.append(len(sizes))
        self._dst_addresses = dsts
        self._src_addresses = srcs
        self._sizes = sizes


def _file_for(ranges: DiskRanges, address: i64, num_bytes: i64) -> DiskFile:
    """The file of that address, made ready for a piece that may not be aligned."""
    file = ranges.file_of(address)
    if file.is_direct and ((address - file.address) % DIRECT_ALIGNMENT != 0 or num_bytes % DIRECT_ALIGNMENT != 0):
        file.become_buffered()
    return file
