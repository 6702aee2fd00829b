"""What may go wrong on the first card, one case each: captures, launch queues, idle streams, batches, contexts, faults, fork, MPS.

A case is a function of a `Setting`; it raises what is wrong, or `Skipped`. `gpu_report` runs each in a process of its own, under a
time limit: a case that hangs or breaks the context harms no other one.
"""

import ctypes
import gc
import importlib
import importlib.util
import os
import shutil
import subprocess
import threading
import time
from typing import Any

import numpy as np

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    BufferId,
    CoalescedBuffer,
    DataRole,
    GpuCacheTierConfig,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerGroupId,
    LayerId,
    LogicError,
    SlotDescVariant,
)
from kv_cache_manager_v2.base.errors import CudaError, KVCacheManagerError
from kv_cache_manager_v2.codecs.float8_codec import Float8Codec
from kv_cache_manager_v2.device.port import CopyBatch

from .gpu_figures import Figure, Figures
from .gpu_setting import DISK, GPU, HOST, MIB, Setting, Skipped, Tiers

PIECE = 256 << 10
NOTHING = 'extern "C" __global__ void nothing(unsigned long long x) {}'
SPIN = """
extern "C" __global__ void spin(long long cycles) {
    long long began = clock64();
    while (clock64() - began < cycles) {}
}
"""
POKE = 'extern "C" __global__ void poke(unsigned long long* address) { *address = 1; }'
_NUM_LAUNCHES = 5000
_PATIENCE_SECONDS = 60.0


# -- captures ---------------------------------------------------------------------------------------------------------


def capture(setting: Setting, mode_name: str) -> Figures:
    """An engine captures a graph while pages go to a disk and come back: the capture stays valid, and the bytes are right."""
    mode = getattr(setting.driver.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{mode_name}")
    with Tiers(setting, setting.pick(64 * MIB, 4 * MIB)) as tiers:
        device = tiers.device
        tiers.fill_host(1, PIECE)
        expected = tiers.host_bytes(PIECE)
        tiers.copy(GPU, HOST, PIECE, turned=True)
        tiers.synchronize()
        setting.push_context()
        captured = setting.call("cuStreamCreate", 1)
        scratch = tiers.address(GPU)
        setting.call("cuStreamBeginCapture", captured, mode)
        tiers.copy(DISK, GPU, PIECE)
        event = device.record_event(tiers.stream)
        end = time.monotonic() + 0.3
        while time.monotonic() < end and not device.is_event_done(event):
            time.sleep(0.001)  # the workers' turn
        setting.call("cuMemsetD8Async", scratch, 0, 4096, captured)
        graph = setting.driver.cuStreamEndCapture(captured)
        assert int(graph[0]) == 0, f"the capture ended with {graph[0]}"
        setting.call("cuStreamDestroy", captured)
        setting.pop_context()
        device.synchronize_event(event)
        device.release_event(event)
        device.fill(tiers.stream, tiers.address(GPU), tiers.num_bytes, 255)
        tiers.copy(GPU, DISK, PIECE)
        tiers.copy(HOST, GPU, PIECE)
        tiers.synchronize()
        assert tiers.host_bytes(PIECE) == expected[::-1]
    return []


def capture_global(setting: Setting) -> Figures:
    return capture(setting, "GLOBAL")


def capture_thread_local(setting: Setting) -> Figures:
    return capture(setting, "THREAD_LOCAL")


# -- queues -----------------------------------------------------------------------------------------------------------


def _launch_behind_a_disk(setting: Setting, tiers: Tiers, launch: Any) -> Figures:
    tiers.copy(GPU, HOST, PIECE)
    tiers.copy(DISK, GPU, PIECE)
    tiers.synchronize()
    tiers.copy(GPU, DISK, PIECE)
    done = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(_NUM_LAUNCHES):
                launch()
        except BaseException as error:
            errors.append(error)
        done.set()

    began = time.monotonic()
    threading.Thread(target=work, daemon=True).start()
    assert done.wait(_PATIENCE_SECONDS), f"{_NUM_LAUNCHES} launches are not through after {_PATIENCE_SECONDS:.0f} s"
    seconds = time.monotonic() - began
    if errors:
        raise errors[0]
    tiers.synchronize()
    return [Figure(f"{_NUM_LAUNCHES} launches behind a disk read of {tiers.num_bytes >> 20} MiB", seconds * 1e3, "ms")]


def launches_through_bindings(setting: Setting) -> Figures:
    """A stream takes a thousand launches, then the launching thread blocks; cuda-python lets other threads run meanwhile."""
    setting.require_kernels()
    with Tiers(setting, setting.pick(64 * MIB, 2 * MIB)) as tiers:
        kernel = tiers.device.compile(NOTHING, "nothing")
        argument = [ctypes.c_uint64(0)]
        return _launch_behind_a_disk(setting, tiers, lambda: kernel.launch(tiers.stream, (1, 1, 1), (1, 1, 1), argument))


def launches_that_hold_the_gil(setting: Setting) -> Figures:
    """The same by an extension that lets no other Python thread run; the device is told so (``streams_wait_for_disk=False``)."""
    setting.require_kernels()
    with Tiers(setting, setting.pick(64 * MIB, 2 * MIB), streams_wait_for_disk=False) as tiers:
        kernel: Any = tiers.device.compile(NOTHING, "nothing")
        argument = ctypes.c_uint64(0)
        if setting.is_python_fake:
            setting.driver.holds_gil = True
            return _launch_behind_a_disk(setting, tiers, lambda: kernel.launch(tiers.stream, (1, 1, 1), (1, 1, 1), [argument]))
        function = ctypes.c_void_p(int(kernel._function))
        words = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        holding = ctypes.PyDLL("libcuda.so.1")
        context = ctypes.c_void_p(int(setting.call("cuDevicePrimaryCtxRetain", setting.call("cuDeviceGet", 0))))
        stream = ctypes.c_void_p(tiers.stream)

        def launch() -> None:
            holding.cuCtxSetCurrent(context)
            status = holding.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, words, None)
            assert status == 0, f"cuLaunchKernel: {status}"

        figures = _launch_behind_a_disk(setting, tiers, launch)
        setting.call("cuDevicePrimaryCtxRelease", setting.call("cuDeviceGet", 0))
        return figures


def idle_streams(setting: Setting) -> Figures:
    """Forty streams with nothing to do beside one that waits for a disk: they must not wait for it as well."""
    size = setting.pick(MIB, PIECE)
    with Tiers(setting, setting.pick(256 * MIB, 2 * MIB)) as tiers:
        device = tiers.device
        others = [device.create_stream() for _ in range(40)]
        tiers.copy(DISK, HOST, size)
        tiers.synchronize()
        tiers.copy(GPU, DISK, size)
        began = time.perf_counter()
        for stream in others:
            device.fill(stream, tiers.address(GPU) + tiers.num_bytes - 4096, 4096, 1)
        late = 0.0
        for stream in others:
            device.synchronize_stream(stream)
            late = time.perf_counter() - began
        tiers.synchronize()
        whole = time.perf_counter() - began
    queues = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "default")
    return [
        Figure(f"40 idle streams beside a disk wait, hardware queues: {queues}", late * 1e3, "ms"),
        Figure(f"the disk wait itself ({tiers.num_bytes >> 20} MiB)", whole * 1e3, "ms"),
    ]


def idle_streams_with_one_queue(setting: Setting) -> Figures:
    """`gpu_report` sets CUDA_DEVICE_MAX_CONNECTIONS=1 for this one."""
    return idle_streams(setting)


# -- memory -----------------------------------------------------------------------------------------------------------


def batches(setting: Setting) -> Figures:
    """640 bytes divide no granule and no registration, so some copies cross."""
    size = 640
    figures: Figures = []
    with Tiers(setting, setting.pick(64 * MIB, 8 * MIB), max_registration_bytes=2 * MIB) as tiers:
        for count in (2, 1000, setting.pick(100_000, 10_000)):
            data = bytes(range(256)) * (count * size // 256 + 1)
            ctypes.memmove(tiers.address(HOST), data, count * size)
            began = time.perf_counter()
            tiers.copy(GPU, HOST, size, turned=True, count=count)
            enqueued = time.perf_counter()
            tiers.synchronize()
            ctypes.memset(tiers.address(HOST), 0xEE, count * size)
            batch = CopyBatch(HOST, GPU, size)
            for index in range(count):
                batch.add(tiers.address(HOST) + index * size, tiers.address(GPU) + (count - 1 - index) * size)
            tiers.device.copy_batch(tiers.stream, batch)
            tiers.synchronize()
            assert ctypes.string_at(tiers.address(HOST), count * size) == data[: count * size]
            figures.append(Figure(f"enqueue a batch of {count} copies", (enqueued - began) / count * 1e9, "ns a copy"))
    return figures


def packed_pages(setting: Setting) -> Figures:
    """`Float8Codec`'s kernels pack pages into host memory and unpack them: the bytes that its numpy makes of equal ones."""
    setting.require_kernels()
    run, size = 512, 64 << 10
    codec = Float8Codec("bfloat16", run)
    buffer_ids = (BufferId(LayerId(0), DataRole("key")), BufferId(LayerId(0), DataRole("value")))
    page = SlotDescVariant(LayerGroupId(0), (CoalescedBuffer(size, buffer_ids),))
    cold_bytes = codec.cold_bytes(page)
    with Tiers(setting, setting.pick(64 * MIB, 2 * MIB)) as tiers:
        count = tiers.num_bytes // (2 * size)
        numbers = np.random.default_rng(11).standard_normal(tiers.num_bytes // 2).astype(np.float32)
        rows = (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1, size)
        packed = np.zeros((count, cold_bytes), np.uint8)
        packed[:, : 2 * codec.packed_bytes("key", size)] = codec.pack(rows).reshape(count, -1)
        ctypes.memmove(tiers.address(HOST), rows.ctypes.data, rows.size)
        tiers.copy(GPU, HOST, 2 * size)
        tiers.synchronize()
        ctypes.memset(tiers.address(HOST), 0, tiers.num_bytes)
        hot = [[tiers.address(GPU) + number * 2 * size for number in range(count)]]
        cold = [tiers.address(HOST) + number * cold_bytes for number in range(count)]
        figures: Figures = []
        for name, call in (("pack", codec.encode), ("unpack", codec.decode)):
            call(tiers.device, tiers.stream, page, hot, cold)  # the first launch loads the kernel
            tiers.synchronize()
            began = time.perf_counter()
            call(tiers.device, tiers.stream, page, hot, cold)
            tiers.synchronize()
            rate = tiers.num_bytes / (time.perf_counter() - began) / 1e9
            figures.append(Figure(f"{name} pages of {2 * size} bytes as float8", rate, "GB/s"))
            if name == "pack":
                assert ctypes.string_at(cold[0], packed.size) == packed.tobytes(), "the kernel packs other bytes than numpy"
        tiers.copy(HOST, GPU, 2 * size)
        tiers.synchronize()
        expected = codec.unpack(codec.pack(rows)).tobytes()
        assert ctypes.string_at(tiers.address(HOST), tiers.num_bytes) == expected, "the kernel unpacks other bytes than numpy"
    return figures


def rdma(setting: Setting) -> Figures:
    """Pools can be registered with a network card where the GPU can do that at all."""
    if setting.is_fake:
        raise Skipped("the fake drivers know no pointer attributes")
    driver = setting.driver
    setting.call("cuInit", 0)
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
    supported = setting.call("cuDeviceGetAttribute", attribute, setting.call("cuDeviceGet", 0))
    with Tiers(setting, 2 * MIB) as tiers:
        pool_attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        setting.push_context()
        capable = bool(setting.call("cuPointerGetAttribute", pool_attribute, tiers.address(GPU)))
        setting.pop_context()
    assert capable == bool(supported), f"the GPU {'can' if supported else 'cannot'}, its pool {'can' if capable else 'cannot'}"
    return [Figure("GPUDirect RDMA of pools (1: can)", float(capable), "")]


def small_config(num_slots: int = 64, tokens_per_block: int = 4) -> KVCacheManagerConfig:
    buffers = [BufferConfig("key", 64 * tokens_per_block), BufferConfig("value", 64 * tokens_per_block)]
    layers = [AttentionLayerConfig(LayerId(0), buffers)]
    return KVCacheManagerConfig(tokens_per_block, [GpuCacheTierConfig(num_slots * 128 * tokens_per_block)], layers)


def views(setting: Setting, library_name: str) -> Figures:
    """A thousand arrays over a pool, made and dropped: every capsule's deleter runs, and the pool can go."""
    if importlib.util.find_spec(library_name) is None:
        raise Skipped(f"{library_name} is not installed")
    if setting.is_fake:
        raise Skipped(f"{library_name} takes no memory of a fake driver")
    library: Any = importlib.import_module(library_name)
    if library_name == "torch" and not library.cuda.is_available():
        raise Skipped("this torch has no CUDA")
    device = setting.make_device()
    with KVCacheManager(small_config(), device=device) as manager:
        view = manager.pool_view(0, "value", by_slot=True)
        for value in range(1000):
            array = library.from_dlpack(view)
            array[3] = value % 100
        found = int(array[3].reshape(-1)[0])
        assert found == 999 % 100
        del array
        gc.collect()
        view.release()
    device.close()
    return []


def views_of_torch(setting: Setting) -> Figures:
    return views(setting, "torch")


def views_of_cupy(setting: Setting) -> Figures:
    return views(setting, "cupy")


# -- contexts, faults, processes --------------------------------------------------------------------------------------


def _round_trip(setting: Setting) -> None:
    with Tiers(setting, 2 * MIB) as tiers:
        tiers.fill_host(3, PIECE)
        expected = tiers.host_bytes(PIECE)
        tiers.copy(GPU, HOST, PIECE, turned=True)
        tiers.copy(DISK, GPU, PIECE)
        tiers.copy(HOST, DISK, PIECE)
        tiers.synchronize()
        assert tiers.host_bytes(PIECE) == expected[::-1]


def two_contexts(setting: Setting) -> Figures:
    """The calling thread works in another context: the device uses its own, and leaves the thread's current."""
    setting.call("cuInit", 0)
    if int(setting.call("cuDeviceGetCount")) > 1:
        other = setting.call("cuDevicePrimaryCtxRetain", setting.call("cuDeviceGet", 1))
    elif not hasattr(setting.driver, "cuCtxCreate") or setting.is_fake:
        raise Skipped("one GPU, and this driver makes no second context")
    else:
        device = setting.call("cuDeviceGet", 0)
        try:
            other = setting.call("cuCtxCreate", None, 0, device)  # CUDA 13
        except TypeError:
            other = setting.call("cuCtxCreate", 0, device)
    setting.call("cuCtxPushCurrent", other)
    _round_trip(setting)
    assert int(setting.call("cuCtxGetCurrent")) == int(other)
    setting.call("cuCtxPopCurrent")
    return []


def illegal_address(setting: Setting) -> Figures:
    """A kernel of the engine writes where no memory is: every call of the device says so, and nothing hangs."""
    setting.require_kernels()
    device = setting.make_device()
    stream = device.create_stream()
    if setting.is_python_fake:
        setting.driver.break_context()
    else:
        device.compile(POKE, "poke").launch(stream, (1, 1, 1), (1, 1, 1), [ctypes.c_uint64(16)])
    for call in (lambda: device.synchronize_stream(stream), device.create_stream, lambda: device.record_event(stream)):
        try:
            call()
        except CudaError as error:
            assert "700" in str(error), error
        else:
            raise AssertionError("a call on a broken context passed")
    try:
        device.close()
    except KVCacheManagerError:
        pass  # it may refuse to give back what the driver no longer takes
    return []


def fork(setting: Setting) -> Figures:
    """A forked child may not use the parent's manager, is told so, and ends; the parent goes on."""
    device = setting.make_device()
    with KVCacheManager(small_config(), device=device) as manager:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                manager.create_kv_cache()
            except LogicError:
                status = 0
            os._exit(status)
        _, state = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(state) == 0, "the child could use the parent's manager"
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(10)
    device.close()
    return []


def mps(setting: Setting) -> Figures:
    """Two processes share the GPU through the daemon of NVIDIA's multi-process service."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise Skipped("nvidia-cuda-mps-control is not installed")
    asked = subprocess.run([control], input="get_server_list\n", capture_output=True, text=True, timeout=20)
    if asked.returncode != 0 or "not" in asked.stdout + asked.stderr:
        raise Skipped("the MPS daemon is not running; start it with: nvidia-cuda-mps-control -d")
    from .gpu_report import start_case

    children = [start_case("round_trip", setting.folder) for _ in range(2)]
    for child in children:
        output, _ = child.communicate(timeout=100)
        assert child.returncode == 0 and '"passed"' in output, output
    return []


def round_trip(setting: Setting) -> Figures:
    """GPU, host and disk, once round."""
    _round_trip(setting)
    return []


CASES = {
    case.__name__: case
    for case in (
        round_trip,
        capture_global,
        capture_thread_local,
        launches_through_bindings,
        launches_that_hold_the_gil,
        idle_streams,
        idle_streams_with_one_queue,
        batches,
        packed_pages,
        rdma,
        views_of_torch,
        views_of_cupy,
        two_contexts,
        illegal_address,
        fork,
        mps,
    )
}
