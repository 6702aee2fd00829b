"""The threads that move bytes from and to disk files: a queue of tasks, and jobs that wait for other jobs.

The caller's thread starts jobs and sees when they are done; the workers touch nothing but bytes, their queue and the rescue
table. Several tasks are under way at once, of one job or of several. A job that was started behind others that it conflicts
with begins when they are done, and one with gates when these are open, without the caller's help. Threads are made with the
first job.

Conservation: every job that was started waits for other jobs, or for its gates, or has tasks queued or running, or is done.
"""

from collections import deque
from threading import Condition, Lock, Thread
from typing import Final, final

from mypy_extensions import mypyc_attr

from ..base.errors import StorageIOError
from ..stats.statistics_clock import StatisticsClock
from .disk_extent import MAX_EXTENT_BYTES
from .disk_job import DiskJob
from .disk_transfers import DiskTransfers
from .staging_memory import StagingMemory

_GATE_SECONDS: Final = 0.0002
"""How often gates are looked at while there is nothing else to do."""


@final
@mypyc_attr(native_class=True)
class DiskWorkers:
    """Who creates it calls `close`, after the last job is done."""

    __slots__ = (
        "transfers", "num_done", "clock", "_failed_reads", "_num_threads", "_threads", "_tasks", "_gated", "_is_watched",
        "_work", "_progress", "_is_closing",
    )  # fmt: skip

    transfers: Final[DiskTransfers]
    num_done: int  # jobs; grows under the lock
    clock: StatisticsClock | None  # None: nobody wants to know when a job is done
    _failed_reads: list[StorageIOError]  # under the lock, until they are taken
    _num_threads: Final[int]
    _threads: Final[list[Thread]]
    _tasks: Final[deque[tuple[DiskJob, int]]]
    _gated: list[DiskJob]  # that wait for nothing but their gates
    _is_watched: bool  # a worker looks at the gates from time to time
    _work: Final[Condition]  # of the one lock: there is something to do
    _progress: Final[Condition]  # of the same: a job is done
    _is_closing: bool

    def __init__(self, num_threads: int) -> None:
        self.transfers = DiskTransfers()
        self.num_done = 0
        self.clock = None
        self._failed_reads = []
        self._num_threads = num_threads
        self._threads = []
        self._tasks = deque()
        self._gated = []
        self._is_watched = False
        lock = Lock()
        self._work = Condition(lock)
        self._progress = Condition(lock)
        self._is_closing = False

    def start(self, job: DiskJob, earlier_jobs: list[DiskJob]) -> None:
        """Begin, behind those of the earlier jobs that are not done."""
        while len(self._threads) < self._num_threads:
            thread = Thread(target=self._serve, name=f"kv-cache-disk-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        job.is_started = True
        with self._work:
            for earlier in earlier_jobs:
                if not earlier.is_done:
                    earlier.followers.append(job)
                    job.num_blockers += 1
            if job.num_blockers == 0:
                self._let_begin(job)

    def wait(self, job: DiskJob) -> None:
        """Block until the job, which was started, is done."""
        with self._progress:
            while not job.is_done:
                self._progress.wait()

    def wait_beyond(self, num_done: int) -> None:
        """Block until more than ``num_done`` jobs are done."""
        with self._progress:
            while self.num_done <= num_done:
                self._progress.wait()

    def take_failed_reads(self) -> list[StorageIOError]:
        """Since this was last asked, told or not."""
        with self._work:
            taken = self._failed_reads
            self._failed_reads = []
        return taken

    def close(self) -> None:
        with self._work:
            self._is_closing = True
            self._work.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    # -- on the workers' threads --------------------------------------------------------------------------------------

    def _serve(self) -> None:
        staging = StagingMemory(MAX_EXTENT_BYTES)
        task = self._take()
        while task is not None:
            self._carry_out(task[0], task[1], staging)
            task = self._take()
        staging.close()

    def _take(self) -> tuple[DiskJob, int] | None:
        """The next task; None when the workers are closing."""
        with self._work:
            self._open_gates()
            while not self._tasks and not self._is_closing:
                if self._gated and not self._is_watched:
                    self._is_watched = True
                    self._work.wait(_GATE_SECONDS)
                    self._is_watched = False
                    self._open_gates()
                else:
                    self._work.wait()
            if self._gated and not self._is_watched:
                # Whoever watches takes a task now; another one is to watch.
                self._work.notify()
            return self._tasks.popleft() if self._tasks else None

    def _carry_out(self, job: DiskJob, index: int, staging: StagingMemory) -> None:
        errors: list[StorageIOError] = []
        try:
            errors = job.run_task(index, self.transfers, staging)
        except Exception as error:
            # No disk's doing, but whoever waits for these bytes must hear of it.
            errors.append(StorageIOError(f"a copy of the DISK tier failed: {error!r}"))
        with self._progress:
            for found in errors:
                if found.is_write:
                    job.write_errors.append(found)
                elif job.read_error is None:
                    job.read_error = found
            job.num_left -= 1
            if job.num_left == 0:
                self._finish(job)

    # -- under the lock -----------------------------------------------------------------------------------------------

    def _let_begin(self, job: DiskJob) -> None:
        if job.gates:
            self._gated.append(job)
            self._work.notify()
        else:
            self._queue_tasks(job)

    def _open_gates(self) -> None:
        if not self._gated:
            return
        waiting = self._gated
        self._gated = []
        for job in waiting:
            if not self._try_begin(job):
                self._gated.append(job)

    def _try_begin(self, job: DiskJob) -> bool:
        try:
            for gate in job.gates:
                if not gate.is_open():
                    return False
        except Exception as error:
            job.read_error = StorageIOError(f"copies of the DISK tier were not made, for what they wait for failed: {error}")
            self._finish(job)
            return True
        self._queue_tasks(job)
        return True

    def _finish(self, job: DiskJob) -> None:
        if job.read_error is not None:
            # Before anybody can see that the job is over.
            self._failed_reads.append(job.read_error)
        if job.signal is not None:
            job.signal.give()
        if self.clock is not None:
            job.done_at = self.clock.seconds()
        job.is_done = True
        self.num_done += 1
        for follower in job.followers:
            follower.num_blockers -= 1
            if follower.num_blockers == 0:
                self._let_begin(follower)
        job.followers.clear()
        self._progress.notify_all()

    def _queue_tasks(self, job: DiskJob) -> None:
        num_tasks = job.num_tasks()
        for index in range(num_tasks):
            self._tasks.append((job, index))
        self._work.notify(num_tasks)
