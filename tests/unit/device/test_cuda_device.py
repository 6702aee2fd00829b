"""`CudaDevice` itself, over a driver that checks each call: what it asks for, in which order, and what it does about
failure.
"""

import ctypes
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kv_cache_manager_v2.base.errors import CudaError, KVCacheManagerError, LogicError, OutOfMemoryError, PartlyCopiedError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.cuda_device import CudaDevice
from kv_cache_manager_v2.device.port import NO_TIMER, NOT_MEASURED, STILL_RUNNING, CopyBatch

from .fake_cuda_driver import FakeCudaDriver
from .fake_cuda_types import CUresult
from .fake_nvrtc import FakeNvrtc

GPU, HOST = CacheTier.GPU_MEM, CacheTier.HOST_MEM
MIB = 1 << 20
GRANULE = 2 * MIB


@pytest.fixture
def driver() -> FakeCudaDriver:
    return FakeCudaDriver()


@pytest.fixture
def device(driver: FakeCudaDriver) -> Iterator[CudaDevice]:
    device = CudaDevice(driver=driver, nvrtc=FakeNvrtc(), max_registration_bytes=4 * MIB)
    yield device
    device.close()
    assert driver.live() == {}


def mapped(device: CudaDevice, tier: CacheTier, granules: int, *, reserved: int = 8) -> int:
    address = device.reserve_range(tier, reserved * GRANULE)
    device.map_memory(tier, address, granules * GRANULE)
    return address


def discard(device: CudaDevice, tier: CacheTier, address: int, granules: int, *, reserved: int = 8) -> None:
    device.unmap_memory(tier, address, granules * GRANULE)
    device.release_range(tier, address, reserved * GRANULE)


def accessible_bytes(beg: int, end: int) -> int:
    """How many bytes between two addresses this process may write to, as the operating system says."""
    count = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions = line.split()[:2]
        first, last = (int(text, 16) for text in span.split("-"))
        if permissions.startswith("rw"):
            count += max(0, min(end, last) - max(beg, first))
    return count


# -- what it is -------------------------------------------------------------------------------------------------------


def test_name_and_sizes(device: CudaDevice, driver: FakeCudaDriver) -> None:
    assert device.name == "cuda:0 Fake"
    assert not device.is_software
    assert device.total_bytes(GPU) == driver.total_bytes
    assert device.granularity_bytes(GPU) == device.granularity_bytes(HOST) == GRANULE


def test_a_larger_granularity_is_taken_a_smaller_one_is_the_drivers() -> None:
    small = CudaDevice(driver=FakeCudaDriver(), granularity_bytes=4096)
    assert small.granularity_bytes(GPU) == GRANULE
    assert small.granularity_bytes(HOST) == 4096
    small.close()
    for wrong in (0, -1, 3 * MIB):
        with pytest.raises(ValueError):
            CudaDevice(driver=FakeCudaDriver(), granularity_bytes=wrong)
    for wrong in (0, MIB, 3 * MIB):
        with pytest.raises(ValueError):
            CudaDevice(driver=FakeCudaDriver(), max_registration_bytes=wrong)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"ordinal": "0"}, "ordinal must be an int, not str"),
        ({"ordinal": True}, "ordinal must be an int, not True"),
        ({"granularity_bytes": 2.0}, "granularity_bytes must be an int, not float"),
        ({"chunk_bytes": None}, "chunk_bytes must be an int, not NoneType"),
        ({"max_registration_bytes": "1"}, "max_registration_bytes must be an int, not str"),
        ({"num_disk_threads": "4"}, "num_disk_threads must be an int, not str"),
        ({"staging_bytes": [1]}, "staging_bytes must be an int, not list"),
        ({"peers": 1}, "peers must be"),
        ({"peers": "1"}, "peers must be"),
        ({"peers": [1, "2"]}, "peers must be an int, not str"),
        ({"exportable_as": 1}, "exportable_as must be"),
        ({"gpu_direct_rdma": 1}, "gpu_direct_rdma must be None, True or False, not int"),
        ({"files": "/tmp"}, "files must be a FilePort or None, not str"),
        ({"streams_wait_for_disk": 0}, "streams_wait_for_disk must be a bool, not int"),
    ],
    ids=str,
)
def test_arguments_of_a_wrong_type_are_named(arguments: dict[str, Any], said: str) -> None:
    driver = FakeCudaDriver()
    with pytest.raises(TypeError, match=said):
        CudaDevice(driver=driver, **arguments)


def test_there_must_be_such_a_gpu() -> None:
    for ordinal in (-1, 1):
        driver = FakeCudaDriver()
        with pytest.raises(ValueError):
            CudaDevice(ordinal, driver=driver)
        assert driver.live() == {}


def test_every_call_that_the_constructor_makes_may_fail() -> None:
    for nth in range(1, 100):  # until there is no n-th call
        driver = FakeCudaDriver()
        driver.fail_call(nth)
        try:
            device = CudaDevice(driver=driver)
        except CudaError as error:
            assert driver.failed_call in str(error) and "999" in str(error)
            assert driver.live() == {}
        else:
            assert driver.failed_call == ""
            assert nth > 5
            driver.fail_call(0)
            device.close()
            return


def test_an_error_names_call_number_and_the_drivers_text(device: CudaDevice, driver: FakeCudaDriver) -> None:
    driver.fail_call(1, CUresult.CUDA_ERROR_INVALID_VALUE)
    with pytest.raises(CudaError) as caught:
        device.record_event(device.default_stream())
    for part in ("cuCtxPushCurrent", " 1", "CUDA_ERROR_INVALID_VALUE", "text of 1"):
        assert part in str(caught.value)


@pytest.mark.parametrize("status", [CUresult.CUDA_ERROR_ILLEGAL_ADDRESS])
def test_a_broken_context_is_said_to_be_one(device: CudaDevice, driver: FakeCudaDriver, status: CUresult) -> None:
    """An engine's kernel went astray: the manager's next call is told of it, and the user what it means."""
    driver.fail_call(1, status)
    with pytest.raises(CudaError) as caught:
        device.record_event(device.create_stream())
    for part in ("cuCtxPushCurrent", "700", "the CUDA context is broken", "restart the process"):
        assert part in str(caught.value)


# -- memory -----------------------------------------------------------------------------------------------------------


def test_gpu_memory_is_made_granule_by_granule_with_access_set_once(device: CudaDevice, driver: FakeCudaDriver) -> None:
    address = device.reserve_range(GPU, 8 * GRANULE)
    driver.calls.clear()
    device.map_memory(GPU, address, 3 * GRANULE)
    assert driver.calls == ["cuMemCreate", "cuMemMap"] * 3 + ["cuMemSetAccess"]
    driver.calls.clear()
    device.unmap_memory(GPU, address, 3 * GRANULE)
    assert driver.calls == ["cuMemUnmap"] + ["cuMemRelease"] * 3
    device.release_range(GPU, address, 8 * GRANULE)


def test_host_memory_is_pinned_in_pieces_and_repinned_where_a_piece_is_cut(device: CudaDevice, driver: FakeCudaDriver) -> None:
    # Pieces of at most 4 MiB: 2 granules each.
    address = mapped(device, HOST, 5)
    sizes = {(beg - address) // GRANULE: size // GRANULE for beg, size in driver.registrations.items()}
    assert sizes == {0: 2, 2: 2, 4: 1}
    ctypes.memset(address, 3, 5 * GRANULE)
    driver.calls.clear()
    # Granules 1 to 3: the first piece is cut, the second one goes as a whole.
    device.unmap_memory(HOST, address + GRANULE, 3 * GRANULE)
    assert "cuCtxSynchronize" in driver.calls
    assert driver.calls.index("cuCtxSynchronize") < driver.calls.index("cuMemHostUnregister")
    sizes = {(beg - address) // GRANULE: size // GRANULE for beg, size in driver.registrations.items()}
    assert sizes == {0: 1, 4: 1}
    for granule in (0, 4):
        assert ctypes.string_at(address + granule * GRANULE, GRANULE) == b"\3" * GRANULE
    driver.calls.clear()
    device.unmap_memory(HOST, address + 4 * GRANULE, GRANULE)
    assert "cuCtxSynchronize" not in driver.calls  # whole pieces need no waiting
    discard(device, HOST, address, 1)


def test_memory_that_cannot_be_pinned(driver: FakeCudaDriver) -> None:
    driver.pinnable_bytes = 6 * MIB
    device = CudaDevice(driver=driver, max_registration_bytes=4 * MIB)
    address = mapped(device, HOST, 1)
    before = driver.memory()
    with pytest.raises(OutOfMemoryError):
        device.map_memory(HOST, address + GRANULE, 3 * GRANULE)
    assert driver.memory() == before
    assert accessible_bytes(address, address + 8 * GRANULE) == GRANULE  # what was committed went back
    device.map_memory(HOST, address + GRANULE, 2 * GRANULE)
    assert accessible_bytes(address, address + 8 * GRANULE) == 3 * GRANULE
    discard(device, HOST, address, 3)
    device.close()
    assert driver.live() == {}


def test_out_of_gpu_memory_says_how_much_was_asked_for(driver: FakeCudaDriver) -> None:
    driver.total_bytes = 3 * GRANULE
    device = CudaDevice(driver=driver)
    address = mapped(device, GPU, 1)
    before = driver.memory()
    with pytest.raises(OutOfMemoryError) as caught:
        device.map_memory(GPU, address + GRANULE, 4 * GRANULE)
    assert str(4 * GRANULE) in str(caught.value)
    assert driver.memory() == before
    discard(device, GPU, address, 1)
    device.close()
    assert driver.live() == {}


# -- every call may fail ----------------------------------------------------------------------------------------------

Operation = Callable[[CudaDevice, int, int], object]


def copy_three(device: CudaDevice, gpu: int, host: int) -> None:
    batch = CopyBatch(HOST, GPU, 4096)
    for index in (0, 2, 4):
        batch.add(host + index * 4096, gpu + index * 4096)
    device.copy_batch(device.create_stream(), batch)


def copy_on_the_default_stream(device: CudaDevice, gpu: int, host: int) -> None:
    batch = CopyBatch(GPU, HOST, 4096)
    batch.add(gpu, host)
    device.copy_batch(device.default_stream(), batch)


def poll(device: CudaDevice, gpu: int, host: int) -> None:
    event = device.record_event(device.create_stream())
    try:
        device.is_event_done(event)
        device.synchronize_event(event)
        device.wait_event(device.default_stream(), event)
    finally:
        device.release_event(event)


OPERATIONS: dict[str, Operation] = {
    "reserve gpu": lambda device, gpu, host: device.reserve_range(GPU, GRANULE),
    "map gpu": lambda device, gpu, host: device.map_memory(GPU, gpu + 3 * GRANULE, 4 * GRANULE),
    "unmap gpu": lambda device, gpu, host: device.unmap_memory(GPU, gpu, 3 * GRANULE),
    "map host": lambda device, gpu, host: device.map_memory(HOST, host + 3 * GRANULE, 4 * GRANULE),
    "unmap host pieces": lambda device, gpu, host: device.unmap_memory(HOST, host, 3 * GRANULE),
    "unmap host, cutting": lambda device, gpu, host: device.unmap_memory(HOST, host + GRANULE, GRANULE),
    "unmap host, cutting two": lambda device, gpu, host: device.unmap_memory(HOST, host + GRANULE, 2 * GRANULE),
    "create stream": lambda device, gpu, host: device.create_stream(),
    "destroy stream": lambda device, gpu, host: device.destroy_stream(device.create_stream()),
    "synchronize stream": lambda device, gpu, host: device.synchronize_stream(0),
    "record": lambda device, gpu, host: device.record_event(device.create_stream()),
    "record on default": lambda device, gpu, host: device.record_event(device.default_stream()),
    "poll": poll,
    "copy": copy_three,
    "copy on default": copy_on_the_default_stream,
    "fill": lambda device, gpu, host: device.fill(0, gpu, 100, 1),
    "compile": lambda device, gpu, host: device.compile("code", "store"),
    "launch": lambda device, gpu, host: device.compile("code", "store").launch(
        device.create_stream(), (1, 1, 1), (32, 1, 1), [ctypes.c_uint64(gpu)]
    ),
}
MAY_FAIL_QUIETLY = {
    "cuCtxPopCurrent",  # the deed is done; logged
    "cuMemRelease",  # the addresses are unmapped; logged, and tried again
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_call_of_an_operation_may_fail(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The n-th driver call fails, for every n: the error names it, memory is as before, everything is released."""
    num_failures = 0
    for nth in range(1, 100):
        driver = FakeCudaDriver()
        device = CudaDevice(driver=driver, nvrtc=FakeNvrtc(), max_registration_bytes=4 * MIB)
        gpu = mapped(device, GPU, 3)
        host = mapped(device, HOST, 3)
        ctypes.memset(host, 6, 3 * GRANULE)
        before = driver.memory()
        caplog.clear()
        driver.fail_call(nth)
        try:
            OPERATIONS[name](device, gpu, host)
        except KVCacheManagerError as error:
            assert driver.failed_call in str(error)
            assert driver.memory() == before
            assert ctypes.string_at(host, 3 * GRANULE) == b"\6" * (3 * GRANULE)
            # Not broken by it: the same call works now.
            OPERATIONS[name](device, gpu, host)
        else:
            if driver.failed_call:
                assert driver.failed_call in MAY_FAIL_QUIETLY
                assert any(record.levelno == logging.ERROR for record in caplog.records)
        num_failures += driver.failed_call != ""
        is_over = driver.failed_call == ""
        driver.fail_call(0)
        if driver.context_stack:
            driver.context_stack.clear()  # what the failed pop left
        assert_everything_goes_back(device, driver, host)
        if is_over:
            break
    assert num_failures >= 1


def assert_everything_goes_back(device: CudaDevice, driver: FakeCudaDriver, host: int) -> None:
    for granule in sorted(driver.mappings):
        device.unmap_memory(GPU, granule, GRANULE)
    for beg, size in sorted(driver.registrations.items()):
        device.unmap_memory(HOST, beg, size)
    for beg, size in list(driver.ranges.items()):
        device.release_range(GPU, beg, size)
    with pytest.raises(LogicError) as caught:
        device.close()
    assert "1 ranges" in str(caught.value)
    device.release_range(HOST, host, 8 * GRANULE)
    device.close()
    assert driver.live() == {}


def test_close_that_fails_can_be_called_again() -> None:
    num_failures = 0
    for nth in range(1, 100):
        driver = FakeCudaDriver()
        device = CudaDevice(driver=driver, nvrtc=FakeNvrtc())
        device.create_stream()
        streams = [device.create_stream() for _ in range(2)]
        events = [device.record_event(streams[0]) for _ in range(3)]
        device.release_event(events[0])
        device.compile("code", "store")
        driver.fail_call(nth)
        try:
            device.close()
        except CudaError as error:
            assert driver.failed_call in str(error)
            num_failures += 1
        is_over = driver.failed_call == ""
        driver.fail_call(0)
        device.close()
        driver.context_stack.clear()
        assert driver.live() == {}
        if is_over:
            break
    # 1 kernel, 3 events, 3 streams, the context, and two times made current
    assert num_failures >= 1 + 3 + 3 + 1 + 2


# -- streams and events -----------------------------------------------------------------------------------------------


def test_a_stream_of_the_engine_is_used_but_never_destroyed(device: CudaDevice, driver: FakeCudaDriver) -> None:
    foreign = 0x7F0000000000
    driver.streams.add(foreign)
    event = device.record_event(foreign)
    device.wait_event(foreign, event)
    device.synchronize_stream(foreign)
    device.release_event(event)
    with pytest.raises(LogicError):
        device.destroy_stream(foreign)
    driver.streams.remove(foreign)


def test_an_event_that_is_not_done(device: CudaDevice, driver: FakeCudaDriver) -> None:
    event = device.record_event(device.create_stream())
    driver.are_events_done = False
    assert not device.is_event_done(event)
    driver.are_events_done = True
    assert device.is_event_done(event)
    device.release_event(event)


def test_events_are_pooled(device: CudaDevice, driver: FakeCudaDriver) -> None:
    stream = device.create_stream()
    for _ in range(100):
        events = [device.record_event(stream) for _ in range(3)]
        for event in events:
            device.release_event(event)
    assert len(driver.events) == 3
    assert driver.calls.count("cuEventCreate") == 3


def test_a_timer_is_two_events_with_timing(device: CudaDevice, driver: FakeCudaDriver) -> None:
    stream = device.create_stream()
    for _ in range(10):
        driver.are_events_done = False
        timer = device.start_timer(stream)
        assert timer != NO_TIMER and device.read_timer(timer) == STILL_RUNNING
        device.stop_timer(stream, timer)
        assert device.read_timer(timer) == STILL_RUNNING
        driver.are_events_done = True
        assert device.read_timer(timer) == device.read_timer(timer) == 0.00025
        device.release_timer(timer)
        with pytest.raises(LogicError):
            device.read_timer(timer)
    # Pooled; and nothing of it is in the way of the others, which have no timing.
    assert len(driver.events) == len(driver.timed_events) == 2
    device.release_event(device.record_event(stream))
    assert len(driver.events) == 3


def test_a_driver_that_will_not_time(device: CudaDevice, driver: FakeCudaDriver) -> None:
    """Whichever call of a timer fails: nothing is raised, and the timer says that it knows nothing."""
    stream = device.create_stream()
    refused = set()
    for nth in range(1, 30):
        driver.fail_call(nth)
        timer = device.start_timer(stream)
        if timer != NO_TIMER:
            device.stop_timer(stream, timer)
            seconds = device.read_timer(timer)
            assert (seconds == NOT_MEASURED) is (driver.failed_call not in ("", "cuCtxPopCurrent"))
            device.release_timer(timer)
        refused.add(driver.failed_call)
        driver.context_stack.clear()  # what a failed pop left
    driver.fail_call(0)
    assert refused >= {"", "cuCtxPushCurrent", "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventElapsedTime"}
    assert len(driver.events) == 2


def test_recording_on_a_stream_of_its_own_is_one_driver_call(device: CudaDevice, driver: FakeCudaDriver) -> None:
    stream = device.create_stream()
    device.release_event(device.record_event(stream))
    driver.calls.clear()
    event = device.record_event(stream)
    device.wait_event(stream, event)
    device.release_event(event)
    assert driver.calls == ["cuEventRecord", "cuStreamWaitEvent"]


STREAM_CALLS: dict[str, Callable[[CudaDevice, int, int, int], object]] = {
    "record": lambda device, stream, gpu, host: device.release_event(device.record_event(stream)),
    "wait": lambda device, stream, gpu, host: device.wait_event(stream, device.record_event(device.create_stream())),
    "synchronize": lambda device, stream, gpu, host: device.synchronize_stream(stream),
    "timer": lambda device, stream, gpu, host: device.stop_timer(stream, device.start_timer(stream)),
    "copy": lambda device, stream, gpu, host: device.copy_batch(stream, scattered(gpu, host, 3)),
    "fill": lambda device, stream, gpu, host: device.fill(stream, gpu, 100, 1),
    "launch": lambda device, stream, gpu, host: device.compile("code", "store").launch(stream, (1, 1, 1), (1, 1, 1), []),
}


@pytest.mark.parametrize("name", STREAM_CALLS)
def test_the_default_stream_goes_by_the_handle_that_nothing_renames(name: str, device: CudaDevice, driver: FakeCudaDriver) -> None:
    """``CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM`` makes stream 0 the thread's own."""
    driver.is_stream_0_renamed = True
    gpu, host = mapped(device, GPU, 1), mapped(device, HOST, 1)
    for stream in (0, 1, 2, device.default_stream(), device.create_stream()):
        STREAM_CALLS[name](device, stream, gpu, host)
    discard(device, GPU, gpu, 1)
    discard(device, HOST, host, 1)


# -- copies -----------------------------------------------------------------------------------------------------------


def scattered(gpu: int, host: int, count: int) -> CopyBatch:
    batch = CopyBatch(HOST, GPU, 4096)
    for index in range(count):
        batch.add(host + 2 * index * 4096, gpu + 3 * index * 4096)
    return batch


@pytest.mark.parametrize(
    ("driver_version", "bindings_version", "is_batched"),
    [(13000, 13000, True), (12080, 12090, True), (12080, 13000, True), (12040, 12090, False), (13010, 12080, True), (14000, 13050, True)],
)
def test_batches_where_the_driver_has_them_whatever_cuda_python_is(driver_version: int, bindings_version: int, is_batched: bool) -> None:
    driver = FakeCudaDriver(driver_version=driver_version, bindings_version=bindings_version)
    device = CudaDevice(driver=driver)
    gpu, host = mapped(device, GPU, 1), mapped(device, HOST, 1)
    device.copy_batch(device.create_stream(), scattered(gpu, host, 10))
    assert driver.calls.count("cuMemcpyBatchAsync") == (1 if is_batched else 0)
    assert driver.calls.count("cuMemcpyAsync") == (0 if is_batched else 10)
    assert driver.copies == [(host + 2 * i * 4096, gpu + 3 * i * 4096, 4096) for i in range(10)]
    discard(device, GPU, gpu, 1)
    discard(device, HOST, host, 1)
    device.close()
    assert driver.live() == {}


def test_a_driver_that_takes_no_batches_after_all(device: CudaDevice, driver: FakeCudaDriver) -> None:
    driver.takes_batches = False
    gpu, host = mapped(device, GPU, 1), mapped(device, HOST, 1)
    stream = device.create_stream()
    device.copy_batch(stream, scattered(gpu, host, 5))
    device.copy_batch(stream, scattered(gpu, host, 5))
    assert driver.calls.count("cuMemcpyBatchAsync") == 1  # asked once
    assert len(driver.copies) == 10
    discard(device, GPU, gpu, 1)
    discard(device, HOST, host, 1)


@pytest.mark.parametrize("num_done", [0, 1, 4])
def test_a_copy_that_is_refused_in_the_middle_is_told_apart(num_done: int) -> None:
    """Refused at the first copy nothing has been written; later, some have been."""
    driver = FakeCudaDriver(driver_version=12040, bindings_version=12090)
    device = CudaDevice(driver=driver)
    gpu, host = mapped(device, GPU, 1), mapped(device, HOST, 1)
    stream = device.create_stream()
    driver.fail_call(2 + num_done)  # the first call makes the context current
    with pytest.raises(CudaError) as caught:
        device.copy_batch(stream, scattered(gpu, host, 5))
    assert driver.failed_call == "cuMemcpyAsync" and len(driver.copies) == num_done
    assert isinstance(caught.value, PartlyCopiedError) == (num_done > 0)
    assert num_done == 0 or f"of 5 copies {num_done} were enqueued" in str(caught.value)
    discard(device, GPU, gpu, 1)
    discard(device, HOST, host, 1)
    device.close()


def test_neighbours_are_merged_and_pieces_are_kept_apart(device: CudaDevice, driver: FakeCudaDriver) -> None:
    # The fake driver lays ranges side by side; host pieces of 2 granules lie side by side in a range.
    first = mapped(device, GPU, 8)
    second = mapped(device, GPU, 8)
    assert second == first + 8 * GRANULE
    host = mapped(device, HOST, 8)
    batch = CopyBatch(HOST, GPU, MIB)
    # 12 MiB from GPU granules 5, 6, 7 of the first range and 0, 1, 2 of the second to host granules 1 to 6.
    for index in range(12):
        batch.add(host + GRANULE + index * MIB, first + 5 * GRANULE + index * MIB)
    device.copy_batch(device.create_stream(), batch)
    # Cuts: host at granules 2, 4, 6; GPU between the ranges, which is host granule 4 as well.
    sizes = [(dst - host) // GRANULE for dst, _, _ in driver.copies], [size // GRANULE for _, _, size in driver.copies]
    assert sizes == ([1, 2, 4, 6], [1, 2, 2, 1])
    discard(device, HOST, host, 8)
    discard(device, GPU, first, 8)
    discard(device, GPU, second, 8)


# -- kernels ----------------------------------------------------------------------------------------------------------


def test_a_kernel_is_compiled_for_this_gpu_and_unloaded_once(driver: FakeCudaDriver) -> None:
    nvrtc = FakeNvrtc()
    device = CudaDevice(driver=driver, nvrtc=nvrtc)
    kernel = device.compile("code", "store", ["--use_fast_math"])
    assert nvrtc.options == [b"--gpu-architecture=sm_90", b"--use_fast_math"]
    assert nvrtc.num_live == 0
    other = device.compile("code", "load")
    kernel.launch(device.create_stream(), (4, 1, 1), (128, 1, 1), [ctypes.c_uint64(1), ctypes.c_int32(2)], 64)
    kernel.launch(device.default_stream(), (1, 1, 1), (1, 1, 1), [])
    assert driver.calls.count("cuLaunchKernel") == 2
    with pytest.raises(TypeError):
        kernel.launch(device.default_stream(), (1, 1, 1), (1, 1, 1), [5])
    kernel.close()
    kernel.close()
    assert [kernel.is_closed, other.is_closed] == [True, False]
    with pytest.raises(LogicError):
        kernel.launch(device.default_stream(), (1, 1, 1), (1, 1, 1), [])
    device.close()
    assert [kernel.is_closed, other.is_closed] == [True, True]
    assert driver.live() == {}


def test_a_compiler_older_than_the_gpu_makes_ptx(driver: FakeCudaDriver) -> None:
    nvrtc = FakeNvrtc(capabilities=(75, 80))
    device = CudaDevice(driver=driver, nvrtc=nvrtc)
    device.compile("code", "store")
    assert nvrtc.options == [b"--gpu-architecture=compute_80"]
    device.close()


def test_mistakes_in_the_source_are_in_the_error(driver: FakeCudaDriver) -> None:
    nvrtc = FakeNvrtc(mistakes="kernel.cu(3): error: expected a ';'")
    device = CudaDevice(driver=driver, nvrtc=nvrtc)
    with pytest.raises(CudaError) as caught:
        device.compile("code", "store")
    assert "expected a ';'" in str(caught.value)
    assert nvrtc.num_live == 0
    device.close()
    assert driver.live() == {}
