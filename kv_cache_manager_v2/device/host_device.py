"""The host device: runs the library without a GPU, in host memory, at the speed of memory.

GPU_MEM and HOST_MEM are memory of this process, reserved and committed through `host_memory`. Mapping costs the same for a
kilobyte and a terabyte: physical memory is allocated page by page when first touched, and freed on unmap. DISK is files
(`DiskRanges`).

Streams run eagerly unless they are blocked: a call that enqueues work does it before it returns, so every event is
done when it is recorded, and waiting only checks handles. Only copies from and to a disk are done by threads
(`DiskWorkers`), and work enqueued after them waits for them (`HostStreams`); copies in memory are then done by the
same threads. Kernels are plain code that reads and writes the pools, as numpy and torch on the CPU do: nothing holds
them back, so a manager's call returns once a sequence's stream has what it waits for. Kernels of `launch`
(`HostKernel`) run at once, after waiting for the disk if they must; their exceptions reach the launcher.

Every address is checked against the reserved and mapped ranges before anything happens, so a mistake is an exception.
"""

import ctypes
from typing import Final, SupportsIndex, final

from mypy_extensions import i64

from ..base.checks import to_bool, to_count, to_int_within
from ..base.errors import LogicError
from ..base.given import Given
from ..base.ids import CacheTier
from ..base.package_log import PackageLog
from ..stats.guarded_clock import GuardedClock
from ..stats.statistics_clock import StatisticsClock
from .disk_job import DiskJob
from .disk_plan import BatchPlan
from .file_port import FilePort
from .handle_table import HandleTable
from .host_copy import copy_in_host_memory
from .host_memory import PAGE_BYTES, commit_memory, decommit_memory
from .host_streams import HostStreams
from .host_timers import HostTimers
from .monotonic_clock import MonotonicClock
from .port import CopyBatch, HostKernel
from .ranged_device import RangedDevice
from .wakeup import Wakeup

_logger: Final = PackageLog(__name__)

_DEFAULT_STREAM: Final = 0
_DEFAULT_GRANULARITY_BYTES: Final = 2 << 20
_DEFAULT_DISK_THREADS: Final = 4
_MOST_DISK_THREADS: Final = 1024


@final
class HostDevice(RangedDevice):
    """A software device; see the module's docstring. One thread at a time.

    ``granularity_bytes``: ranges are mapped in multiples of this power of two. The default is a GPU's, so that a plan
    made here is valid there; smaller ones, down to a page, waste less in tiny tests. ``files``: replaces the
    operating system's. ``num_disk_threads``: disk transfers in progress at a time. ``clock``: of the timers, read by
    any thread; replaces the process's own. ``calls_wait_for_disk``: False if every kernel goes through `launch` or comes
    after a `synchronize_stream` of its sequence's stream; then `resize` and `commit` never wait. By default they wait, where
    a page that they hand out is still being read from a disk or written to one, so that any code may touch it at once.
    """

    __slots__ = ("_streams", "_events", "_timers", "_pending", "_calls_wait")

    def __init__(
        self,
        granularity_bytes: SupportsIndex = _DEFAULT_GRANULARITY_BYTES,
        *,
        files: Given[FilePort | None] = None,
        num_disk_threads: SupportsIndex = _DEFAULT_DISK_THREADS,
        clock: Given[StatisticsClock | None] = None,
        calls_wait_for_disk: Given[bool] = True,
    ) -> None:
        granularity = int(to_count(granularity_bytes, "granularity_bytes"))
        if granularity < PAGE_BYTES or granularity & (granularity - 1) != 0:
            raise ValueError(f"granularity_bytes is {granularity}: it must be a power of two and at least a page, {PAGE_BYTES}")
        num_threads = int(to_int_within(num_disk_threads, "num_disk_threads", 1, _MOST_DISK_THREADS))
        if files is not None and not isinstance(files, FilePort):
            raise TypeError(f"files must be a FilePort or None, not {type(files).__name__}")
        if clock is not None and not isinstance(clock, StatisticsClock):
            raise TypeError(f"clock must be a StatisticsClock or None, not {type(clock).__name__}")
        self._calls_wait: Final[bool] = to_bool(calls_wait_for_disk, "calls_wait_for_disk")
        super().__init__(granularity, granularity, files, num_threads)
        self._streams: Final = HandleTable("stream")
        self._events: Final = HandleTable("event")
        self._timers: Final = HostTimers(MonotonicClock() if clock is None else GuardedClock(clock))
        self._pending: Final = HostStreams(self._workers)

    # -- properties ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return "host"

    @property
    def is_software(self) -> bool:
        return True

    @property
    def runs_kernels_at_once(self) -> bool:
        return self._calls_wait

    # -- memory -------------------------------------------------------------------------------------------------------

    def _map(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        commit_memory(address, num_bytes)

    def _unmap(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        decommit_memory(address, num_bytes, is_touchable=True)

    def _poll_disk(self) -> None:
        if self._pending.is_busy:
            self._pending.poll()

    def _drain_disk(self) -> None:
        if self._pending.is_busy:
            self._pending.synchronize_all()

    # -- streams and events -------------------------------------------------------------------------------------------

    def default_stream(self) -> int:
        return _DEFAULT_STREAM

    def create_stream(self) -> int:
        self._require_open()
        return self._streams.allocate()

    def destroy_stream(self, stream: int) -> None:
        self._require_open()
        if stream == _DEFAULT_STREAM:
            raise LogicError("stream 0 is the default stream, which belongs to the device; destroy streams of create_stream only")
        self._streams.free(stream)
        self._pending.forget_stream(stream)

    def require_stream(self, stream: int) -> None:
        """`LogicError` unless it is the default stream, or one of `create_stream` that was not destroyed."""
        self._require_stream(stream)

    def synchronize_stream(self, stream: int) -> None:
        self._require_stream(stream)
        if self._pending.is_busy:
            self._pending.synchronize_stream(stream)

    def settle_stream(self, stream: int) -> None:
        if self._pending.is_busy:
            self._pending.settle_stream(stream)

    def record_event(self, stream: int) -> int:
        self._require_stream(stream)
        event = self._events.allocate()
        if self._pending.is_busy:
            self._pending.record(stream, event)
        return event

    def wait_event(self, stream: int, event: int) -> None:
        self._require_stream(stream)
        self._events.require_live(event)
        if self._pending.is_busy:
            self._pending.wait(stream, event)

    def is_event_done(self, event: int) -> bool:
        self._require_open()
        self._events.require_live(event)
        return self._pending.is_event_done(event) if self._pending.is_busy else True

    def synchronize_event(self, event: int) -> None:
        self._require_open()
        self._events.require_live(event)
        if self._pending.is_busy:
            self._pending.synchronize_event(event)

    def release_event(self, event: int) -> None:
        self._require_open()
        self._events.free(event)
        if self._pending.is_busy:
            self._pending.release_event(event)

    def wake_after(self, stream: int, wakeup: Wakeup) -> bool:
        """From now on after each copy from or to a disk: nothing else is done later than it is enqueued."""
        self._require_stream(stream)
        self._workers.add_wakeup(wakeup)
        return True

    def forget_wakeup(self, wakeup: Wakeup) -> None:
        self._workers.remove_wakeup(wakeup)

    # -- timers -------------------------------------------------------------------------------------------------------

    def start_timer(self, stream: int) -> int:
        self._require_stream(stream)
        handle = self._timers.make()
        timer = self._timers.find(handle)
        # From now on the threads that move bytes read the clock too.
        self._pending.set_clock(self._timers.clock)
        if self._pending.is_busy:
            self._pending.mark(stream, timer, False)
        else:
            timer.begin = self._timers.clock.seconds()
        return handle

    def stop_timer(self, stream: int, timer: int) -> None:
        self._require_stream(stream)
        found = self._timers.find(timer)
        if self._pending.is_busy:
            self._pending.mark(stream, found, True)
        else:
            found.end = self._timers.clock.seconds()

    def read_timer(self, timer: int) -> float:
        self._require_open()
        return self._timers.read(timer)

    def release_timer(self, timer: int) -> None:
        self._require_open()
        self._timers.release(timer)

    # -- work ---------------------------------------------------------------------------------------------------------

    def copy_batch(self, stream: int, batch: CopyBatch) -> None:
        self._require_stream(stream)
        self._validate_batch(batch)
        if batch.count == 0:
            return
        if batch.dst_tier == CacheTier.DISK or batch.src_tier == CacheTier.DISK:
            self._pending.copy_with_disk(stream, DiskJob([], [], BatchPlan(batch, self._disk_ranges)))
        elif self._pending.is_busy:
            self._pending.copy(stream, batch)
        else:
            copy_in_host_memory(batch)

    def copy_beside(self, stream: int, batch: CopyBatch) -> None:
        self._require_stream(stream)
        if batch.dst_tier == CacheTier.DISK or batch.src_tier == CacheTier.DISK:
            raise ValueError("copy_beside() is for copies in memory; copy_batch() copies from and to disks beside the caller already")
        self._validate_batch(batch)
        if batch.count > 0:
            self._pending.copy_beside(stream, batch)

    def fill(self, stream: int, address: int, num_bytes: int, value: int) -> None:
        self._require_stream(stream)
        self._validate_fill(address, num_bytes, value)
        if self._pending.is_busy:
            self._pending.fill(stream, address, num_bytes, value)
        else:
            ctypes.memset(address, value, num_bytes)

    def launch(self, stream: int, kernel: HostKernel) -> None:
        self._require_stream(stream)
        if self._pending.is_busy:
            self._pending.synchronize_stream(stream)
        kernel.run()

    def close(self) -> None:
        """Release the device's resources. Streams and events that are still open are numbers only, and end with it."""
        if self._is_closed:
            return
        self._require_released()
        self._drain_disk()
        for error in self._pending.unreported_failures():
            _logger.error("a disk read failed, and no call had waited for it: %s", error)
        self._workers.close()
        self._is_closed = True

    # -- inside -------------------------------------------------------------------------------------------------------

    def _require_stream(self, stream: i64) -> None:
        self._require_open()
        if stream != _DEFAULT_STREAM and not self._streams.is_live(stream):
            raise LogicError(f"{stream} is no stream of the host device; use default_stream() or create_stream()")
