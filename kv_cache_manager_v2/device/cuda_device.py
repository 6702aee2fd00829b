"""An NVIDIA GPU, through cuda-python's driver API.

GPU memory is mapped chunk by chunk (`CudaMemory`), host memory is pinned (`CudaHostMemory`), both at addresses that
never move. Streams may be the device's own (`create_stream`) or the engine's: any CUDA stream of this GPU's
primary context is accepted as ``int(stream)``; only the device's own are checked and can be destroyed. Events are pooled:
recording one makes no driver object once the pool has grown. Copies are passed to the driver as one batch if it can,
else one by one.

Importing this module imports nothing of CUDA. If a test passes its own ``driver`` module, it is used instead
of `cuda.bindings.driver`.

Host functions on streams: one C function serves the process, for good, as a driver that calls it late must still find it. Its argument
is the number of a `Wakeup`, which a thread of the driver's gives when the stream gets there.
"""

from collections.abc import Sequence
from typing import Any, Final, SupportsIndex, final

from mypy_extensions import i64

from ..base.checks import to_bool, to_int, to_list, to_text
from ..base.errors import KVCacheManagerError, LogicError
from ..base.given import Given
from ..base.ids import CacheTier
from .cuda_allocator import CudaAllocator
from .cuda_context import CudaContext, RelaxedCaptures
from .cuda_copies import CudaCopies
from .cuda_disk import CudaDisk
from .cuda_driver import CudaDriver, load_driver_module, name_stream
from .cuda_host_memory import CudaHostMemory
from .cuda_kernel import CudaCompiler, CudaKernel, load_nvrtc_module
from .cuda_memory import CudaMemory
from .cuda_staging import STAGING_SLOT_BYTES
from .cuda_timers import CudaTimers
from .file_port import FilePort
from .handle_table import HandleTable, handle_index
from .host_placement import HostPlacement, count_numa_nodes, find_numa_node
from .port import CopyBatch, HostKernel
from .ranged_device import RangedDevice
from .wakeup import Wakeup
import ctypes


_wakeups: Final[dict[int, Wakeup]] = {}
_functions: Final[list[Any]] = []
"""At most one: made with the first call."""
_last_number: Final[list[int]] = [0]


def forget_wakeup(wakeup: Wakeup) -> None:
    """Calls that are still enqueued do nothing."""
    for number, known in list(_wakeups.items()):
        if known is wakeup:
            del _wakeups[number]


def _number_of(wakeup: Wakeup) -> int:
    for number, known in _wakeups.items():
        if known is wakeup:
            return number
    _last_number[0] += 1
    _wakeups[_last_number[0]] = wakeup
    return _last_number[0]


def _address_of_function() -> int:
    if len(_functions) == 0:
        _functions.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_give))
    address: int = ctypes.cast(_functions[0], ctypes.c_void_p).value or 0
    return address


def _give(number: Any) -> None:
    wakeup = _wakeups.get(number)
    if wakeup is not None:
        wakeup.give()


_DEFAULT_STREAM: Final = 0
_LAST_SPECIAL_STREAM: Final = 2
"""1 and 2 name the default streams of the current context; every other stream belongs to one context. 0 is treated as 1."""

_STREAM_NON_BLOCKING: Final = 1
_EVENT_DISABLE_TIMING: Final = 2
_DEFAULT_GRANULARITY_BYTES: Final = 2 << 20
_MAX_CHUNK_BYTES: Final = 64 << 20
_MAX_REGISTRATION_BYTES: Final = 1 << 30
_PCI_BUS_ID_BYTES: Final = 32
_DEFAULT_DISK_THREADS: Final = 4
_DEFAULT_STAGING_BYTES: Final = 32 << 20


def _validate_sizes(
    granularity_bytes: int, chunk_bytes: int, max_registration_bytes: int, num_disk_threads: int, staging_bytes: int
) -> None:
    if granularity_bytes < 1 or granularity_bytes & (granularity_bytes - 1) != 0:
        raise ValueError(f"granularity_bytes is {granularity_bytes}: it must be a power of two")
    if chunk_bytes < 1 or chunk_bytes & (chunk_bytes - 1) != 0:
        raise ValueError(f"chunk_bytes is {chunk_bytes}: it must be a power of two")
    if max_registration_bytes < granularity_bytes or max_registration_bytes % granularity_bytes != 0:
        raise ValueError(
            f"max_registration_bytes is {max_registration_bytes}: it must be a multiple of the granularity, {granularity_bytes}"
        )
    if num_disk_threads < 1:
        raise ValueError(f"num_disk_threads is {num_disk_threads}: it must be at least 1")
    if staging_bytes < STAGING_SLOT_BYTES or staging_bytes % STAGING_SLOT_BYTES != 0:
        raise ValueError(f"staging_bytes is {staging_bytes}: it must be a multiple of {STAGING_SLOT_BYTES}")


def _find_gpu(driver: CudaDriver, ordinal: int) -> Any:
    """The driver's device of that number; `ValueError` if there is none, `LogicError` if it maps no memory page by page."""
    driver.call("cuInit", 0)
    num_devices: int = driver.call("cuDeviceGetCount")
    if ordinal < 0 or ordinal >= num_devices:
        raise ValueError(f"there is no cuda:{ordinal}: the CUDA driver sees {num_devices} GPUs, counted from 0")
    device = driver.call("cuDeviceGet", ordinal)
    attributes = driver.module.CUdevice_attribute
    if not driver.call("cuDeviceGetAttribute", attributes.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device):
        raise LogicError(f"cuda:{ordinal} cannot map memory page by page; use the host device, or another GPU")
    return device


def _capability_of(driver: CudaDriver, device: Any) -> int:
    """Ten times the major number, and the minor one."""
    attributes = driver.module.CUdevice_attribute
    major: int = driver.call("cuDeviceGetAttribute", attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    minor: int = driver.call("cuDeviceGetAttribute", attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
    return 10 * major + minor


def _name_of(driver: CudaDriver, ordinal: int, device: Any) -> str:
    text: bytes = driver.call("cuDeviceGetName", 256, device)
    return f"cuda:{ordinal} {text.split(bytes(1))[0].decode('utf-8', 'replace')}"


def _find_placement(driver: CudaDriver, ordinal: int, device: Any) -> HostPlacement:
    bus_id: bytes = driver.call("cuDeviceGetPCIBusId", _PCI_BUS_ID_BYTES, device)
    node = find_numa_node(bus_id.split(bytes(1))[0].decode("ascii", "replace"))
    return HostPlacement(f"cuda:{ordinal}", node, count_numa_nodes())


@final
class CudaDevice(RangedDevice):
    """A CUDA device; see the module's docstring. One thread at a time, any thread.

    ``granularity_bytes`` is the smallest unit in which memory is mapped; if the driver's is larger, the driver's is used.
    Large mappings of GPU memory are made of chunks of up to ``chunk_bytes``, which are freed as a whole: see `CudaMemory`.
    ``gpu_direct_rdma``: network cards may access GPU memory; None: if the GPU can. ``peers``: ordinals of GPUs that
    may access it at the same addresses. ``exportable_as``: other processes may map it, "file_descriptor" or "fabric";
    `export_memory` returns the handles.
    Host memory is pinned in pieces of ``max_registration_bytes`` at most. ``files``: replaces the operating system's.
    ``num_disk_threads``: disk transfers in progress at a time. Bytes between disk and GPU pass through ``staging_bytes`` of
    pinned memory, which is allocated with the first range of the DISK tier. ``streams_wait_for_disk=False``: no stream waits for a
    disk, the call that copies does; for engines that launch kernels without releasing the GIL, or with
    CUDA_DEVICE_MAX_CONNECTIONS=1.
    """

    __slots__ = (
        "ordinal",
        "_driver",
        "_name",
        "_nvrtc_module",
        "_capability",
        "_total_bytes",
        "_captures",
        "_context",
        "_disk",
        "_gpu_memory",
        "_host_memory",
        "_streams",
        "_events",
        "_event_objects",
        "_timers",
        "_kernels",
        "_copies",
    )

    def __init__(
        self,
        ordinal: SupportsIndex = 0,
        *,
        driver: Any = None,
        nvrtc: Any = None,
        granularity_bytes: SupportsIndex = _DEFAULT_GRANULARITY_BYTES,
        chunk_bytes: SupportsIndex = _MAX_CHUNK_BYTES,
        gpu_direct_rdma: Given[bool | None] = None,
        peers: Given[Sequence[SupportsIndex]] = (),
        exportable_as: Given[str | None] = None,
        max_registration_bytes: SupportsIndex = _MAX_REGISTRATION_BYTES,
        files: Given[FilePort | None] = None,
        num_disk_threads: SupportsIndex = _DEFAULT_DISK_THREADS,
        staging_bytes: SupportsIndex = _DEFAULT_STAGING_BYTES,
        streams_wait_for_disk: Given[bool] = True,
    ) -> None:
        ordinal = to_int(ordinal, "ordinal")
        granularity_bytes = to_int(granularity_bytes, "granularity_bytes")
        chunk_bytes = to_int(chunk_bytes, "chunk_bytes")
        max_registration_bytes = to_int(max_registration_bytes, "max_registration_bytes")
        num_disk_threads = to_int(num_disk_threads, "num_disk_threads")
        staging_bytes = to_int(staging_bytes, "staging_bytes")
        _validate_sizes(granularity_bytes, chunk_bytes, max_registration_bytes, num_disk_threads, staging_bytes)
        if files is not None and not isinstance(files, FilePort):
            raise TypeError(f"files must be a FilePort or None, not {type(files).__name__}")
        others = [to_int(peer, "peers") for peer in to_list(peers, "peers")]
        handle_kind = None if exportable_as is None else to_text(exportable_as, "exportable_as")
        waits_for_disk = to_bool(streams_wait_for_disk, "streams_wait_for_disk")
        checked = CudaDriver(load_driver_module() if driver is None else driver)
        device = _find_gpu(checked, ordinal)
        allocator = CudaAllocator(checked, ordinal, device, gpu_direct_rdma, others, handle_kind)
        gpu_memory = CudaMemory(checked, allocator, granularity_bytes, chunk_bytes)
        super().__init__(gpu_memory.granularity_bytes, granularity_bytes, files, num_disk_threads)
        self._driver: Final[CudaDriver] = checked
        self._captures: Final = RelaxedCaptures(checked)
        self.ordinal: Final[int] = ordinal
        """The GPU's number, as CUDA counts the visible ones."""
        self._name: Final[str] = _name_of(checked, ordinal, device)
        self._nvrtc_module: Final = nvrtc  # None: cuda.bindings.nvrtc, when first needed
        self._capability: Final[int] = _capability_of(checked, device)
        self._total_bytes: Final[int] = checked.call("cuDeviceTotalMem", device)
        self._gpu_memory: Final[CudaMemory] = gpu_memory
        self._host_memory: Final = CudaHostMemory(checked, _find_placement(checked, ordinal, device), max_registration_bytes)
        self._streams: Final[dict[int, Any]] = {}  # the device's own
        self._events: Final = HandleTable("event")
        self._event_objects: Final[list[Any]] = []  # the pool, by the handle's index
        self._kernels: Final[list[CudaKernel]] = []
        self._copies: Final = CudaCopies(checked, self._gpu_ranges, self._host_memory)
        # Last, so that a failure above has nothing to release.
        self._context: Final = CudaContext(checked, device)
        self._timers: Final = CudaTimers(checked, self._context)
        self._disk: Final = CudaDisk(
            checked, self._context, self._host_memory, self._copies, self._disk_ranges, self._workers, staging_bytes // STAGING_SLOT_BYTES,
            waits_for_disk,
        )  # fmt: skip

    # -- properties ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_software(self) -> bool:
        return False

    # -- memory -------------------------------------------------------------------------------------------------------

    def total_bytes(self, tier: CacheTier) -> int:
        return self._total_bytes if tier == CacheTier.GPU_MEM else super().total_bytes(tier)

    def _reserve(self, tier: CacheTier, num_bytes: int) -> int:
        if tier != CacheTier.GPU_MEM:
            return super()._reserve(tier, num_bytes)
        with self._captures:
            return self._gpu_memory.reserve(num_bytes)

    def _release(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        if tier == CacheTier.GPU_MEM:
            with self._captures:
                self._gpu_memory.release(address, num_bytes)
        else:
            super()._release(tier, address, num_bytes)

    def _map(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        if tier == CacheTier.GPU_MEM:
            with self._captures:
                self._gpu_memory.map(address, num_bytes)
        else:
            with self._context:
                self._host_memory.map(address, num_bytes)

    def _unmap(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        if tier == CacheTier.GPU_MEM:
            with self._captures:
                self._gpu_memory.unmap(address, num_bytes)
        else:
            with self._context:
                self._host_memory.unmap(address, num_bytes)

    def _prepare_disk(self) -> None:
        self._disk.prepare()

    def _poll_disk(self) -> None:
        self._disk.poll()

    def _drain_disk(self) -> None:
        if self._disk.is_busy:
            self._disk.drain()

    def export_memory(self, address: int, num_bytes: int) -> list[tuple[int, int, int | bytes]]:
        """Handles by which another process or machine can map these mapped bytes of GPU memory, a pool's, say: address, size and
        handle of each chunk that overlaps them, in order. The first and the last chunk may reach beyond them.

        A handle is a file descriptor, which the caller closes, or the bytes of a fabric handle, as chosen by ``exportable_as``.
        The memory is freed when it is unmapped here and everywhere else.
        """
        self._require_open()
        self._gpu_ranges.require_bytes(address, num_bytes, "an export")
        return self._gpu_memory.export(address, num_bytes)

    # -- streams and events -------------------------------------------------------------------------------------------

    def default_stream(self) -> int:
        """CUDA's legacy default stream, which is also PyTorch's."""
        return _DEFAULT_STREAM

    def create_stream(self) -> int:
        self._require_open()
        with self._context:
            stream = self._driver.call("cuStreamCreate", _STREAM_NON_BLOCKING)
        handle = int(stream)
        self._streams[handle] = stream
        return handle

    def destroy_stream(self, stream: int) -> None:
        self._require_open()
        if stream not in self._streams:
            raise LogicError(f"{stream} is no stream that this device created, or it was destroyed already")
        with self._context:
            self._driver.call("cuStreamDestroy", self._streams[stream])
        del self._streams[stream]
        if self._disk.is_busy:
            self._disk.trail.forget_stream(stream)

    def synchronize_stream(self, stream: int) -> None:
        self._require_open()
        stream = name_stream(stream)
        is_busy = self._disk.is_busy
        if is_busy:
            self._disk.wait_for(self._disk.trail.jobs_of_stream(stream))
        with self._context:
            self._driver.call("cuStreamSynchronize", stream)
        if is_busy:
            self._disk.raise_failure(self._disk.trail.jobs_of_stream(stream))

    def record_event(self, stream: int) -> int:
        self._require_open()
        stream = name_stream(stream)
        handle = self._events.allocate()
        try:
            index = handle_index(handle)
            if index == len(self._event_objects):
                self._add_event_object()
            event = self._event_objects[index]
            if stream <= _LAST_SPECIAL_STREAM:
                with self._context:
                    self._driver.record_event(event, stream)
            else:
                self._driver.record_event(event, stream)
        except KVCacheManagerError:
            self._events.free(handle)
            raise
        if self._disk.is_busy:
            self._disk.on_record(stream, handle)
        return handle

    def wait_event(self, stream: int, event: int) -> None:
        self._require_open()
        stream = name_stream(stream)
        event_object = self._event_object(event)
        if stream <= _LAST_SPECIAL_STREAM:
            with self._context:
                self._driver.wait_event(stream, event_object)
        else:
            self._driver.wait_event(stream, event_object)
        if self._disk.is_busy:
            self._disk.trail.wait(stream, event)

    def is_event_done(self, event: int) -> bool:
        self._require_open()
        is_done = self._driver.is_event_done(self._event_object(event))
        if is_done and self._disk.is_busy:
            self._disk.raise_failure(self._disk.trail.jobs_of_event(event))
        return is_done

    def synchronize_event(self, event: int) -> None:
        self._require_open()
        event_object = self._event_object(event)
        is_busy = self._disk.is_busy
        if is_busy:
            self._disk.wait_for(self._disk.trail.jobs_of_event(event))
        with self._captures:
            self._driver.call("cuEventSynchronize", event_object)
        if is_busy:
            self._disk.raise_failure(self._disk.trail.jobs_of_event(event))

    def release_event(self, event: int) -> None:
        """Return the event to the pool. Waits that were enqueued refer to what it had recorded, not to the driver's object."""
        self._require_open()
        self._events.free(event)
        if self._disk.is_busy:
            self._disk.on_release(event)

    def wake_after(self, stream: int, wakeup: Wakeup) -> bool:
        self._require_open()
        with self._context:
            self._driver.call("cuLaunchHostFunc", name_stream(stream), _address_of_function(), _number_of(wakeup))
        return True

    def forget_wakeup(self, wakeup: Wakeup) -> None:
        forget_wakeup(wakeup)

    # -- timers -------------------------------------------------------------------------------------------------------

    def start_timer(self, stream: int) -> int:
        self._require_open()
        return self._timers.start(name_stream(stream))

    def stop_timer(self, stream: int, timer: int) -> None:
        self._require_open()
        self._timers.stop(name_stream(stream), timer)

    def read_timer(self, timer: int) -> float:
        self._require_open()
        return self._timers.read(timer)

    def release_timer(self, timer: int) -> None:
        self._require_open()
        self._timers.release(timer)

    # -- work ---------------------------------------------------------------------------------------------------------

    def copy_batch(self, stream: int, batch: CopyBatch) -> None:
        self._require_open()
        stream = name_stream(stream)
        self._validate_batch(batch)
        if batch.count == 0:
            return
        if batch.dst_tier == CacheTier.DISK or batch.src_tier == CacheTier.DISK:
            self._disk.copy(stream, batch)
            return
        with self._context:
            self._copies.enqueue_batch(stream, batch)

    def fill(self, stream: int, address: int, num_bytes: int, value: int) -> None:
        self._require_open()
        stream = name_stream(stream)
        self._validate_fill(address, num_bytes, value)
        with self._context:
            self._driver.call("cuMemsetD8Async", address, value, num_bytes, stream)

    def launch(self, stream: int, kernel: HostKernel) -> None:
        raise LogicError(f"{self._name} runs no host kernels; compile a CUDA kernel and launch that")

    def compile(self, source: str, name: str, options: Sequence[str] = ()) -> CudaKernel:
        """Compile CUDA C++ and return its function ``name`` (declared ``extern "C"``); the device's `close` unloads
        it.
        """
        self._require_open()
        nvrtc = load_nvrtc_module() if self._nvrtc_module is None else self._nvrtc_module
        image = CudaCompiler(nvrtc, self._capability).compile(source, options)
        kernel = CudaKernel(self._driver, self._context, image, name)
        self._kernels.append(kernel)
        return kernel

    def close(self) -> None:
        """Release everything that the device made. If the driver refuses, it raises and may be called again."""
        if self._is_closed:
            return
        self._require_released()
        self._disk.close()
        while self._kernels:
            self._kernels[-1].close()
            self._kernels.pop()
        with self._context:
            self._timers.close()
            while self._event_objects:
                self._driver.call("cuEventDestroy", self._event_objects[-1])
                self._event_objects.pop()
            for stream in list(self._streams):
                self._driver.call("cuStreamDestroy", self._streams[stream])
                del self._streams[stream]
        with self._captures:
            self._gpu_memory.close()
        self._context.close()
        self._is_closed = True

    # -- inside -------------------------------------------------------------------------------------------------------

    def _event_object(self, event: i64) -> Any:
        self._events.require_live(event)
        return self._event_objects[handle_index(event)]

    def _add_event_object(self) -> None:
        with self._context:
            self._event_objects.append(self._driver.call("cuEventCreate", _EVENT_DISABLE_TIMING))
