"""The host device: runs the library without a GPU, in host memory, at the speed of memory.

GPU_MEM and HOST_MEM are memory of this process, reserved and committed through `host_memory`. Mapping costs the same for a
kilobyte and a terabyte: physical memory is allocated page by page when first touched, and freed on unmap. DISK is files
(`DiskRanges`).

Streams run eagerly unless they are blocked: a call that enqueues work does it before it returns, so every event is done when
it is recorded, and waiting only checks handles. Only copies from and to a disk are done by threads
(`DiskWorkers`), and work enqueued after them waits for them (`HostStreams`). Kernels are plain code that reads and writes the
pools, as numpy and torch on the CPU do: nothing holds them back, so a manager's call returns once a sequence's stream has
what it waits for. Kernels of `launch` (`HostKernel`) run at once, after waiting for the disk if they must; their exceptions
reach the launcher.

Every address is checked against the reserved and mapped ranges before anything happens, so a mistake is an exception.
"""

import ctypes
from typing import Final, SupportsIndex, final

from mypy_extensions import i64, mypyc_attr

from ..base.checks import to_bool, to_count, to_int_within
from ..base.errors import LogicError, StorageIOError
from ..base.given import Given
from ..base.ids import CacheTier
from ..base.package_log import PackageLog
from ..stats.guarded_clock import GuardedClock
from ..stats.statistics_clock import StatisticsClock
from .disk_plan import plan_job
from .disk_ranges import DISK_TOTAL_BYTES, DiskRanges
from .disk_workers import DiskWorkers
from .file_port import FilePort
from .handle_table import HandleTable
from .host_copy import copy_in_host_memory
from .host_memory import (
    PAGE_BYTES,
    commit_memory,
    decommit_memory,
    release_addresses,
    reserve_addresses,
    total_host_bytes,
)
from .host_streams import HostStreams
from .host_timers import HostTimers
from .monotonic_clock import MonotonicClock
from .os_files import OsFiles
from .port import CopyBatch, Device, HostKernel
from .range_table import RangeTable
from .slot_watch import SlotWatch
from .wakeup import Wakeup

_logger: Final = PackageLog(__name__)

_DEFAULT_STREAM: Final = 0
_DEFAULT_GRANULARITY_BYTES: Final = 2 << 20
_DEFAULT_DISK_THREADS: Final = 4
_MOST_DISK_THREADS: Final = 1024


@final
@mypyc_attr(native_class=True)
class HostDevice(Device):
    """A software device; see the module's docstring. One thread at a time.

    ``granularity_bytes``: ranges are mapped in multiples of this power of two. The default is a GPU's, so that a plan
    made here is valid there; smaller ones, down to a page, waste less in tiny tests. ``files``: replaces the
    operating system's. ``num_disk_threads``: disk transfers in progress at a time. ``clock``: of the timers, read by
    any thread; replaces the process's own. ``calls_wait_for_disk``: False if every kernel goes through `launch` or comes
    after a `synchronize_stream` of its sequence's stream; then `resize` and `commit` never wait. By default they wait, where
    a page that they hand out is still being read from a disk or written to one, so that any code may touch it at once.
    """

    __slots__ = (
        "_granularity_bytes", "_gpu_ranges", "_host_ranges", "_disk_ranges", "_streams", "_events", "_timers", "_workers",
        "_pending", "_calls_wait", "_is_closed",
    )  # fmt: skip

    _granularity_bytes: Final[int]
    _gpu_ranges: Final[RangeTable]
    _host_ranges: Final[RangeTable]
    _disk_ranges: Final[DiskRanges]
    _streams: Final[HandleTable]
    _events: Final[HandleTable]
    _timers: Final[HostTimers]
    _workers: Final[DiskWorkers]
    _pending: Final[HostStreams]
    _calls_wait: Final[bool]
    _is_closed: bool

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
            raise ValueError(
                f"granularity_bytes is {granularity}: it must be a power of two and at least a page, {PAGE_BYTES}"
            )
        num_threads = int(to_int_within(num_disk_threads, "num_disk_threads", 1, _MOST_DISK_THREADS))
        if files is not None and not isinstance(files, FilePort):
            raise TypeError(f"files must be a FilePort or None, not {type(files).__name__}")
        if clock is not None and not isinstance(clock, StatisticsClock):
            raise TypeError(f"clock must be a StatisticsClock or None, not {type(clock).__name__}")
        self._calls_wait = to_bool(calls_wait_for_disk, "calls_wait_for_disk")
        self._granularity_bytes = granularity
        self._gpu_ranges = RangeTable(CacheTier.GPU_MEM, granularity)
        self._host_ranges = RangeTable(CacheTier.HOST_MEM, granularity)
        self._disk_ranges = DiskRanges(OsFiles() if files is None else files, granularity)
        self._streams = HandleTable("stream")
        self._events = HandleTable("event")
        self._timers = HostTimers(MonotonicClock() if clock is None else GuardedClock(clock))
        self._workers = DiskWorkers(num_threads)
        self._pending = HostStreams(self._workers)
        self._is_closed = False

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

    def granularity_bytes(self, tier: CacheTier) -> int:
        self._ranges(tier)
        return self._granularity_bytes

    def total_bytes(self, tier: CacheTier) -> int:
        """The machine's memory; more can be reserved and mapped as long as it is not touched. For DISK more than any disk has."""
        self._ranges(tier)
        return DISK_TOTAL_BYTES if tier == CacheTier.DISK else total_host_bytes()

    def reserve_range(self, tier: CacheTier, num_bytes: int) -> int:
        self._require_open()
        ranges = self._ranges(tier)
        if tier == CacheTier.DISK:
            raise ValueError("a range of DISK needs a folder for its file; use reserve_disk_range")
        ranges.validate_num_bytes(num_bytes)
        address = reserve_addresses(num_bytes, self._granularity_bytes)
        ranges.add(address, num_bytes)
        return address

    def reserve_disk_range(self, path: str, num_bytes: int) -> int:
        self._require_open()
        return self._disk_ranges.reserve(path, num_bytes)

    def file_port(self) -> FilePort:
        return self._disk_ranges.port

    def reserve_durable_range(self, path: str, num_bytes: int, watch: SlotWatch) -> int:
        self._require_open()
        return self._disk_ranges.reserve(path, num_bytes, watch)

    def disk_failure(self, address: int) -> StorageIOError | None:
        self._require_open()
        if self._pending.is_busy:
            self._pending.poll()
        return self._disk_ranges.failure_of(address)

    def take_failed_reads(self) -> list[StorageIOError]:
        self._require_open()
        return self._workers.take_failed_reads()

    def release_range(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self._require_open()
        if tier == CacheTier.DISK:
            self._disk_ranges.release(address, num_bytes)
            return
        ranges = self._ranges(tier)
        ranges.require_releasable(address, num_bytes)
        release_addresses(address, num_bytes)
        ranges.remove(address)

    def map_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self._require_open()
        if tier == CacheTier.DISK:
            self._disk_ranges.map(address, num_bytes)
            return
        reserved = self._ranges(tier).require_unmapped(address, num_bytes)
        commit_memory(address, num_bytes)
        reserved.mapped.add(address, address + num_bytes)

    def unmap_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self._require_open()
        if self._pending.is_busy:
            # The caller has made sure that no work touches these bytes; a thread that does would crash.
            self._pending.synchronize_all()
        if tier == CacheTier.DISK:
            self._disk_ranges.unmap(address, num_bytes)
            self._workers.transfers.rescued.forget_unmapped(address, num_bytes)
            return
        reserved = self._ranges(tier).require_mapped(address, num_bytes)
        decommit_memory(address, num_bytes, is_touchable=True)
        reserved.mapped.remove(address, address + num_bytes)

    # -- streams and events -------------------------------------------------------------------------------------------

    def default_stream(self) -> int:
        return _DEFAULT_STREAM

    def create_stream(self) -> int:
        self._require_open()
        return self._streams.allocate()

    def destroy_stream(self, stream: int) -> None:
        self._require_open()
        if stream == _DEFAULT_STREAM:
            raise LogicError(
                "stream 0 is the default stream, which belongs to the device; destroy streams of create_stream only"
            )
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
        if self._pending.is_busy:
            return self._pending.is_event_done(event)
        return True

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
            self._pending.mark_begin(stream, timer)
        else:
            timer.begin = self._timers.clock.seconds()
        return handle

    def stop_timer(self, stream: int, timer: int) -> None:
        self._require_stream(stream)
        found = self._timers.find(timer)
        if self._pending.is_busy:
            self._pending.mark_end(stream, found)
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
        if batch.num_bytes <= 0:
            raise ValueError(f"a batch of copies of {batch.num_bytes} bytes each: it must be positive")
        dst_ranges = self._ranges(batch.dst_tier)
        src_ranges = self._ranges(batch.src_tier)
        dst_ranges.require_accessible(batch.dst_addresses, batch.count, batch.num_bytes)
        src_ranges.require_accessible(batch.src_addresses, batch.count, batch.num_bytes)
        if batch.dst_tier == CacheTier.DISK or batch.src_tier == CacheTier.DISK:
            if batch.count > 0:
                self._pending.copy_with_disk(stream, plan_job(batch, self._disk_ranges))
        elif self._pending.is_busy:
            self._pending.copy(stream, batch)
        else:
            copy_in_host_memory(batch)

    def copy_beside(self, stream: int, batch: CopyBatch) -> None:
        self._require_stream(stream)
        if batch.num_bytes <= 0:
            raise ValueError(f"a batch of copies of {batch.num_bytes} bytes each: it must be positive")
        if batch.dst_tier == CacheTier.DISK or batch.src_tier == CacheTier.DISK:
            raise ValueError("copy_beside() is for copies in memory; copy_batch() copies from and to disks beside the caller already")
        self._ranges(batch.dst_tier).require_accessible(batch.dst_addresses, batch.count, batch.num_bytes)
        self._ranges(batch.src_tier).require_accessible(batch.src_addresses, batch.count, batch.num_bytes)
        if batch.count > 0:
            self._pending.copy_beside(stream, batch)

    def fill(self, stream: int, address: int, num_bytes: int, value: int) -> None:
        self._require_stream(stream)
        if value < 0 or value > 255:
            raise ValueError(f"a fill with {value}: a byte is 0 to 255")
        self._gpu_ranges.require_bytes(address, num_bytes, "a fill")
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
        num_ranges = 0
        num_bytes = 0
        for ranges in (self._gpu_ranges, self._host_ranges, self._disk_ranges.table):
            num_ranges += ranges.num_ranges()
            num_bytes += ranges.reserved_bytes()
        if num_ranges > 0:
            raise LogicError(f"{num_ranges} ranges with {num_bytes} bytes are still reserved; release_range them first")
        if self._pending.is_busy:
            self._pending.synchronize_all()
        for error in self._pending.unreported_failures():
            _logger.error("a disk read failed, and no call had waited for it: %s", error)
        self._workers.close()
        self._is_closed = True

    # -- inside -------------------------------------------------------------------------------------------------------

    def _ranges(self, tier: CacheTier) -> RangeTable:
        if tier == CacheTier.GPU_MEM:
            return self._gpu_ranges
        if tier == CacheTier.HOST_MEM:
            return self._host_ranges
        return self._disk_ranges.table

    def _require_open(self) -> None:
        if self._is_closed:
            raise LogicError("this device is closed; make a new one")

    def _require_stream(self, stream: i64) -> None:
        if self._is_closed:
            raise LogicError("this device is closed; make a new one")
        if stream != _DEFAULT_STREAM and not self._streams.is_live(stream):
            raise LogicError(f"{stream} is no stream of the host device; use default_stream() or create_stream()")
