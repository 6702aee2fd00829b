"""The DISK tier of a CUDA device: worker threads move bytes between files and pinned memory, in the order of CUDA streams.

- A worker starts once the stream has raised a flag, and raises another one when it is done, for which the stream waits
  (`CudaFlags`). So the host never waits, and no worker calls the driver. Everything is enqueued at once, in program order, and waits
  only for what was enqueued before it: so waits cannot form a cycle.
- Host memory is pinned: workers read and write it in place. Bytes from or to the GPU pass through the slots of `CudaStaging`, copied
  by the stream.
- If streams cannot wait for flags, or must not, the copy call itself waits for the disk; if they cannot raise flags, for the stream.
- If the driver refuses something in the middle of a call, every job that was started is waited for: by the stream, or else by the
  host; and the next user of a staging slot waits for the GPU.
- If the context breaks, a flag may never be raised. The job that waits for it is lost: its reads fail, and the bytes that it should
  have written can never be read (`FailedWrites`).

Nothing here relies on driver calls that release the GIL: a thread that is about to wait for the GPU waits for the workers first.
"""

from typing import Any, Final, final


from ..base.errors import CudaError, KVCacheManagerError, PartlyCopiedError
from ..base.ids import CacheTier
from ..base.package_log import PackageLog
from .copy_runs import CopyRuns
from .cuda_context import CudaContext
from .cuda_copies import CudaCopies
from .cuda_driver import NOT_READY, SUCCESS, CudaDriver
from .cuda_flags import CudaFlag
from .cuda_host_memory import CudaHostMemory
from .cuda_staging import STAGING_SLOT_BYTES, CudaStaging, StagingSlot
from .disk_extent import DiskExtent
from .disk_file import DIRECT_ALIGNMENT
from .disk_job import DiskJob
from .disk_plan import BatchPlan, plan_extents
from .disk_ranges import DiskRanges
from .disk_dependencies import DiskDependencies, raise_first_unreported
from .disk_workers import DiskWorkers
from .job_gate import GateWatch
from .port import CopyBatch

_logger: Final = PackageLog(__name__)

_STREAM_NON_BLOCKING: Final = 1
_NUM_ATTEMPTS: Final = 3
"""A broken context refuses every call; a single refusal may have another cause."""


@final
class _ContextWatch(GateWatch):
    """Detects a broken context, by means of a stream on which nothing ever runs. `close` destroys the stream."""

    __slots__ = ("_driver", "_context", "_stream")

    def __init__(self, driver: CudaDriver, context: CudaContext) -> None:
        self._driver: Final = driver
        self._context: Final = context
        self._stream: Any = driver.call("cuStreamCreate", _STREAM_NON_BLOCKING)

    def find_obstacle(self) -> str:
        obstacle = ""
        for _attempt in range(_NUM_ATTEMPTS):
            obstacle = self._ask()
            if not obstacle:
                return ""
        return obstacle

    def _ask(self) -> str:
        try:
            with self._context:
                status = self._driver.status_of("cuStreamQuery", self._stream)
        except KVCacheManagerError as error:
            return str(error)
        return "" if int(status) in (SUCCESS, NOT_READY) else str(self._driver.make_error("cuStreamQuery", status))

    def close(self) -> None:
        """Destroy the stream; the context is current."""
        if self._stream is not None:
            self._driver.call("cuStreamDestroy", self._stream)
            self._stream = None


@final
class CudaDisk:
    """The disk tier. Law: ``is_busy`` while a job is in progress or a failure is unreported. Who creates it calls `close`."""

    __slots__ = (
        "is_busy", "_ranges", "_driver", "_context", "_host_memory", "_copies", "_workers", "_num_staging_slots", "_streams_may_wait",
        "_staging", "_watch", "trail", "_open", "_flags_of_streams",
    )  # fmt: skip

    def __init__(
        self,
        driver: CudaDriver,
        context: CudaContext,
        host_memory: CudaHostMemory,
        copies: CudaCopies,
        ranges: DiskRanges,
        workers: DiskWorkers,
        num_staging_slots: int,
        streams_may_wait: bool,
    ) -> None:
        self._ranges: Final = ranges
        self.is_busy = False
        self._driver: Final = driver
        self._context: Final = context
        self._host_memory: Final = host_memory
        self._copies: Final = copies
        self._workers: Final = workers
        self._num_staging_slots: Final = num_staging_slots
        self._streams_may_wait: Final = streams_may_wait
        self._staging: CudaStaging | None = None  # from the first range on
        self._watch: _ContextWatch | None = None  # the same
        self.trail: Final = DiskDependencies()
        self._open: list[DiskJob] = []  # each with its flag
        self._flags_of_streams: list[CudaFlag] = []  # flags that streams will raise

    def prepare(self) -> None:
        """A range is about to be reserved: what copies need is made, if it is the first."""
        if self._staging is None:
            with self._context:
                if self._watch is None:
                    self._watch = _ContextWatch(self._driver, self._context)
                self._staging = CudaStaging(self._driver, self._host_memory, self._num_staging_slots, self._streams_may_wait)
            self._workers.watch = self._watch

    # -- copies -------------------------------------------------------------------------------------------------------

    def copy(self, stream: int, batch: CopyBatch) -> None:
        """Copy. ``batch`` has at least one copy, all its addresses are mapped, and one of its tiers is DISK."""
        assert self._staging is not None
        self.poll()
        started: list[DiskJob] = []
        with self._context:
            try:
                if batch.src_tier == CacheTier.GPU_MEM:
                    self._write_from_gpu(stream, plan_extents(CopyRuns(batch), self._ranges, True), started)
                elif batch.dst_tier == CacheTier.GPU_MEM:
                    self._read_to_gpu(stream, plan_extents(CopyRuns(batch), self._ranges, False), started)
                else:
                    job = DiskJob([], [], BatchPlan(batch, self._ranges))
                    self._start(stream, job, self._raise_behind(stream), [])
                    started.append(job)
            except BaseException as error:
                # No byte of the started jobs moves after anything that is enqueued from now on.
                self._make_wait(stream, started)
                if started and isinstance(error, CudaError) and not isinstance(error, PartlyCopiedError):
                    raise PartlyCopiedError(f"a part of the copies was started, then {error}") from error
                raise
            self._make_wait(stream, started)

    def _write_from_gpu(self, stream: int, extents: list[DiskExtent], started: list[DiskJob]) -> None:
        assert self._staging is not None
        for group in _pack(extents):
            slot = self._staging.next_slot()
            self._clear_doubt(slot)
            if slot.job is not None:
                self._make_wait(stream, [slot.job])
            if slot.copied is not None:
                self._wait_for_copies(stream, slot.copied)
            slot.is_in_doubt = True
            staged = _stage(group, slot.address)
            self._copy_staged(stream, group, staged, True)
            gates = self._raise_behind(stream)
            job = DiskJob([], staged)
            slot.job = job
            slot.copied = None
            self._start(stream, job, gates, [])
            started.append(job)
            slot.is_in_doubt = False

    def _read_to_gpu(self, stream: int, extents: list[DiskExtent], started: list[DiskJob]) -> None:
        assert self._staging is not None
        begin = self._raise_behind(stream)
        for group in _pack(extents):
            slot = self._staging.next_slot()
            self._clear_doubt(slot)
            gates = list(begin)
            if slot.copied is not None:
                gates.append(slot.copied)
            staged = _stage(group, slot.address)
            job = DiskJob(staged, [])
            earlier_jobs = [slot.job] if slot.job is not None else []
            slot.is_in_doubt = True
            slot.job = job
            slot.copied = None
            self._start(stream, job, gates, earlier_jobs)
            started.append(job)
            self._make_wait(stream, [job])
            self._copy_staged(stream, group, staged, False)
            copied = self._raise_behind(stream)
            if copied:
                slot.copied = copied[0]
            slot.job = None
            slot.is_in_doubt = False

    def _clear_doubt(self, slot: StagingSlot) -> None:
        """If a call that used the slot was refused or interrupted, wait until nothing can use the slot any more."""
        if not slot.is_in_doubt:
            return
        if slot.job is not None:
            self._workers.wait(slot.job)
        self.drain()
        self._driver.call("cuCtxSynchronize")
        slot.job = None
        slot.copied = None
        slot.is_in_doubt = False

    def _wait_for_copies(self, stream: int, copied: CudaFlag) -> None:
        """Work enqueued on the stream from now on runs after the slot's bytes are on the GPU."""
        assert self._staging is not None
        if copied.is_raised():
            return
        if self._staging.flags.can_wait:
            self._staging.flags.enqueue_wait(stream, copied)
        else:
            self._driver.call("cuCtxSynchronize")

    def _copy_staged(self, stream: int, group: list[DiskExtent], staged: list[DiskExtent], from_gpu: bool) -> None:
        gpu_addresses: list[int] = []
        staging_addresses: list[int] = []
        sizes: list[int] = []
        for index in range(len(group)):
            address: int = staged[index].addresses[0]
            extent = group[index]
            for piece in range(len(extent.addresses)):
                gpu_addresses.append(extent.addresses[piece])
                staging_addresses.append(address)
                sizes.append(extent.sizes[piece])
                address += extent.sizes[piece]
        if from_gpu:
            self._copies.enqueue(stream, CacheTier.HOST_MEM, CacheTier.GPU_MEM, staging_addresses, gpu_addresses, sizes)
        else:
            self._copies.enqueue(stream, CacheTier.GPU_MEM, CacheTier.HOST_MEM, gpu_addresses, staging_addresses, sizes)

    def _raise_behind(self, stream: int) -> list[CudaFlag]:
        """Flags that the stream raises after all work enqueued so far; none if that work is done on return."""
        assert self._staging is not None
        flags = self._staging.flags
        if not flags.can_raise:
            self._driver.call("cuStreamSynchronize", stream)
            return []
        flag = self._take_flag()
        try:
            flags.enqueue_raise(stream, flag)
        except KVCacheManagerError:
            flags.release(flag)
            raise
        self._flags_of_streams.append(flag)
        return [flag]

    def _start(self, stream: int, job: DiskJob, gates: list[CudaFlag], earlier_jobs: list[DiskJob]) -> None:
        """Record the job here before the workers get it: whatever interrupts this call, a job that workers have is waited for."""
        job.signal = self._take_flag()
        job.gates.extend(gates)
        # Not before: taking a flag may have found every earlier job done.
        self.is_busy = True
        self.trail.add(stream, job)
        self._open.append(job)
        self._workers.start(job, earlier_jobs)

    def _make_wait(self, stream: int, jobs: list[DiskJob]) -> None:
        """Work enqueued on the stream from now on runs after the jobs are done."""
        assert self._staging is not None
        flags = self._staging.flags
        for job in jobs:
            if not job.is_done:
                flag = job.signal
                if not flags.can_wait or not isinstance(flag, CudaFlag):
                    self._workers.wait(job)
                else:
                    try:
                        flags.enqueue_wait(stream, flag)
                    except KVCacheManagerError as error:
                        _logger.warning("the device refused to let a stream wait for the disk, the host waits instead: %s", str(error))
                        self._workers.wait(job)

    # -- streams and events; only while busy --------------------------------------------------------------------------

    def on_record(self, stream: int, event: int) -> None:
        self.trail.record(stream, event)
        self.poll()

    def on_release(self, event: int) -> None:
        self.trail.forget_event(event)
        self.poll()

    def wait_for(self, jobs: list[DiskJob]) -> None:
        """Block until the workers are done with the jobs, those before an event or on a stream (`trail`)."""
        for job in jobs:
            self._workers.wait(job)

    def raise_failure(self, jobs: list[DiskJob]) -> None:
        """The event or stream behind the jobs is done: raise a failed read among them."""
        self.poll()
        raise_first_unreported(jobs)

    def drain(self) -> None:
        """Block until the workers are done with all jobs."""
        for job in self._open:
            self._workers.wait(job)
        self.poll()

    def poll(self) -> None:
        """Release the resources of finished jobs, and record failures."""
        if not self.is_busy:
            return
        still_open: list[DiskJob] = []
        for job in self._open:
            if job.is_done:
                self._finish(job)
            else:
                still_open.append(job)
        self._open = still_open
        self._collect_flags()
        is_anything_left = self.trail.settle()
        self.is_busy = len(still_open) > 0 or is_anything_left

    def close(self) -> None:
        """Release everything; no range is reserved any more. If the driver refuses, it raises and may be called again."""
        self.drain()
        for error in self.trail.unreported_failures():
            _logger.error("a disk read failed, and no call had waited for it: %s", error)
        self._workers.close()
        with self._context:
            if self._staging is not None:
                self._flags_of_streams.clear()
                # Streams may still copy from the slots, or look at flags: no call had to wait for that.
                self._driver.call("cuCtxSynchronize")
                self._staging.close()
                self._staging = None
            if self._watch is not None:
                self._watch.close()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _finish(self, job: DiskJob) -> None:
        job.record_failed_writes()
        flag = job.signal
        # First clear the reference: an interruption here must not let the flag be released twice.
        job.signal = None
        if self._staging is not None and isinstance(flag, CudaFlag):
            self._staging.flags.release(flag)

    def _collect_flags(self) -> None:
        """Release the flags that streams have raised. A stream that looks at one later still finds it raised."""
        assert self._staging is not None
        waiting = self._flags_of_streams
        self._flags_of_streams = []
        for flag in waiting:
            if flag.is_raised():
                self._staging.flags.release(flag)
            else:
                self._flags_of_streams.append(flag)

    def _take_flag(self) -> CudaFlag:
        """A free flag. If a thousand are in use, wait for the oldest job, or for the stream that raises a flag."""
        assert self._staging is not None
        flag = self._staging.flags.take()
        while flag is None and self._open:
            self._workers.wait(self._open[0])
            self.poll()
            flag = self._staging.flags.take()
        if flag is None:
            self._driver.call("cuCtxSynchronize")
            self._collect_flags()
            flag = self._staging.flags.take()
        if flag is None:
            raise CudaError("no flag is left for copies of the DISK tier, though none is under way: calls were interrupted too often")
        return flag


def _pack(extents: list[DiskExtent]) -> list[list[DiskExtent]]:
    """The extents in order, in groups that fit into a staging slot, each at an aligned place."""
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
    """Extents of the same disk bytes, with the slot at ``address`` as their memory."""
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
