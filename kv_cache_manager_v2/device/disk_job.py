"""Disk jobs: copies from or to disk files, cut into tasks that worker threads can run in any order; or copies in memory, one task.

The device's caller makes a job (`disk_plan`), passes it to `DiskWorkers`, and looks at it again when `is_done`.
From disk to disk the bytes pass through memory of the worker.
"""

from typing import Final, final

from ..base.errors import StorageIOError
from ..base.package_log import PackageLog
from .copy_runs import CopyRuns
from .disk_extent import MAX_EXTENT_BYTES, DiskExtent
from .disk_plan import BatchPlan
from .disk_transfers import DiskTransfers
from .host_copy import move_runs
from .job_gate import JobFlag
from .staging_memory import StagingMemory
from .watched_slots import fail_write

_logger: Final = PackageLog(__name__)


@final
class DiskJob:
    """A job; a task is a run of extents. The fields from ``is_accepted`` on are `DiskWorkers`' and under its lock until it is done."""

    __slots__ = (
        "is_started", "is_abandoned", "is_reported", "_runs", "_plan", "_sources", "_targets", "task_ends", "gates", "signal",
        "earlier_jobs", "is_accepted", "num_left", "num_blockers", "followers", "is_lost", "is_done", "done_at", "read_error",
        "write_errors",
    )  # fmt: skip

    def __init__(
        self, sources: list[DiskExtent], targets: list[DiskExtent], plan: BatchPlan | None = None, runs: CopyRuns | None = None
    ) -> None:
        """``sources`` are read, ``targets`` are written; pairs of both for copies from disk to disk, neither for copies in memory.

        ``plan``: lists the extents of both once a worker has accepted the job, and not its caller. ``runs``: of copies in memory.
        """
        self.is_started = False  # passed to the workers
        self.is_abandoned = False  # the call that started it was interrupted: if it has not begun, it never does
        self.is_reported = False  # its failed read was raised
        self._runs: Final = runs
        self._plan: Final = plan
        self._sources = sources  # empty if the bytes come from memory
        self._targets = targets  # empty if the bytes are copied to memory
        self.task_ends: Final[list[int]] = []
        if plan is None:
            self._cut_tasks(sources if sources else targets)
        self.gates: Final[list[JobFlag]] = []  # it begins when all of them are raised
        self.signal: JobFlag | None = None  # raised when it is done
        self.earlier_jobs: list["DiskJob"] = []  # it begins when these are done
        self.is_accepted = False  # a worker has seen it
        self.num_left: int = len(self.task_ends)  # tasks
        self.num_blockers = 0  # jobs that must be done before this one begins
        self.followers: list["DiskJob"] = []
        self.is_lost = False  # it never began, and its targets are lost
        self.is_done = False
        self.done_at = 0.0  # by the workers' clock; 0.0 without one
        self.read_error: StorageIOError | None = None
        self.write_errors: list[StorageIOError] = []

    def conflicts_with(self, other: "DiskJob") -> bool:
        """Whether the two jobs could touch the same bytes, one of them writing. May be True too often, never False.

        Addresses of the disk and of memory are disjoint, so the tiers need no check.
        """
        ours = self._find_runs()
        theirs = other._find_runs()
        if ours is None or theirs is None:
            return True
        return (
            (ours.dst_beg < theirs.dst_end and theirs.dst_beg < ours.dst_end)
            or (ours.dst_beg < theirs.src_end and theirs.src_beg < ours.dst_end)
            or (ours.src_beg < theirs.dst_end and theirs.dst_beg < ours.src_end)
        )

    def _find_runs(self) -> CopyRuns | None:
        return self._runs if self._plan is None else self._plan.runs()

    def list_tasks(self) -> None:
        """Called once, by the worker that has accepted the job, before it begins."""
        plan = self._plan
        if plan is not None:
            plan.list_extents(self._sources, self._targets)
            self._cut_tasks(self._sources if self._sources else self._targets)
            self.num_left = len(self.task_ends)

    def lose_unplanned(self, reason: str, transfers: DiskTransfers) -> None:
        """`list_tasks` has failed. Called by a worker thread."""
        self.is_lost = True
        self._sources.clear()
        self._targets.clear()
        if self._plan is not None:
            error = self._plan.lose(reason, transfers)
            if not error.is_write:
                self.read_error = error

    def forget_extents(self) -> None:
        """The job is about to be done: its caller needs them where a write has failed only."""
        if not self.write_errors:
            # Not emptied: the caller may have the lists too.
            self._sources = []
            self._targets = []

    def record_failed_writes(self) -> None:
        """The job is done: record its failed writes in its files and in the log."""
        for error in self.write_errors:
            for extent in self._targets:
                if extent.address == error.address and extent.file.failure is None:
                    extent.file.failure = error
                    _logger.error("%s; these bytes are %s", error, "lost" if self.is_lost else "kept in memory")

    def lose(self, reason: str, transfers: DiskTransfers) -> None:
        """The job never begins: fail its reads, and mark its writes as lost. Called by a worker thread."""
        self.is_lost = True
        for target in self._targets:
            self.write_errors.append(transfers.lose(target, reason))
        if self._sources:
            first = self._sources[0]
            end = max([source.address + source.num_bytes for source in self._sources])
            beg = min([source.address for source in self._sources])
            self.read_error = first.file.make_error(f"copies from {end - beg} bytes were not made", beg, end - beg, False, reason)

    def run_task(self, index: int, transfers: DiskTransfers, staging: StagingMemory) -> list[StorageIOError]:
        """Run one task, on any thread; returns its errors."""
        errors: list[StorageIOError] = []
        if self._runs is not None and not self._sources and not self._targets:
            move_runs(self._runs)
        for position in range(self.task_ends[index - 1] if index > 0 else 0, self.task_ends[index]):
            error: StorageIOError | None = None
            if not self._sources:
                error = transfers.write(self._targets[position])
            elif not self._targets:
                errors.extend(transfers.read_and_verify(self._sources[position]))
            else:
                source = self._sources[position]
                target = self._targets[position]
                source.place(staging.address())
                target.place(staging.address())
                failed_reads = transfers.read_and_verify(source)
                errors.extend(failed_reads)
                if not failed_reads:
                    error = transfers.write(target)
                elif target.file.watch is not None:
                    fail_write(target, target.file.watch)
            if error is not None:
                errors.append(error)
        return errors

    def _cut_tasks(self, extents: list[DiskExtent]) -> None:
        task_bytes = 0
        for position in range(len(extents)):
            num_bytes = extents[position].num_bytes
            if task_bytes > 0 and task_bytes + num_bytes > MAX_EXTENT_BYTES:
                self.task_ends.append(position)
                task_bytes = 0
            task_bytes += num_bytes
        self.task_ends.append(len(extents))
