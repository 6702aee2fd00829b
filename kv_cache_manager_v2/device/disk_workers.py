"""Worker threads that move bytes from and to disk files: a queue of tasks, and jobs that wait for other jobs.

The caller's thread starts jobs and sees when they are done. The workers touch only bytes, their queue and the `FailedWrites`, and call
no driver. Several tasks of one or several jobs run at once. A job that conflicts with earlier ones begins when they are done, and a job
with gates when these are open, without the caller's help. Threads are made with the first job.

**The caller may be interrupted anywhere** (Ctrl-C), so it holds no lock that a worker needs. It passes jobs through a queue whose calls
are single C calls, and waits at a latch which it alone takes and workers open. The workers' shared state is under their own lock, and no
signal reaches them. A job that was passed twice is done once; a job whose start was interrupted is abandoned when a caller waits for it.
No caller waits once the threads are gone: while Python ends, and in a forked process.

    state of a job   is_started     way out
    new              False          start: started; wait: abandoned
    started          True           a worker sees it: accepted
    accepted         True           no other job and no gate is left to wait for: queued; a gate fails for good: lost
    queued           True           its last task was run: done
    lost, abandoned  -              done

Conservation: every accepted job waits for other jobs, or for its gates, or has tasks queued or running, or is done.
"""

import os
import sys
import time
from _thread import start_new_thread
from queue import Empty, SimpleQueue
from threading import Lock, get_native_id, main_thread
from typing import Final, final


from ..base.errors import LogicError, OutOfMemoryError, StorageIOError
from ..stats.statistics_clock import StatisticsClock
from .disk_extent import MAX_EXTENT_BYTES
from .disk_job import DiskJob
from .disk_transfers import DiskTransfers
from .exit_drain import Drained, drain_at_exit, forget_at_exit
from .job_gate import GateWatch
from .staging_memory import StagingMemory
from .wakeup import Wakeup

_GATE_SECONDS: Final = 0.0002
"""The interval at which an idle worker looks at gates."""
_WATCH_SECONDS: Final = 0.05
"""The interval at which a waiting caller checks whether gates can open at all, and hears of a signal that another thread took, or that came
just before it waited."""

_START: Final = -1  # in place of a task's index: the job is new
_CLOSE: Final = -2  # without a job: each thread ends
_LOOK: Final = -3  # without a job: a worker must watch the gates


@final
class DiskWorkers(Drained):
    """The threads and their queue. Who creates it calls `close`, after the last job is done."""

    __slots__ = (
        "transfers", "num_done", "clock", "watch", "_num_threads", "_num_made", "_num_started", "_process", "_inbox", "_failed_reads",
        "_progress", "_obstacle", "_lock", "_gated", "_is_watched", "_num_ended", "_wakeups",
    )  # fmt: skip

    def __init__(self, num_threads: int) -> None:
        self.transfers: Final = DiskTransfers()
        self.num_done = 0  # jobs; grows under the lock
        self.clock: StatisticsClock | None = None  # None: the times of jobs are not needed
        self.watch: GateWatch | None = None  # None: there are no gates, or they cannot break
        self._num_threads: Final = num_threads
        self._num_made = 0  # threads, by the caller
        self._num_started = 0  # jobs, by the caller
        self._process: Final[int] = os.getpid()
        self._inbox: Final[SimpleQueue[tuple[DiskJob | None, int]]] = SimpleQueue()
        self._failed_reads: Final[SimpleQueue[StorageIOError]] = SimpleQueue()
        self._progress: Final = Lock()  # taken by the caller to wait; released by workers after each progress
        self._obstacle = ""  # why closed gates will never open
        self._lock: Final = Lock()  # of the workers; guards the fields below
        self._gated: list[DiskJob] = []  # jobs that wait only for their gates
        self._is_watched = False  # a worker looks at the gates from time to time
        self._num_ended = 0  # threads
        self._wakeups: tuple[Wakeup, ...] = ()  # given after each job; replaced, by the caller

    # -- on the caller's thread ---------------------------------------------------------------------------------------

    def start(self, job: DiskJob, earlier_jobs: list[DiskJob]) -> None:
        """Start the job, after those of the earlier jobs that are not done. Starting it again does no harm."""
        if not job.is_started:
            job.earlier_jobs = earlier_jobs
            self._hand_over(job)

    def _hand_over(self, job: DiskJob) -> None:
        if self._num_made < self._num_threads:
            self._make_threads()
        self._inbox.put((job, _START))
        job.is_started = True
        self._num_started += 1

    def _make_threads(self) -> None:
        if self._num_made == 0:
            drain_at_exit(self)
        while self._num_made < self._num_threads:
            try:
                start_new_thread(self._serve, (self._num_made,))
            except RuntimeError as error:
                if self._num_made > 0:
                    return
                raise OutOfMemoryError(f"the system gives no thread to move bytes from and to disks: {error}") from error
            # One too many, if this is interrupted, does no harm.
            self._num_made += 1

    def wait(self, job: DiskJob) -> None:
        """Block until the job is done."""
        if not job.is_started and not job.is_done:
            # A worker may have the job nevertheless; then it is done as usual.
            job.is_abandoned = True
            self._hand_over(job)
        while not job.is_done:
            self._wait_for_progress()

    def wait_beyond(self, num_done: int) -> None:
        """Block until more than ``num_done`` jobs are done."""
        while self.num_done <= num_done:
            self._wait_for_progress()

    def add_wakeup(self, wakeup: Wakeup) -> None:
        """From now on given after each job."""
        if not any([known is wakeup for known in self._wakeups]):
            self._wakeups = (*self._wakeups, wakeup)

    def remove_wakeup(self, wakeup: Wakeup) -> None:
        self._wakeups = tuple([known for known in self._wakeups if known is not wakeup])

    def take_failed_reads(self) -> list[StorageIOError]:
        """The failed reads since the last call, raised or not."""
        taken: list[StorageIOError] = []
        while not self._failed_reads.empty():
            taken.append(self._failed_reads.get())
        return taken

    def drain_until(self, deadline: float) -> None:
        seconds = deadline - time.monotonic()
        while self.num_done < self._num_started and seconds > 0 and os.getpid() == self._process:
            self._progress.acquire(True, seconds)
            seconds = deadline - time.monotonic()

    def close(self) -> None:
        """End the threads. Idempotent."""
        forget_at_exit(self)
        self._inbox.put((None, _CLOSE))
        while self._num_ended < self._num_made:
            self._wait_for_progress()
        self._num_made = 0
        self._num_ended = 0

    def _wait_for_progress(self) -> None:
        """Block until a worker has made progress since the last call of this method, even before this call; or for `_WATCH_SECONDS`."""
        if sys.is_finalizing() or os.getpid() != self._process:
            raise LogicError(
                "a copy from or to a disk is not done, and the threads that move them are gone: Python is ending, or this process is a "
                "fork of the one that has them"
            )
        if not self._progress.acquire(True, _WATCH_SECONDS):
            # Handlers of signals run where Python's own code does; between statements that are compiled none would.
            main_thread()
            if self.watch is not None and not self._obstacle:
                self._obstacle = self.watch.find_obstacle()

    # -- on the workers' threads --------------------------------------------------------------------------------------

    def _serve(self, number: int) -> None:
        _name_thread(f"kvcm-disk-{number}")
        staging = StagingMemory(MAX_EXTENT_BYTES)
        message = self._next()
        while message[1] != _CLOSE:
            job = message[0]
            if job is not None and message[1] == _START:
                self._accept(job)
            elif job is not None:
                self._carry_out(job, message[1], staging)
            message = self._next()
        staging.close()
        # For the next thread.
        self._inbox.put((None, _CLOSE))
        with self._lock:
            self._num_ended += 1
            self._record_progress()

    def _next(self) -> tuple[DiskJob | None, int]:
        """The next task; blocks until there is one. One of the workers opens gates meanwhile."""
        is_watching = self._try_to_watch(False)
        while is_watching:
            try:
                # Without a timeout: if another worker is faster, CPython 3.11 may then wait without any limit.
                message = self._inbox.get(False)
            except Empty:
                time.sleep(_GATE_SECONDS)
                is_watching = self._try_to_watch(True)
            else:
                # A worker that already watches must not put the message back for itself for ever.
                if message[1] != _LOOK:
                    self._leave_watch()
                    return message
        return self._inbox.get()

    def _try_to_watch(self, is_watching: bool) -> bool:
        with self._lock:
            self._open_gates()
            if self._is_watched and not is_watching:
                return False
            self._is_watched = len(self._gated) > 0
            return self._is_watched

    def _leave_watch(self) -> None:
        """Stop watching, to run a task; another worker must watch."""
        with self._lock:
            self._is_watched = False
            if self._gated:
                self._inbox.put((None, _LOOK))

    def _accept(self, job: DiskJob) -> None:
        with self._lock:
            if job.is_accepted:
                return
            job.is_accepted = True
            if job.is_abandoned:
                self._finish(job)
                return
        try:
            job.list_tasks()
        except Exception as error:
            job.lose_unplanned(repr(error), self.transfers)
            with self._lock:
                self._finish(job)
            return
        with self._lock:
            for earlier in job.earlier_jobs:
                if not earlier.is_done:
                    earlier.followers.append(job)
                    job.num_blockers += 1
            job.earlier_jobs = []
            if job.num_blockers == 0:
                self._let_begin(job)

    def _carry_out(self, job: DiskJob, index: int, staging: StagingMemory) -> None:
        errors: list[StorageIOError] = []
        try:
            errors = job.run_task(index, self.transfers, staging)
        except Exception as error:
            # Not the disk's fault, but the caller that waits for these bytes must get the error.
            errors.append(StorageIOError(f"a copy of the DISK tier failed: {error!r}"))
        with self._lock:
            for found in errors:
                if found.is_write:
                    job.write_errors.append(found)
                elif job.read_error is None or job.read_error.is_corrupt:
                    job.read_error = found
                if not found.is_write:
                    # Each of them names the bytes that are not there.
                    self._failed_reads.put(found)
            job.num_left -= 1
            if job.num_left == 0:
                self._finish(job)

    # -- under the workers' lock --------------------------------------------------------------------------------------

    def _let_begin(self, job: DiskJob) -> None:
        if job.gates:
            # The worker that made the job ready watches its gates, unless a worker does already.
            self._gated.append(job)
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
        reason = self._obstacle
        try:
            for gate in job.gates:
                if not gate.is_raised():
                    if not reason:
                        return False
                    raise LogicError(reason)
        except Exception as error:
            job.lose(f"what they wait for has failed: {error}", self.transfers)
            self._finish(job)
            return True
        self._queue_tasks(job)
        return True

    def _finish(self, job: DiskJob) -> None:
        if job.is_lost and job.read_error is not None:
            # It stands for all bytes of the job. Before any thread can see that the job is done.
            self._failed_reads.put(job.read_error)
        if job.signal is not None:
            job.signal.give()
        if self.clock is not None:
            job.done_at = self.clock.seconds()
        job.forget_extents()
        job.is_done = True
        self.num_done += 1
        for wakeup in self._wakeups:
            wakeup.give()
        for follower in job.followers:
            follower.num_blockers -= 1
            if follower.num_blockers == 0:
                self._let_begin(follower)
        job.followers.clear()
        self._record_progress()

    def _queue_tasks(self, job: DiskJob) -> None:
        for index in range(len(job.task_ends)):
            self._inbox.put((job, index))

    def _record_progress(self) -> None:
        if self._progress.locked():
            # Only the caller takes it, and not before this.
            self._progress.release()


def _name_thread(name: str) -> None:
    """The name that top, perf and debuggers show on Linux, at most 15 bytes. Other systems go without."""
    try:
        with open(f"/proc/self/task/{get_native_id()}/comm", "wb") as file:
            file.write(name.encode())
    except (OSError, MemoryError):
        pass
