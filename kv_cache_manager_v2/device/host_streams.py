"""Queues of a host device's streams: normally empty, as work is done when it is enqueued.

Copies from and to a disk are asynchronous, and so are copies in memory that are enqueued behind them. Other work enqueued after them waits
in the stream's queue, and runs on the caller's thread when a later call finds that it may (`poll`), in the order of the stream. `is_busy`
is False while no stream has a queue and every failure was raised; then callers look at nothing else here.

States of an event:

    state     is_done   known to `HostStreams`               way out
    open      False     until done, by its handle            the stream's queue reaches its record: done
    done      True      no                                   -

A failed read before an event is raised by the first call that tests or waits (`DiskDependencies`).
"""

import ctypes
from abc import ABCMeta, abstractmethod
from collections import deque
from typing import Final, final


from ..base.errors import StorageIOError
from ..stats.statistics_clock import StatisticsClock
from .copy_runs import CopyRuns
from .disk_dependencies import DiskDependencies, raise_first_unreported
from .disk_job import DiskJob
from .disk_workers import DiskWorkers
from .host_copy import copy_in_host_memory
from .host_timers import HostTimer
from .port import CopyBatch


@final
class HostEvent:
    __slots__ = ("handle", "is_done", "passed_at")

    def __init__(self, handle: int) -> None:
        self.handle: Final = handle
        self.is_done = False
        self.passed_at = 0.0  # like `HostStream.passed_at`


class QueuedWork(metaclass=ABCMeta):
    """One entry of a stream's queue."""

    __slots__ = ()

    @abstractmethod
    def try_run(self, stream: "HostStream") -> bool:
        """Do the work, the oldest of its stream, or return False if it must wait. Repeated if it was interrupted."""

    def lets_disk_work_pass(self) -> bool:
        """Whether disk jobs after it may start before it."""
        return False


@final
class HostStream:
    """The queue of one stream."""

    __slots__ = ("handle", "queue", "has_new_jobs", "clock", "passed_at")

    def __init__(self, handle: int, clock: StatisticsClock | None) -> None:
        self.handle: Final = handle
        self.queue: Final[deque[QueuedWork]] = deque()
        self.has_new_jobs = False  # the queue may have disk jobs that the workers do not have yet
        self.clock: StatisticsClock | None = clock
        self.passed_at = 0.0  # when it finished the work that has left its queue; 0.0 without a clock

    def pass_now(self) -> None:
        """Record that the queued work was done just now."""
        if self.clock is not None:
            self.passed_at = self.clock.seconds()

    def pass_at(self, seconds: float) -> None:
        """Record that another thread did the queued work at that time."""
        self.passed_at = max(self.passed_at, seconds)


@final
class _Fill(QueuedWork):
    __slots__ = ("_address", "_num_bytes", "_value")

    def __init__(self, address: int, num_bytes: int, value: int) -> None:
        self._address: Final = address
        self._num_bytes: Final = num_bytes
        self._value: Final = value

    def try_run(self, stream: HostStream) -> bool:
        ctypes.memset(self._address, self._value, self._num_bytes)
        stream.pass_now()
        return True


@final
class _Record(QueuedWork):
    __slots__ = ("_event", "_open_events")

    def __init__(self, event: HostEvent, open_events: dict[int, HostEvent]) -> None:
        self._event: Final = event
        self._open_events: Final = open_events

    def try_run(self, stream: HostStream) -> bool:
        event = self._event
        event.is_done = True
        event.passed_at = stream.passed_at
        if self._open_events.get(event.handle) is event:
            del self._open_events[event.handle]
        return True

    def lets_disk_work_pass(self) -> bool:
        return True


@final
class _Wait(QueuedWork):
    __slots__ = ("_event",)

    def __init__(self, event: HostEvent) -> None:
        self._event: Final = event

    def try_run(self, stream: HostStream) -> bool:
        if not self._event.is_done:
            return False
        stream.pass_at(self._event.passed_at)
        return True

    def lets_disk_work_pass(self) -> bool:
        return self._event.is_done


@final
class _DiskCopies(QueuedWork):
    __slots__ = ("job",)

    def __init__(self, job: DiskJob) -> None:
        self.job: Final = job

    def try_run(self, stream: HostStream) -> bool:
        job = self.job
        if not job.is_done:
            return False
        stream.pass_at(job.done_at)
        job.record_failed_writes()
        return True

    def lets_disk_work_pass(self) -> bool:
        return True


@final
class _TimerMark(QueuedWork):
    __slots__ = ("_timer", "_is_end", "_enqueued_at")

    def __init__(self, timer: HostTimer, is_end: bool, enqueued_at: float) -> None:
        self._timer: Final = timer
        self._is_end: Final = is_end
        self._enqueued_at: Final = enqueued_at

    def try_run(self, stream: HostStream) -> bool:
        # Work that was done before the mark was enqueued is not part of the time after it.
        seconds = max(stream.passed_at, self._enqueued_at)
        if self._is_end:
            self._timer.end = seconds
        else:
            self._timer.begin = seconds
        return True

    def lets_disk_work_pass(self) -> bool:
        return True


@final
class HostStreams:
    """The streams. Law: ``is_busy`` if any stream has a queue, or any failure was not raised."""

    __slots__ = ("is_busy", "_workers", "_streams", "_live", "_open_events", "_trail", "_clock", "_num_seen", "_has_new_work")

    def __init__(self, workers: DiskWorkers) -> None:
        self.is_busy = False
        self._workers: Final = workers
        self._streams: Final[dict[int, HostStream]] = {}  # by handle: streams that ever had a queue and were not destroyed
        self._live: list[HostStream] = []  # streams that have a queue
        self._open_events: Final[dict[int, HostEvent]] = {}
        self._trail: Final = DiskDependencies()
        self._clock: StatisticsClock | None = None  # None without timers
        self._num_seen = 0  # disk jobs that were done at the last `poll`
        self._has_new_work = False  # work was enqueued, or a failure raised, since then

    # -- enqueueing; all but `copy_with_disk` only while busy -----------------------------------------------------------

    def copy_with_disk(self, stream: int, job: DiskJob) -> None:
        self.is_busy = True
        # First: a call may be interrupted anywhere.
        self._trail.add(stream, job)
        self._append(self._stream(stream), _DiskCopies(job))
        self.poll()

    def copy(self, stream: int, batch: CopyBatch) -> None:
        self.poll()
        if self._stream(stream).queue:
            self.copy_beside(stream, batch)
        else:
            copy_in_host_memory(batch)

    def copy_beside(self, stream: int, batch: CopyBatch) -> None:
        """A worker copies, once all work of the stream before it is done."""
        self.copy_with_disk(stream, DiskJob([], [], None, CopyRuns(batch)))

    def fill(self, stream: int, address: int, num_bytes: int, value: int) -> None:
        self.poll()
        found = self._stream(stream)
        if found.queue:
            self._append(found, _Fill(address, num_bytes, value))
        else:
            ctypes.memset(address, value, num_bytes)

    def record(self, stream: int, handle: int) -> None:
        self.poll()
        self._trail.record(stream, handle)
        found = self._streams.get(stream)
        if found is None or not found.queue:
            return
        event = HostEvent(handle)
        self._open_events[handle] = event
        self._append(found, _Record(event, self._open_events))
        self.poll()

    def wait(self, stream: int, handle: int) -> None:
        self.poll()
        self._trail.wait(stream, handle)
        event = self._open_events.get(handle)
        if event is not None:
            self._append(self._stream(stream), _Wait(event))

    def set_clock(self, clock: StatisticsClock) -> None:
        """Measure times from now on."""
        if self._clock is None:
            self._clock = clock
            self._workers.clock = clock
            for stream in (*self._streams.values(), *self._live):
                stream.clock = clock

    def mark(self, stream: int, timer: HostTimer, is_end: bool) -> None:
        assert self._clock is not None, "a timer without a clock"
        self.poll()
        found = self._stream(stream)
        mark = _TimerMark(timer, is_end, self._clock.seconds())
        if found.queue:
            self._append(found, mark)
        else:
            mark.try_run(found)

    # -- tests and waits; only while busy -------------------------------------------------------------------------------

    def is_event_done(self, handle: int) -> bool:
        """Whether the event is done; raises a failure before it."""
        self.poll()
        if handle in self._open_events:
            return False
        self._raise_failure(self._trail.jobs_of_event(handle))
        return True

    def synchronize_event(self, handle: int) -> None:
        self.poll()
        while handle in self._open_events:
            self._wait_for_progress()
        self._raise_failure(self._trail.jobs_of_event(handle))

    def synchronize_stream(self, stream: int) -> None:
        self.settle_stream(stream)
        self._raise_failure(self._trail.jobs_of_stream(stream))

    def settle_stream(self, stream: int) -> None:
        """Wait until the stream has no queue; failures stay."""
        self.poll()
        found = self._streams.get(stream)
        if found is not None:
            while found.queue:
                self._wait_for_progress()

    def synchronize_all(self) -> None:
        """Wait until no stream has a queue; failures stay."""
        self.poll()
        while self._live:
            self._wait_for_progress()

    def release_event(self, handle: int) -> None:
        """Forget the handle; enqueued waits for the event still hold."""
        self._open_events.pop(handle, None)
        self._trail.forget_event(handle)
        self.poll()

    def forget_stream(self, stream: int) -> None:
        """Forget the handle; enqueued work still runs."""
        self._streams.pop(stream, None)
        if self.is_busy:
            self.poll()

    def poll(self) -> None:
        """Run the work that is ready: some may be, once a disk job is done or work was enqueued."""
        num_done = self._workers.num_done
        if num_done == self._num_seen and not self._has_new_work:
            return
        is_moving = True
        while is_moving:
            is_moving = False
            for stream in self._live:
                queue = stream.queue
                while queue and queue[0].try_run(stream):
                    queue.popleft()
                    is_moving = True
                if stream.has_new_jobs:
                    self._start_disk_work(stream)
        self._live = [stream for stream in self._live if stream.queue]
        is_anything_left = self._trail.settle()
        self.is_busy = is_anything_left or bool(self._live)
        # Last, as a call may be interrupted anywhere.
        self._num_seen = num_done
        self._has_new_work = False

    def unreported_failures(self) -> list[StorageIOError]:
        """Failures that no call has raised."""
        return self._trail.unreported_failures()

    # -- inside ---------------------------------------------------------------------------------------------------------

    def _stream(self, handle: int) -> HostStream:
        found = self._streams.get(handle)
        if found is None:
            found = HostStream(handle, self._clock)
            self._streams[handle] = found
        return found

    def _append(self, stream: HostStream, work: QueuedWork) -> None:
        self._has_new_work = True
        if not stream.queue:
            self._live.append(stream)
        if isinstance(work, _DiskCopies):
            # First: a call may be interrupted anywhere.
            stream.has_new_jobs = True
        stream.queue.append(work)

    def _start_disk_work(self, stream: HostStream) -> None:
        """Start every disk job that has only disk jobs before it, after those that it conflicts with."""
        started: list[DiskJob] = []
        for work in stream.queue:
            if not work.lets_disk_work_pass():
                return
            if isinstance(work, _DiskCopies):
                job = work.job
                if not job.is_started:
                    self._workers.start(job, [earlier for earlier in started if job.conflicts_with(earlier)])
                started.append(job)
        stream.has_new_jobs = False

    def _wait_for_progress(self) -> None:
        """Block until a disk job is done, and run the work that this makes ready."""
        num_done = self._workers.num_done
        before = self._num_queued()
        self.poll()
        if self._num_queued() == before:
            self._workers.wait_beyond(num_done)
            self.poll()

    def _num_queued(self) -> int:
        return sum([len(stream.queue) for stream in self._live])

    def _raise_failure(self, jobs: list[DiskJob]) -> None:
        """All work before an event, or on a stream, is done: raise a failed read among these jobs."""
        try:
            raise_first_unreported(jobs)
        except StorageIOError:
            self._has_new_work = True
            self.poll()
            raise
