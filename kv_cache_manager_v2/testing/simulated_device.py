"""A device that finds every race: streams are queues that run late and in any legal order, over memory with a history.

`SimulatedDevice` is a `Device` for tests. Calls on a stream are queued; the seed decides which queued operation runs when, as
late as the rules allow. Memory of both tiers is host memory, so that kernels can run on the
addresses.

Every access is checked when it is enqueued, by vector clocks: two accesses to a byte, one of them a write, that no
stream order, event or host wait orders are a `RaceError`, whichever order this run takes. So are reads of unwritten
bytes, accesses to memory that is not mapped (any more), and unmapping memory that may still be in use. The
device sees copies, fills, the `accesses()` of kernels, and host accesses made by `host_read`,
`host_write` and `record_host_access`.

It also fails on demand: see `faults`, `hold`, `hold_stream` and `set_memory_limit`.
"""

import ctypes
from collections.abc import Sequence
from random import Random
from typing import Final, SupportsIndex, final


from ..base.checks import to_bool, to_count, to_int
from ..base.errors import LogicError, OutOfMemoryError, StorageIOError
from ..base.given import Given
from ..base.ids import CacheTier
from ..device.copy_log import CopyLog
from ..device.file_port import FilePort
from ..device.port import CopyBatch, HostKernel, MemoryAccess
from ..device.ranged_device import RangedDevice
from ..device.slot_watch import SlotWatch
from .faults import FaultPlan
from .race_detector import RaceDetector
from .race_error import RaceError
from .simulated_disks import SimulatedDisks, make_disk_error
from .simulated_memory import MAPPED_POISON, UNMAPPED_POISON, AddressRanges
from .stream_operation import CopyOperation, FillOperation, KernelOperation, Operation, RecordOperation, SimulatedEvent, WaitOperation
from .stream_scheduler import StreamQueue, StreamScheduler

_TIERS: Final = (CacheTier.GPU_MEM, CacheTier.HOST_MEM, CacheTier.DISK)
_DEFAULT_TOTAL_BYTES: Final = 1 << 30
_DEFAULT_GRANULARITY_BYTES: Final = 4096
_DEFAULT_STREAM: Final = 0
_POLL_PROGRESS: Final = 0.25


@final
class SimulatedDevice(RangedDevice):
    """The race-detecting device; see the module's docstring. One thread only; the seed decides everything that is left open.

    ``eager``: True runs each operation as soon as it is legal, False only when a call waits for it, None draws how
    late operations run. ``total_bytes``: of each tier; ``granularity_bytes``: ranges are multiples of it.
    """

    __slots__ = (
        "seed", "faults", "_detector", "_disks", "_events", "_free_stream_handles", "_held_events", "_limit_bytes", "_mapped_bytes",
        "_next_event", "_next_stream", "_num_host_waits", "_queues", "_random", "_memory", "_scheduler", "_total_bytes", "_is_external",
        "_log",
    )  # fmt: skip

    def __init__(
        self,
        seed: SupportsIndex,
        *,
        eager: Given[bool | None] = None,
        total_bytes: SupportsIndex = _DEFAULT_TOTAL_BYTES,
        granularity_bytes: SupportsIndex = _DEFAULT_GRANULARITY_BYTES,
        log_length: SupportsIndex = 4096,
        is_external: Given[bool] = False,
    ) -> None:
        seed = to_int(seed, "seed")
        is_eager = None if eager is None else to_bool(eager, "eager")
        total_bytes = int(to_count(total_bytes, "total_bytes"))
        granularity_bytes = int(to_count(granularity_bytes, "granularity_bytes"))
        log_length = int(to_count(log_length, "log_length"))
        if granularity_bytes < 1 or granularity_bytes & (granularity_bytes - 1) != 0:
            raise ValueError(f"granularity_bytes is {granularity_bytes}; it must be a power of two")
        super().__init__(granularity_bytes, granularity_bytes, None, 1)
        self.seed: Final[int] = seed
        self.faults: Final[FaultPlan] = FaultPlan()
        self._random: Final = Random(seed)
        self._is_external: Final[bool] = to_bool(is_external, "is_external")
        self._log: CopyLog | None = None
        self._total_bytes: Final[int] = total_bytes
        self._limit_bytes: Final[list[int]] = [total_bytes for _tier in _TIERS]  # by tier
        self._mapped_bytes: Final[list[int]] = [0 for _tier in _TIERS]  # by tier
        self._memory: Final = AddressRanges()
        self._disks: Final = SimulatedDisks()
        self._detector: Final = RaceDetector(self._memory, log_length)
        self._scheduler: Final = StreamScheduler(self._random, is_eager)
        self._queues: Final = {_DEFAULT_STREAM: self._scheduler.add_stream(_DEFAULT_STREAM, self._detector.host_clock)}  # by handle
        self._free_stream_handles: Final[list[int]] = []
        self._next_stream: int = _DEFAULT_STREAM + 1
        self._events: Final[dict[int, SimulatedEvent]] = {}  # by handle, until the caller releases it
        self._held_events: Final[dict[int, SimulatedEvent]] = {}
        self._next_event = 1
        self._num_host_waits = 0

    # -- properties ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return f"simulated, seed {self.seed}"

    @property
    def is_software(self) -> bool:
        return True

    @property
    def has_memory(self) -> bool:
        return not self._is_external

    # -- memory -------------------------------------------------------------------------------------------------------

    def total_bytes(self, tier: CacheTier) -> int:
        return self._total_bytes

    def _is_file(self, tier: CacheTier) -> bool:
        return False

    def _reserve(self, tier: CacheTier, num_bytes: int) -> int:
        self.faults.count_call("reserve")
        return self._memory.reserve(tier, num_bytes, self._gpu_ranges.granularity_bytes).address

    def reserve_disk_range(self, path: str, num_bytes: int) -> int:
        """Reserve a range without a file: a disk is one more tier of memory here, and ``path`` a name in errors."""
        self._require_open()
        table = self._ranges(CacheTier.DISK)
        table.validate_num_bytes(num_bytes)
        address = self._reserve(CacheTier.DISK, num_bytes)
        table.add(address, num_bytes)
        self._disks.add(address, path)
        return address

    def file_port(self) -> FilePort | None:
        return None

    def reserve_durable_range(self, path: str, num_bytes: int, watch: SlotWatch) -> int:
        raise ValueError(f"{self.name} has no durable disk tier")

    def disk_failure(self, address: int) -> StorageIOError | None:
        self._require_open()
        self._ranges(CacheTier.DISK).require_reserved(address)
        return self._disks.failure_of(self._memory.range_of(address).address)

    def take_failed_reads(self) -> list[StorageIOError]:
        self._require_open()
        taken = self._disks.failed_reads
        self._disks.failed_reads = []
        return taken

    def _release(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        address_range = self._memory.range_of(address)
        self._detector.note_release(address_range)
        address_range.release()
        if tier == CacheTier.DISK:
            self._disks.remove(address)
        self._scheduler.run_some()

    def _map(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self.faults.count_call("map")
        used_bytes = self._mapped_bytes[tier]
        if used_bytes + num_bytes > self._limit_bytes[tier]:
            raise OutOfMemoryError(
                f"{num_bytes} bytes of {tier.name} were asked for; {used_bytes} of {self._limit_bytes[tier]} are in use;"
                " lower the tier's quota"
            )
        self._mapped_bytes[tier] = used_bytes + num_bytes
        self._detector.record_map(address, address + num_bytes)
        ctypes.memset(address, MAPPED_POISON, num_bytes)
        self._scheduler.run_some()

    def _unmap(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self.faults.count_call("unmap")
        self._detector.record_unmap(address, address + num_bytes)
        self._mapped_bytes[tier] -= num_bytes
        ctypes.memset(address, UNMAPPED_POISON, num_bytes)
        self._scheduler.run_some()

    # -- streams and events -------------------------------------------------------------------------------------------

    def default_stream(self) -> int:
        return _DEFAULT_STREAM

    def create_stream(self) -> int:
        self._require_open()
        self.faults.count_call("create_stream")
        # Now and then, a driver reuses the address of a destroyed stream for a new one.
        if self._free_stream_handles and self._random.random() < 0.5:
            handle = self._free_stream_handles.pop()
        else:
            handle = self._next_stream
            self._next_stream += 1
        self._queues[handle] = self._scheduler.add_stream(handle, self._detector.host_clock)
        self._scheduler.run_some()
        return handle

    def destroy_stream(self, stream: int) -> None:
        self._require_open()
        queue = self._queue(stream)
        if stream == _DEFAULT_STREAM:
            raise LogicError("the default stream is the device's own and cannot be destroyed")
        del self._queues[stream]
        self._free_stream_handles.append(stream)
        self._scheduler.destroy_stream(queue)
        self._scheduler.run_some()

    def require_stream(self, stream: int) -> None:
        """`LogicError` unless it is the default stream, or one of `create_stream` that was not destroyed."""
        self._require_open()
        self._queue(stream)

    def synchronize_stream(self, stream: int) -> None:
        self._require_open()
        queue = self._queue(stream)
        self.faults.count_call("synchronize")
        self._num_host_waits += 1
        self._scheduler.run_through(queue.index, queue.num_enqueued())
        self._detector.join_host(queue.clock)
        self._scheduler.raise_failure(queue.clock)

    def record_event(self, stream: int) -> int:
        self._require_open()
        queue = self._queue(stream)
        self.faults.count_call("record")
        tick = self._detector.begin_operation(queue)
        handle = self._next_event
        self._next_event += 1
        event = SimulatedEvent(handle, queue.index, queue.num_enqueued() + 1, queue.clock.copy())
        self._events[handle] = event
        self._enqueue(queue, RecordOperation(tick, event))
        return handle

    def wait_event(self, stream: int, event: int) -> None:
        self._require_open()
        queue = self._queue(stream)
        waited_for = self._event(event)
        self.faults.count_call("wait")
        queue.clock.join(waited_for.clock)
        self._enqueue(queue, WaitOperation(self._detector.begin_operation(queue), waited_for))

    def is_event_done(self, event: int) -> bool:
        self._require_open()
        asked = self._event(event)
        self._scheduler.run_some()
        if not asked.is_done and self._random.random() < _POLL_PROGRESS:
            # A caller that polls until the event is done must get there, unless the event is held.
            self._scheduler.run_steps(1)
        if asked.is_done:
            if not asked.is_seen:
                asked.is_seen = True
                self._detector.join_host(asked.clock)
            self._scheduler.raise_failure(asked.clock)
        return asked.is_done

    def synchronize_event(self, event: int) -> None:
        self._require_open()
        waited_for = self._event(event)
        self.faults.count_call("synchronize")
        self._num_host_waits += 1
        self._scheduler.run_through(waited_for.stream, waited_for.position)
        waited_for.is_seen = True
        self._detector.join_host(waited_for.clock)
        self._scheduler.raise_failure(waited_for.clock)

    def release_event(self, event: int) -> None:
        self._require_open()
        self._event(event)
        del self._events[event]
        self._scheduler.run_some()

    # -- work ---------------------------------------------------------------------------------------------------------

    def list_copies(self) -> CopyLog:
        """Of a manager whose memory is the engine's; what the engine copies itself goes through `copy_own`."""
        assert self._is_external, "copies are listed where the memory is the engine's"
        log = self._log = CopyLog()
        return log

    def copy_batch(self, stream: int, batch: CopyBatch) -> None:
        if self._log is not None:
            self._log.add(batch.dst_addresses, batch.src_addresses, batch.count)
            return
        self._require_memory("a copy")
        self.copy_own(stream, batch)

    def copy_own(self, stream: int, batch: CopyBatch) -> None:
        """`copy_batch` in memory that the engine has here itself."""
        self._require_open()
        queue = self._queue(stream)
        count = int(batch.count)
        num_bytes = int(batch.num_bytes)
        if num_bytes < 1:
            raise ValueError(f"a copy of {num_bytes} bytes; there must be at least 1")
        self.faults.count_call("copy")
        if count == 0:
            return
        dst_addresses: list[int] = []
        src_addresses: list[int] = []
        copies: list[MemoryAccess] = []
        for position in range(count):
            dst_address = int(batch.dst_addresses[position])
            src_address = int(batch.src_addresses[position])
            dst_addresses.append(dst_address)
            src_addresses.append(src_address)
            copies.append(MemoryAccess(src_address, num_bytes, False))
            copies.append(MemoryAccess(dst_address, num_bytes, True))
        tick = self._detector.begin_operation(queue)
        self._detector.check_copies(queue, tick, batch.dst_tier, batch.src_tier, copies)
        operation = CopyOperation(tick, dst_addresses, src_addresses, num_bytes)
        if batch.dst_tier == CacheTier.DISK or batch.src_tier == CacheTier.DISK:
            self._plan_disk_faults(operation, batch.dst_tier, batch.src_tier)
        self._enqueue(queue, operation)

    def fill(self, stream: int, address: int, num_bytes: int, value: int) -> None:
        self._require_open()
        self._require_memory("a fill")
        queue = self._queue(stream)
        if not 0 <= value <= 255:
            raise ValueError(f"value is {value}; a byte is 0 to 255")
        if num_bytes < 1:
            raise ValueError(f"a fill of {num_bytes} bytes; there must be at least 1")
        self.faults.count_call("fill")
        tick = self._detector.begin_operation(queue)
        self._detector.check_fill(queue, tick, address, num_bytes)
        self._enqueue(queue, FillOperation(tick, address, num_bytes, value))

    def launch(self, stream: int, kernel: HostKernel) -> None:
        self._require_open()
        queue = self._queue(stream)
        self.faults.count_call("launch")
        accesses = kernel.accesses()
        tick = self._detector.begin_operation(queue)
        self._detector.check_kernel(queue, tick, type(kernel).__name__, accesses)
        self._enqueue(queue, KernelOperation(tick, kernel))

    def close(self) -> None:
        """Close, as the port says; runs all queued work, held or not, and raises a kernel's error if it was not raised yet."""
        if self._is_closed:
            return
        self._require_released()
        for event in self._held_events.values():
            event.is_held = False
        for queue in self._queues.values():
            queue.is_held = False
        self._scheduler.run_steps(-1)
        self._is_closed = True
        self._memory.close()
        self._scheduler.raise_any_failure()

    # -- beyond the port ----------------------------------------------------------------------------------------------

    @property
    def races(self) -> Sequence[RaceError]:
        """Every race reported so far, even if its error was swallowed."""
        return tuple(self._detector.races)

    @property
    def num_pending(self) -> int:
        """Operations that were enqueued and have not run."""
        return self._scheduler.num_pending

    @property
    def num_host_waits(self) -> int:
        """The number of times that the host waited for the device."""
        return self._num_host_waits

    @property
    def num_open_events(self) -> int:
        """Events that were recorded and not released."""
        return len(self._events)

    @property
    def num_open_streams(self) -> int:
        """Streams that were created and not destroyed, without the default stream."""
        return len(self._queues) - 1

    def mapped_bytes(self, tier: CacheTier) -> int:
        self._require_tier(tier)
        return self._mapped_bytes[tier]

    def step(self, max_operations: SupportsIndex = 1) -> int:
        """Run up to that many operations in a legal order; returns how many ran. The host does not wait for them."""
        self._require_open()
        return self._scheduler.run_steps(int(to_count(max_operations, "max_operations")))

    def drain(self) -> int:
        """Run all operations that can run (held ones stay), and raise a kernel's error. The host does not wait for them."""
        self._require_open()
        count = self._scheduler.run_steps(-1)
        self._scheduler.raise_any_failure()
        return count

    def hold(self, event: int) -> None:
        """Keep an event from being done until `release`; it stays held if its handle is released."""
        self._require_open()
        held = self._event(event)
        if held.is_done:
            raise LogicError(f"event {event} is done already; hold its stream before you record")
        held.is_held = True
        self._held_events[event] = held

    def release(self, event: int) -> None:
        """End `hold`."""
        held = self._held_events.pop(event, None)
        if held is None:
            raise LogicError(f"event {event} is not held")
        held.is_held = False
        self._scheduler.run_some()

    def hold_stream(self, stream: int) -> None:
        """Run nothing on that stream until `release_stream`."""
        self._require_open()
        self._queue(stream).is_held = True

    def release_stream(self, stream: int) -> None:
        """End `hold_stream`."""
        self._queue(stream).is_held = False
        self._scheduler.run_some()

    def expect_write(self, address: int, num_bytes: int) -> None:
        self._require_open()
        self._detector.record_expected_write(address, num_bytes)

    def set_memory_limit(self, tier: CacheTier, num_bytes: int) -> None:
        """Limit the mapped bytes: mapping more is an `OutOfMemoryError`; what is mapped stays."""
        self._require_tier(tier)
        self._limit_bytes[tier] = num_bytes

    def record_host_access(self, address: int, num_bytes: int, is_write: bool) -> None:
        """Record that the host touches these bytes now; it must have waited for earlier accesses."""
        self._require_open()
        self._detector.check_host_access(address, num_bytes, is_write)

    def host_read(self, address: int, num_bytes: int) -> bytes:
        """Read memory on the host, recorded by `record_host_access`."""
        self.record_host_access(address, num_bytes, False)
        return ctypes.string_at(address, num_bytes)

    def host_write(self, address: int, data: bytes) -> None:
        """Write memory on the host, recorded by `record_host_access`."""
        self.record_host_access(address, len(data), True)
        ctypes.memmove(address, data, len(data))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _plan_disk_faults(self, operation: CopyOperation, dst_tier: CacheTier, src_tier: CacheTier) -> None:
        """Make the first copy of a batch that was planned to fail do so when the batch runs."""
        if src_tier == CacheTier.DISK:
            reason = self.faults.take_failure("disk_read")
            if reason is not None:
                address = operation.src_addresses[0]
                path = self._disks.path_of(self._memory.range_of(address).address)
                operation.read_error = make_disk_error(path, address, operation.num_bytes, False, reason)
                operation.disks = self._disks
        if dst_tier == CacheTier.DISK:
            reason = self.faults.take_failure("disk_write")
            if reason is not None:
                address = operation.dst_addresses[0]
                beg = self._memory.range_of(address).address
                operation.write_error = make_disk_error(self._disks.path_of(beg), address, operation.num_bytes, True, reason)
                operation.disks = self._disks
                operation.disk_range = beg

    def _enqueue(self, queue: StreamQueue, operation: Operation) -> None:
        queue.operations.append(operation)
        self._scheduler.run_some()
        if self._scheduler.is_eager:
            self._scheduler.raise_failure(queue.clock)

    def _queue(self, stream: int) -> StreamQueue:
        queue = self._queues.get(stream)
        if queue is None:
            raise LogicError(f"there is no stream {stream}: it was never created, or was destroyed")
        return queue

    def _event(self, event: int) -> SimulatedEvent:
        found = self._events.get(event)
        if found is None:
            raise LogicError(f"there is no event {event}: it was never recorded, or was released")
        return found

    def _require_memory(self, work: str) -> None:
        if self._is_external:
            raise LogicError(f"{work} on a simulated device whose memory is the engine's; give is_external=False")

    def _require_tier(self, tier: CacheTier) -> None:
        if tier not in _TIERS:
            raise ValueError(f"the simulated device has no {tier.name}; it has GPU_MEM, HOST_MEM and DISK")
