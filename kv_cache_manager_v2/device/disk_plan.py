"""Plans of disk jobs: from a batch of copies to as few extents as possible.

A job between disk and memory that the host can address is planned by the worker that begins it, so that its caller does little more than
pass on the addresses.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.errors import StorageIOError
from ..base.growing_arrays import reserve_words
from ..base.ids import CacheTier
from ..base.package_log import PackageLog
from .copy_runs import CopyRuns
from .disk_extent import MAX_EXTENT_BYTES, DiskExtent
from .disk_file import DiskFile
from .disk_ranges import DiskRanges
from .disk_transfers import DiskTransfers
from .port import CopyBatch
from .slot_watch import SlotTicket

_logger: Final = PackageLog(__name__)


@final
class BatchPlan:
    """A batch between disk and memory that the host can address, or from disk to disk, and what the writes to its file are for.

    It has at least one copy, and all its addresses are mapped; what it writes to a watched file is all of one file.
    """

    __slots__ = ("_batch", "_ranges", "_target", "_ticket", "_runs")

    def __init__(self, batch: CopyBatch, ranges: DiskRanges) -> None:
        # The caller may reuse its batch at once.
        copied = CopyBatch(batch.dst_tier, batch.src_tier, batch.num_bytes)
        copied.dst_addresses = batch.dst_addresses[: batch.count]
        copied.src_addresses = batch.src_addresses[: batch.count]
        copied.count = batch.count
        self._batch: Final[CopyBatch] = copied
        self._ranges: Final = ranges
        target = ranges.file_of(batch.dst_addresses[0]) if batch.dst_tier == CacheTier.DISK else None
        self._target: Final[DiskFile | None] = target
        self._ticket: Final[SlotTicket | None] = target.watch.current_ticket() if target is not None and target.watch is not None else None
        self._runs: CopyRuns | None = None

    def runs(self) -> CopyRuns:
        """The runs of the whole batch. Called by any thread."""
        runs = self._runs
        if runs is None:
            # Two threads at once make the same.
            runs = CopyRuns(self._batch)
            self._runs = runs
        return runs

    def list_extents(self, sources: list[DiskExtent], targets: list[DiskExtent]) -> None:
        """Fill the lists of a `DiskJob`."""
        runs = self.runs()
        if self._batch.src_tier != CacheTier.DISK:
            targets.extend(plan_extents(runs, self._ranges, True))
        elif self._batch.dst_tier != CacheTier.DISK:
            sources.extend(plan_extents(runs, self._ranges, False))
        else:
            _plan_pairs(runs, self._ranges, sources, targets)
        for extent in sources:
            extent.check_alignment()
        for extent in targets:
            extent.ticket = self._ticket if extent.file is self._target else None
            extent.check_alignment()

    def lose(self, reason: str, transfers: DiskTransfers) -> StorageIOError:
        """The extents cannot be listed: what the job was to write is lost, and its file has failed."""
        batch = self._batch
        target = self._target
        if target is None:
            return StorageIOError(f"{batch.count} copies from the DISK tier were not made: {reason}")
        for address in batch.dst_addresses:
            transfers.rescued.lose(address, batch.num_bytes)
        num_bytes = batch.count * batch.num_bytes
        error = target.make_error(f"{num_bytes} bytes were never written", batch.dst_addresses[0], num_bytes, True, reason)
        if target.failure is None:
            target.failure = error
            _logger.error("%s; these bytes are %s", error, "lost")
        return error


def plan_extents(runs: CopyRuns, ranges: DiskRanges, to_disk: bool) -> list[DiskExtent]:
    """The extents of the copies: adjacent ones on the disk together, wherever their bytes are in memory."""
    disks = runs.dst_addresses if to_disk else runs.src_addresses
    memories = runs.src_addresses if to_disk else runs.dst_addresses
    sizes = runs.sizes
    order = _order_of(disks, runs.count)
    extents: list[DiskExtent] = []
    file: DiskFile | None = None
    last: DiskExtent | None = None
    for index in range(runs.count):
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
    return extents


def _bound_piece(file: DiskFile, address: int, num_bytes: int) -> int:
    """How many of so many bytes, from ``address`` on, may be moved in one piece. Watched slots are moved by whole chunks."""
    if file.watch is not None:
        offset = address - file.address
        num_bytes = min(num_bytes, int(file.watch.chunk_end(offset)) - offset)
        # A chunk is in one slot, and a slot in one folder.
    return min(num_bytes, MAX_EXTENT_BYTES)


def _order_of(disks: vec[i64], count: i64) -> vec[i64]:
    """The runs in the order of the disk; empty if they are in that order already, as slots that were allocated together mostly are."""
    rises = True
    falls = True
    for index in range(1, count):
        if disks[index] < disks[index - 1]:
            rises = False
        else:
            falls = False
    order = vec[i64]()
    if rises:
        return order
    order = reserve_words(order, count)
    if falls:
        for index in range(count - 1, -1, -1):
            order = append(order, index)
    else:
        for _disk, run in sorted([(int(disks[number]), int(number)) for number in range(count)]):
            order = append(order, run)
    return order


def _plan_pairs(runs: CopyRuns, ranges: DiskRanges, sources: list[DiskExtent], targets: list[DiskExtent]) -> None:
    """From disk to disk: the memory in between is the worker's, and is set when it runs."""
    for index in range(runs.count):
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
