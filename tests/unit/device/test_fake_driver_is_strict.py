"""The fake driver refuses what the driver refuses: each rule of `fake_cuda_contexts` and `async_cuda_driver`, broken on purpose."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from .async_cuda_driver import AsyncCudaDriver
from .fake_cuda_driver import GRANULARITY_BYTES, FakeCudaDriver
from .fake_cuda_types import (
    CUdevice,
    CUdeviceptr,
    CUmemAccess_flags,
    CUmemAccessDesc,
    CUmemAllocationProp,
    CUmemAllocationType,
    CUmemLocationType,
    CUresult,
    CUstreamCaptureMode,
    CUstreamCaptureStatus,
    DriverMisuse,
)
from .kernels_on_host import COMPILER, KernelsOnHost

GLOBAL = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
THREAD_LOCAL = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
RELAXED = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
SUCCESS = CUresult.CUDA_SUCCESS
_PAGES: list[Any] = []
"""Streams may write to them when a test is over."""

Answer = tuple[Any, ...]


class Engine:
    """A thread's context, and memory: two granules on the GPU, one page on the host."""

    def __init__(self, driver: FakeCudaDriver, ordinal: int = 0) -> None:
        self.driver = driver
        driver.cuInit(0)
        device = driver.cuDeviceGet(ordinal)[1]
        self.context = driver.cuDevicePrimaryCtxRetain(device)[1]
        driver.cuCtxPushCurrent(self.context)
        self.stream = driver.cuStreamCreate(1)[1]
        self.event = driver.cuEventCreate(2)[1]
        prop = CUmemAllocationProp()
        prop.type = CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        access = CUmemAccessDesc()
        access.flags = CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        for location in (prop.location, access.location):
            location.type = CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            location.id = ordinal
        self.gpu = int(driver.cuMemAddressReserve(4 * GRANULARITY_BYTES, GRANULARITY_BYTES, 0, 0)[1])
        for granule in (self.gpu, self.gpu + GRANULARITY_BYTES):
            self.handle = driver.cuMemCreate(GRANULARITY_BYTES, prop, 0)[1]
            driver.cuMemMap(granule, GRANULARITY_BYTES, 0, self.handle, 0)
        driver.cuMemSetAccess(self.gpu, 2 * GRANULARITY_BYTES, [access], 1)
        page = ctypes.create_string_buffer(8192)
        _PAGES.append(page)
        self.host = ctypes.addressof(page)
        assert driver.cuMemHostRegister(self.host, 8192, 3)[0] == SUCCESS

    def record(self) -> Answer:
        return self.driver.cuEventRecord(self.event, self.stream)

    def copy(self, dst: int, src: int, num_bytes: int) -> Answer:
        return self.driver.cuMemcpyAsync(CUdeviceptr(dst), CUdeviceptr(src), num_bytes, self.stream)

    def fill(self, value: int) -> Answer:
        return self.driver.cuMemsetD8Async(self.gpu, value, 64, self.stream)

    def copy_batch(self, dsts: list[int], srcs: list[int], num_bytes: int) -> Answer:
        sizes = [num_bytes] * len(dsts)
        return self.driver.cuMemcpyBatchAsync(dsts, srcs, sizes, len(dsts), [1, 0, 0, 0, 0, 0], [0], 1, int(self.stream))


@pytest.fixture
def engine() -> Engine:
    return Engine(AsyncCudaDriver(1, eager=False))


def in_a_thread(call: Callable[[], Answer]) -> Answer:
    """Of a thread that has no context and has never exchanged its mode."""
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    thread.join()
    return answers[0]


# -- contexts ---------------------------------------------------------------------------------------------------------


def test_a_thread_without_a_context_is_refused(engine: Engine) -> None:
    driver = engine.driver
    refused: list[Callable[[], Answer]] = [
        lambda: driver.cuStreamCreate(1),
        lambda: driver.cuEventCreate(2),
        lambda: driver.cuMemHostRegister(engine.host + 4096, 4096, 3),
        lambda: driver.cuStreamSynchronize(0),
        lambda: driver.cuCtxSynchronize(),
        lambda: engine.copy(engine.gpu, engine.host, 16),
    ]
    for call in refused:
        assert in_a_thread(call)[0] == CUresult.CUDA_ERROR_INVALID_CONTEXT
    assert len(driver.refusals) == len(refused)
    # Streams and events know their context.
    assert in_a_thread(engine.record)[0] == SUCCESS
    assert in_a_thread(lambda: driver.cuEventQuery(engine.event))[0] in (SUCCESS, CUresult.CUDA_ERROR_NOT_READY)


def test_events_are_recorded_on_streams_of_their_own_context() -> None:
    driver = AsyncCudaDriver(2, num_devices=2)
    first, second = Engine(driver, 0), Engine(driver, 1)
    assert driver.cuEventRecord(first.event, second.stream)[0] == CUresult.CUDA_ERROR_INVALID_HANDLE
    assert driver.cuEventRecord(first.event, 0)[0] == CUresult.CUDA_ERROR_INVALID_HANDLE  # the second one is current
    assert first.record()[0] == SUCCESS
    assert driver.cuStreamWaitEvent(second.stream, first.event, 0)[0] == SUCCESS
    driver.cuCtxPopCurrent()
    assert driver.cuEventRecord(first.event, 0)[0] == SUCCESS


def test_kernels_run_on_streams_of_the_current_context() -> None:
    driver = AsyncCudaDriver(2, num_devices=2)
    first, second = Engine(driver, 0), Engine(driver, 1)
    function = driver.cuModuleGetFunction(driver.cuModuleLoadData(b"cubin:")[1], b"nothing")[1]
    words = ctypes.c_uint64(0)

    def launch(stream: Any) -> CUresult:
        status: CUresult = driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, ctypes.addressof(words), 0)[0]
        return status

    assert launch(first.stream) == CUresult.CUDA_ERROR_INVALID_HANDLE
    assert launch(second.stream) == SUCCESS


# -- faults -----------------------------------------------------------------------------------------------------------


def test_after_a_fault_every_call_returns_it_until_the_context_is_gone(engine: Engine) -> None:
    driver = engine.driver
    engine.fill(1)
    driver.break_context()
    function_calls: list[Callable[[], Answer]] = [
        engine.record,
        lambda: engine.fill(2),
        lambda: driver.cuEventQuery(engine.event),
        lambda: driver.cuStreamSynchronize(engine.stream),
        lambda: driver.cuMemUnmap(engine.gpu, GRANULARITY_BYTES),
        lambda: driver.cuMemHostUnregister(engine.host),
        lambda: driver.cuEventDestroy(engine.event),
        lambda: driver.cuStreamCreate(1),
    ]
    for call in function_calls:
        assert call()[0] == CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    assert driver.cuDriverGetVersion()[0] == SUCCESS
    driver.cuCtxPopCurrent()
    assert driver.cuDevicePrimaryCtxRelease(CUdevice(0))[0] == SUCCESS
    assert driver.fault is None


def test_memory_is_looked_at_when_work_runs(engine: Engine) -> None:
    """It was mapped when the copy was enqueued. The rule that it may not be unmapped then is left aside here."""
    driver = engine.driver
    engine.copy(engine.host, engine.gpu, 64)
    FakeCudaDriver.cuMemUnmap(driver, engine.gpu, GRANULARITY_BYTES)
    assert driver.cuStreamSynchronize(engine.stream)[0] == CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    assert engine.record()[0] == CUresult.CUDA_ERROR_ILLEGAL_ADDRESS


# -- pending work -----------------------------------------------------------------------------------------------------


def test_nothing_goes_that_work_in_a_queue_will_use(engine: Engine) -> None:
    driver = engine.driver
    module = driver.cuModuleLoadData(b"cubin:")[1]
    function = driver.cuModuleGetFunction(module, b"nothing")[1]
    words = ctypes.c_uint64(0)
    engine.copy(engine.gpu + 16, engine.host + 16, 64)
    driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, engine.stream, ctypes.addressof(words), 0)
    with pytest.raises(DriverMisuse, match="unmapped"):
        driver.cuMemUnmap(engine.gpu, GRANULARITY_BYTES)
    with pytest.raises(DriverMisuse, match="unregistered"):
        driver.cuMemHostUnregister(engine.host)
    with pytest.raises(DriverMisuse, match="unloaded"):
        driver.cuModuleUnload(module)
    assert driver.cuMemUnmap(engine.gpu + GRANULARITY_BYTES, GRANULARITY_BYTES)[0] == SUCCESS
    assert driver.cuStreamSynchronize(engine.stream)[0] == SUCCESS
    assert driver.cuMemUnmap(engine.gpu, GRANULARITY_BYTES)[0] == SUCCESS
    assert driver.cuMemHostUnregister(engine.host)[0] == SUCCESS
    assert driver.cuModuleUnload(module)[0] == SUCCESS


def test_no_copy_of_a_batch_depends_on_another() -> None:
    for overlap in (([0, 8], [1024, 1028]), ([0, 64], [8, 1024]), ([0, 64], [1024, 60])):
        engine = Engine(AsyncCudaDriver(0))
        dsts, srcs = ([engine.gpu + offset for offset in offsets] for offsets in overlap)
        with pytest.raises(DriverMisuse, match="batch"):
            engine.copy_batch(dsts, srcs, 16)
        assert engine.copy_batch([engine.gpu, engine.gpu + 16], [engine.gpu + 1024] * 2, 16)[0] == SUCCESS


# -- queues -----------------------------------------------------------------------------------------------------------


def test_a_full_queue_blocks_the_launch_until_the_stream_moves() -> None:
    driver = AsyncCudaDriver(3, eager=False, queue_depth=8)
    engine = Engine(driver)
    word = ctypes.c_uint32.from_address(engine.host)
    assert driver.cuStreamWaitValue32(engine.stream, CUdeviceptr(engine.host), 1, 0)[0] == SUCCESS
    for value in range(7):
        engine.fill(value)
    assert driver.num_blocked == 0
    is_enqueued = threading.Event()

    def enqueue() -> None:
        driver.cuCtxPushCurrent(engine.context)
        engine.fill(99)
        is_enqueued.set()

    thread = threading.Thread(target=enqueue)
    thread.start()
    while driver.num_blocked == 0:
        pass
    assert not is_enqueued.is_set()
    word.value = 1
    thread.join()
    assert driver.cuStreamSynchronize(engine.stream)[0] == SUCCESS
    assert ctypes.string_at(engine.gpu, 64) == b"\x63" * 64


def test_a_launch_that_holds_the_interpreters_lock_cannot_wait_for_a_thread() -> None:
    driver = AsyncCudaDriver(3, eager=False, queue_depth=8, holds_gil=True)
    engine = Engine(driver)
    for value in range(30):  # the stream itself may move
        engine.fill(value)
    driver.cuStreamWaitValue32(engine.stream, CUdeviceptr(engine.host), 1, 0)
    with pytest.raises(DriverMisuse, match="interpreter"):
        for value in range(30):
            engine.fill(value)


def test_seeds_are_eager_late_or_mixed() -> None:
    queued = []
    for seed in range(20):
        engine = Engine(AsyncCudaDriver(seed))
        for value in range(10):
            engine.fill(value)
        queued.append(engine.driver.num_queued())
    assert 0 in queued and 10 in queued and len(set(queued)) > 3


def test_the_two_names_of_the_legacy_default_stream_are_one_stream(engine: Engine) -> None:
    driver = engine.driver
    driver.cuStreamWaitValue32(0, CUdeviceptr(engine.host), 1, 0)
    driver.cuEventRecord(engine.event, 1)
    for _ in range(50):
        assert driver.cuEventQuery(engine.event)[0] == CUresult.CUDA_ERROR_NOT_READY
    ctypes.c_uint32.from_address(engine.host).value = 1
    assert driver.cuEventSynchronize(engine.event)[0] == SUCCESS


def test_a_word_that_a_stream_writes_arrives_without_a_call(engine: Engine) -> None:
    driver = engine.driver
    word = ctypes.c_uint32.from_address(engine.host + 8)
    for value in range(5):
        engine.fill(value)
    assert driver.cuStreamWriteValue32(engine.stream, CUdeviceptr(engine.host + 8), 7, 0)[0] == SUCCESS
    while word.value != 7:
        pass
    assert driver.num_queued() == 0


@pytest.mark.parametrize("version", [11060, 11070, 12080, 13000])
def test_words_from_11_7_on(version: int) -> None:
    engine = Engine(AsyncCudaDriver(0, driver_version=version))
    for call in (engine.driver.cuStreamWaitValue32, engine.driver.cuStreamWriteValue32):
        if version < 11070:
            with pytest.raises(RuntimeError):
                call(engine.stream, CUdeviceptr(engine.host), 0, 0)
        else:
            assert call(engine.stream, CUdeviceptr(engine.host), 0, 0)[0] == SUCCESS


# -- captures ---------------------------------------------------------------------------------------------------------


@contextmanager
def capture(engine: Engine, mode: CUstreamCaptureMode, expected: CUresult) -> Iterator[Any]:
    driver = engine.driver
    stream = driver.cuStreamCreate(1)[1]
    assert driver.cuStreamBeginCapture(stream, mode)[0] == SUCCESS
    yield stream
    assert driver.cuStreamEndCapture(stream)[0] == expected
    assert driver.cuStreamIsCapturing(stream)[1] == CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE


UNSUPPORTED = CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
INVALIDATED = CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED


@pytest.mark.parametrize("here", [True, False], ids=["own thread", "other thread"])
@pytest.mark.parametrize("own_mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_unsafe_calls_beside_a_capture(
    engine: Engine, mode: CUstreamCaptureMode, own_mode: CUstreamCaptureMode, here: bool
) -> None:
    """The table of cuThreadExchangeStreamCaptureMode."""
    prohibited = own_mode is not RELAXED and (mode is not RELAXED if here else mode is GLOBAL and own_mode is GLOBAL)
    engine.record()

    def query() -> Answer:
        before = engine.driver.cuThreadExchangeStreamCaptureMode(own_mode)[1]
        answer = engine.driver.cuEventQuery(engine.event)
        assert engine.driver.cuThreadExchangeStreamCaptureMode(before)[1] is own_mode
        return answer

    with capture(engine, mode, INVALIDATED if prohibited else SUCCESS):
        status = (query() if here else in_a_thread(query))[0]
        assert (status == UNSUPPORTED) == prohibited


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.driver.cuStreamSynchronize(engine.stream),
        lambda engine: engine.driver.cuCtxSynchronize(),
        lambda engine: engine.driver.cuMemHostUnregister(engine.host),
        lambda engine: engine.driver.cuMemUnmap(engine.gpu, GRANULARITY_BYTES),
        lambda engine: engine.driver.cuModuleLoadData(b"cubin:"),
    ],
)
def test_an_unsafe_call_is_not_made_and_breaks_the_capture(engine: Engine, call: Callable[[Engine], Answer]) -> None:
    before = engine.driver.memory()
    with capture(engine, GLOBAL, INVALIDATED) as stream:
        assert call(engine)[0] == UNSUPPORTED
        assert engine.driver.cuMemsetD8Async(engine.gpu, 1, 16, stream)[0] == INVALIDATED
    assert engine.driver.memory() == before


def test_work_beside_a_capture_runs_and_work_in_it_does_not(engine: Engine) -> None:
    driver = engine.driver
    ctypes.memset(engine.gpu, 5, 64)
    with capture(engine, GLOBAL, SUCCESS) as stream:
        engine.fill(6)
        assert driver.cuMemsetD8Async(engine.gpu, 7, 64, stream)[0] == SUCCESS
    driver.cuStreamSynchronize(engine.stream)
    driver.cuStreamSynchronize(stream)
    assert ctypes.string_at(engine.gpu, 64) == b"\6" * 64


def test_events_of_a_capture_belong_to_it(engine: Engine) -> None:
    driver = engine.driver
    driver.cuThreadExchangeStreamCaptureMode(RELAXED)
    with capture(engine, RELAXED, CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) as stream:
        assert driver.cuEventRecord(engine.event, stream)[0] == SUCCESS
        assert driver.cuStreamWaitEvent(engine.stream, engine.event, 0)[0] == SUCCESS
        # The waiting stream is in the capture now.
        status = driver.cuStreamIsCapturing(engine.stream)[1]
        assert status == CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
        assert driver.cuEventQuery(engine.event)[0] == CUresult.CUDA_ERROR_CAPTURED_EVENT
    outside = driver.cuEventCreate(2)[1]
    driver.cuEventRecord(outside, engine.stream)
    with capture(engine, RELAXED, CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) as stream:
        assert driver.cuStreamWaitEvent(stream, outside, 0)[0] == CUresult.CUDA_ERROR_STREAM_CAPTURE_ISOLATION


def test_a_capture_ends_in_the_thread_that_began_it_and_never_on_the_legacy_stream(engine: Engine) -> None:
    driver = engine.driver
    assert driver.cuStreamBeginCapture(0, RELAXED)[0] == UNSUPPORTED
    with capture(engine, THREAD_LOCAL, SUCCESS) as stream:
        assert in_a_thread(lambda: driver.cuStreamEndCapture(stream))[0] == CUresult.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
        assert driver.cuStreamBeginCapture(stream, RELAXED)[0] == CUresult.CUDA_ERROR_ILLEGAL_STATE


def test_a_batch_cannot_be_captured(engine: Engine) -> None:
    with capture(engine, RELAXED, CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) as stream:
        engine.stream = stream
        assert engine.copy_batch([engine.gpu], [engine.host], 16)[0] == UNSUPPORTED


# -- kernels ----------------------------------------------------------------------------------------------------------

ADD = """
extern "C" __global__ void add(unsigned int* words, unsigned int count, unsigned int value) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) words[i] += value;
}
"""


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to run kernels on the processor")
def test_kernels_run_with_the_parameters_of_their_launch() -> None:
    engine = Engine(AsyncCudaDriver(0, eager=False, kernels=KernelsOnHost()))
    driver = engine.driver
    function = driver.cuModuleGetFunction(driver.cuModuleLoadData(b"cubin:" + ADD.encode())[1], b"add")[1]
    values = [ctypes.c_uint64(engine.gpu), ctypes.c_uint32(100), ctypes.c_uint32(7)]
    words = (ctypes.c_void_p * 3)(*[ctypes.addressof(value) for value in values])
    driver.cuMemsetD8Async(engine.gpu, 0, 1024, engine.stream)
    launch = (2, 1, 1, 64, 1, 1, 0, engine.stream, ctypes.addressof(words), 0)
    assert driver.cuLaunchKernel(function, *launch)[0] == SUCCESS
    values[2].value = 1000
    with pytest.raises(DriverMisuse, match="unmapped"):
        driver.cuMemUnmap(engine.gpu, GRANULARITY_BYTES)
    assert driver.cuStreamSynchronize(engine.stream)[0] == SUCCESS
    assert ctypes.string_at(engine.gpu, 1024) == (7).to_bytes(4, "little") * 100 + bytes(624)
