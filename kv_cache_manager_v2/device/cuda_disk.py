"""The DISK tier of a GPU: worker threads move bytes between files and pinned memory, in the order of CUDA's streams.

- A worker begins when an event recorded on the stream is done (`EventGate`), and raises a flag when it is through; the stream
  waits for the flag (`CudaFlags`), so nobody on the host waits. Everything is enqueued at once, in program order, and waits
  only for what was enqueued before: so nothing can wait in a circle.
- Host memory is pinned and the host's: workers read and write it in place. What goes from or to the GPU passes through the
  slots of `CudaStaging`, copied by the stream.
- Where streams cannot wait for flags, the copy call itself waits for the disk.

Nothing here relies on the driver's calls letting other threads run: whoever is going to wait for the GPU waits for the
workers first.
"""

import logging
from typing import Any, Final, final

from mypy_extensions import mypyc_attr

from ..base.errors import KVCacheManagerError, StorageIOError
from ..base.ids import CacheTier
from .copy_runs import CopyRuns
from .cuda_context import CudaContext
from .cuda_copies import CudaCopies
from .cuda_driver import CudaDriver
from .cuda_flags import CudaFlag, EventGate
from .cuda_host_memory import CudaHostMemory
from .cuda_staging import STAGING_SLOT_BYTES, CudaStaging, StagingSlot
from .disk_extent import DiskExtent
from .disk_file import DIRECT_ALIGNMENT
from .disk_job import DiskJob
from .disk_plan import plan_extents, plan_job
from .disk_ranges import DiskRanges
from .disk_trail import DiskTrail, tell_first
from .disk_workers import DiskWorkers
from .file_port import FilePort
from .job_gate import JobGate
from .port import CopyBatch

_logger: Final = logging.getLogger(__name__)

_EVENT_DISABLE_TIMING: Final = 2


@final
@mypyc_attr(native_class=True)
class _OpenBatch:
    """What one copy call has under way, and the events that its gates look at."""

    __slots__ = ("jobs", "flags", "events")

    jobs: Final[list[DiskJob]]
    flags: Final[list[CudaFlag]]  # one for each job
    events: Final[list[Any]]

    def __init__(self) -> None:
        self.jobs = []
        self.flags = []
        self.events = []

    def is_done(self) -> bool:
        for job in self.jobs:
            if not job.is_done:
                return False
        return True


@final
@mypyc_attr(native_class=True)
class CudaDisk:
    """Law: ``is_busy`` while any batch is under way or any failure was not told. Who creates it calls `close`."""

    __slots__ = (
        "ranges", "is_busy", "_driver", "_context", "_host_memory", "_copies", "_workers", "_num_staging_slots", "_staging",
        "_trail", "_open", "_free_events",
    )  # fmt: skip

    ranges: Final[DiskRanges]
    is_busy: bool
    _driver: Final[CudaDriver]
    _context: Final[CudaContext]
    _host_memory: Final[CudaHostMemory]
    _copies: Final[CudaCopies]
    _workers: Final[DiskWorkers]
    _num_staging_slots: Final[int]
    _staging: CudaStaging | None  # from the first range on
    _trail: Final[DiskTrail]
    _open: list[_OpenBatch]
    _free_events: Final[list[Any]]

    def __init__(
        self,
        driver: CudaDriver,
        context: CudaContext,
        host_memory: CudaHostMemory,
        copies: CudaCopies,
        files: FilePort,
        granularity_bytes: int,
        num_threads: int,
        num_staging_slots: int,
    ) -> None:
        self.ranges = DiskRanges(files, granularity_bytes)
        self.is_busy = False
        self._driver = driver
        self._context = context
        self._host_memory = host_memory
        self._copies = copies
        self._workers = DiskWorkers(num_threads)
        self._num_staging_slots = num_staging_slots
        self._staging = None
        self._trail = DiskTrail()
        self._open = []
        self._free_events = []

    # -- memory -------------------------------------------------------------------------------------------------------

    def reserve(self, path: str, num_bytes: int) -> int:
        if self._staging is None:
            with self._context:
                self._staging = CudaStaging(self._driver, self._host_memory, self._num_staging_slots)
        return self.ranges.reserve(path, num_bytes)

    def unmap(self, address: int, num_bytes: int) -> None:
        self.ranges.unmap(address, num_bytes)
        self._workers.transfers.rescued.forget(address, num_bytes)

    # -- copies -------------------------------------------------------------------------------------------------------

    def copy(self, stream: int, batch: CopyBatch) -> None:
        """``batch`` has at least one copy, all its addresses are mapped, and one of its tiers is DISK."""
        assert self._staging is not None
        self.poll()
        self.is_busy = True
        open_batch = _OpenBatch()
        self._open.append(open_batch)
        with self._context:
            begin = self._record(stream)
            open_batch.events.append(begin)
            gate = EventGate(self._driver, begin)
            if batch.src_tier == CacheTier.GPU_MEM:
                self._write_from_gpu(stream, plan_extents(CopyRuns(batch), self.ranges, True), open_batch)
            elif batch.dst_tier == CacheTier.GPU_MEM:
                self._read_to_gpu(stream, plan_extents(CopyRuns(batch), self.ranges, False), open_batch, gate)
            else:
                job = plan_job(batch, self.ranges)
                self._start(stream, job, [gate], [], open_batch)
                self._make_wait(stream, job)

    def _write_from_gpu(self, stream: int, extents: list[DiskExtent], open_batch: _OpenBatch) -> None:
        jobs: list[DiskJob] = []
        for group in _pack(extents):
            slot = self._next_slot()
            if slot.job is not None and not slot.job.is_done:
                self._make_wait(stream, slot.job)
            if slot.event is not None:
                self._driver.wait_event(stream, slot.event)
                self._free_events.append(slot.event)
                slot.event = None
            staged = _stage(group, slot.address)
            try:
                self._copy_staged(stream, group, staged, True)
                copied = self._record(stream)
            except KVCacheManagerError:
                # Copies that were enqueued still write to the slot, and its next user knows nothing of them.
                self._driver.status_of("cuStreamSynchronize", stream)
                raise
            open_batch.events.append(copied)
            job = DiskJob([], staged)
            slot.job = job
            self._start(stream, job, [EventGate(self._driver, copied)], [], open_batch)
            jobs.append(job)
        for job in jobs:
            self._make_wait(stream, job)

    def _read_to_gpu(
        self, stream: int, extents: list[DiskExtent], open_batch: _OpenBatch, begin: EventGate
    ) -> None:
        for group in _pack(extents):
            slot = self._next_slot()
            gates: list[JobGate] = [begin]
            earlier_jobs = [slot.job] if slot.job is not None else []
            if slot.event is not None:
                gates.append(EventGate(self._driver, slot.event))
                open_batch.events.append(slot.event)
                slot.event = None
            staged = _stage(group, slot.address)
            job = DiskJob(staged, [])
            slot.job = job
            self._start(stream, job, gates, earlier_jobs, open_batch)
            self._make_wait(stream, job)
            self._copy_staged(stream, group, staged, False)
            slot.event = self._record(stream)
            slot.job = None

    def _copy_staged(self, stream: int, group: list[DiskExtent], staged: list[DiskExtent], from_gpu: bool) -> None:
        gpu_addresses: list[int] = []
        staging_addresses: list[int] = []
        sizes: list[int] = []
        for index in range(len(group)):
            address = staged[index].addresses[0]
            extent = group[index]
            for piece in range(len(extent.addresses)):
                gpu_addresses.append(extent.addresses[piece])
                staging_addresses.append(address)
                sizes.append(extent.sizes[piece])
                address += extent.sizes[piece]
        if from_gpu:
            self._copies.enqueue(
                stream, CacheTier.HOST_MEM, CacheTier.GPU_MEM, staging_addresses, gpu_addresses, sizes
            )
        else:
            self._copies.enqueue(
                stream, CacheTier.GPU_MEM, CacheTier.HOST_MEM, gpu_addresses, staging_addresses, sizes
            )

    def _start(
        self,
        stream: int,
        job: DiskJob,
        gates: list[JobGate],
        earlier_jobs: list[DiskJob],
        open_batch: _OpenBatch,
    ) -> None:
        flag = self._take_flag()
        job.signal = flag
        job.gates.extend(gates)
        open_batch.jobs.append(job)
        open_batch.flags.append(flag)
        self._trail.add(stream, job)
        self._workers.start(job, earlier_jobs)

    def _make_wait(self, stream: int, job: DiskJob) -> None:
        """What is enqueued on the stream from now on runs when the job is done."""
        assert self._staging is not None
        flags = self._staging.flags
        flag = job.signal
        if flags.can_wait and isinstance(flag, CudaFlag):
            flags.enqueue_wait(stream, flag)
        else:
            self._workers.wait(job)

    # -- streams and events; only while busy --------------------------------------------------------------------------

    def note_record(self, stream: int, event: int) -> None:
        self._trail.record(stream, event)
        self.poll()

    def note_wait(self, stream: int, event: int) -> None:
        self._trail.wait(stream, event)

    def note_release(self, event: int) -> None:
        self._trail.forget_event(event)
        self.poll()

    def note_destroy(self, stream: int) -> None:
        self._trail.forget_stream(stream)

    def wait_before_event(self, event: int) -> None:
        """Block until the workers are through with all that the event is behind."""
        for job in self._trail.jobs_of_event(event):
            self._workers.wait(job)

    def wait_before_stream(self, stream: int) -> None:
        for job in self._trail.jobs_of_stream(stream):
            self._workers.wait(job)

    def tell_event(self, event: int) -> None:
        """The event is done; raises a failed read that it is behind."""
        jobs = self._trail.jobs_of_event(event)
        self.poll()
        tell_first(jobs)

    def tell_stream(self, stream: int) -> None:
        """The stream has done all that was enqueued; raises a failed read among it."""
        jobs = self._trail.jobs_of_stream(stream)
        self.poll()
        tell_first(jobs)

    def failure_of(self, address: int) -> StorageIOError | None:
        self.poll()
        return self.ranges.failure_of(address)

    def take_failed_reads(self) -> list[StorageIOError]:
        return self._workers.take_failed_reads()

    def drain(self) -> None:
        """Block until the workers are through with everything."""
        for open_batch in self._open:
            for job in open_batch.jobs:
                self._workers.wait(job)
        self.poll()

    def poll(self) -> None:
        """Give back what finished batches held, and note what failed."""
        if not self.is_busy:
            return
        still_open: list[_OpenBatch] = []
        for open_batch in self._open:
            if open_batch.is_done():
                self._finish(open_batch)
            else:
                still_open.append(open_batch)
        self._open = still_open
        is_anything_left = self._trail.settle()
        self.is_busy = len(still_open) > 0 or is_anything_left

    def close(self) -> None:
        """Nothing is reserved any more. Where the driver refuses, it raises and may be called again."""
        self.drain()
        for error in self._trail.untold_failures():
            _logger.error("nobody waited for this: %s", error)
        self._workers.close()
        with self._context:
            if self._staging is not None:
                for slot in self._staging.slots:
                    if slot.event is not None:
                        self._free_events.append(slot.event)
                        slot.event = None
                # Streams may still copy from the slots: nobody had to wait for them.
                self._driver.call("cuCtxSynchronize")
                self._staging.close()
                self._staging = None
            while self._free_events:
                self._driver.call("cuEventDestroy", self._free_events[-1])
                self._free_events.pop()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _finish(self, open_batch: _OpenBatch) -> None:
        assert self._staging is not None
        for job in open_batch.jobs:
            job.note_failed_writes()
        for flag in open_batch.flags:
            self._staging.flags.give_back(flag)
        self._free_events.extend(open_batch.events)

    def _take_flag(self) -> CudaFlag:
        """Waits for the oldest job where a thousand are under way."""
        assert self._staging is not None
        flag = self._staging.flags.take()
        while flag is None:
            num_open = len(self._open)
            self._workers.wait(self._open[0].jobs[0])
            for job in self._open[0].jobs:
                self._workers.wait(job)
            self.poll()
            assert len(self._open) < num_open, "a batch that is done stays open"
            flag = self._staging.flags.take()
        return flag

    def _next_slot(self) -> StagingSlot:
        assert self._staging is not None
        return self._staging.next_slot()

    def _record(self, stream: int) -> Any:
        """An event behind what was enqueued so far, from the pool."""
        if self._free_events:
            event = self._free_events.pop()
        else:
            event = self._driver.call("cuEventCreate", _EVENT_DISABLE_TIMING)
        try:
            self._driver.record_event(event, stream)
        except KVCacheManagerError:
            self._free_events.append(event)
            raise
        return event


def _pack(extents: list[DiskExtent]) -> list[list[DiskExtent]]:
    """In order, as many together as a staging slot holds, each at an aligned place."""
    groups: list[list[DiskExtent]] = []
    free_bytes = 0
    for extent in extents:
        num_bytes = _padded(extent.num_bytes)
        if num_bytes > free_bytes:
            groups.append([])
            free_bytes = STAGING_SLOT_BYTES
        groups[-1].append(extent)
        free_bytes -= num_bytes
    return groups


def _stage(group: list[DiskExtent], address: int) -> list[DiskExtent]:
    """The same pieces of the disk, with the slot at ``address`` for memory."""
    staged: list[DiskExtent] = []
    for extent in group:
        piece = DiskExtent(extent.file, extent.address)
        piece.add(address, extent.num_bytes)
        piece.make_ready()
        staged.append(piece)
        address += _padded(extent.num_bytes)
    return staged


def _padded(num_bytes: int) -> int:
    return (num_bytes + DIRECT_ALIGNMENT - 1) // DIRECT_ALIGNMENT * DIRECT_ALIGNMENT
