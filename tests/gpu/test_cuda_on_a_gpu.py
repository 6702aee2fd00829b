"""What only a GPU can show: real asynchrony, kernels, memory that goes back, threads without a CUDA context.

The contract suite runs on the GPU as well; this is the rest. Where there is no GPU, everything here is skipped.
"""

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kv_cache_manager_v2.base.errors import CudaError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.cuda_device import CudaDevice
from kv_cache_manager_v2.device.cuda_driver import find_cuda_obstacle, load_driver_module
from kv_cache_manager_v2.device.cuda_kernel import load_nvrtc_module
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.port import CopyBatch

_OBSTACLE = find_cuda_obstacle()
pytestmark = pytest.mark.skipif(_OBSTACLE != "", reason=f"no CUDA: {_OBSTACLE}")

GPU, HOST = CacheTier.GPU_MEM, CacheTier.HOST_MEM
MIB = 1 << 20

SOURCE = """
extern "C" __global__ void add(unsigned int* words, unsigned int count, unsigned int value) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) words[i] += value;
}
extern "C" __global__ void spin(long long cycles) {
    long long began = clock64();
    while (clock64() - began < cycles) {}
}
"""


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    device = CudaDevice()
    yield device
    device.close()


@pytest.fixture
def memory(device: CudaDevice) -> Iterator[tuple[int, int]]:
    """16 MiB on the GPU and on the host."""
    ranges = [MemoryRange(device, tier, 16 * MIB) for tier in (GPU, HOST)]
    for memory_range in ranges:
        memory_range.resize(16 * MIB)
    yield ranges[0].address, ranges[1].address
    for memory_range in ranges:
        memory_range.close()


def compile_or_skip(device: CudaDevice, name: str) -> Any:
    try:
        load_nvrtc_module().nvrtcVersion()
    except (CudaError, RuntimeError) as error:
        pytest.skip(f"no NVRTC: {error}")
    return device.compile(SOURCE, name)


def copy(device: CudaDevice, stream: int, dst_tier: CacheTier, dst: int, src_tier: CacheTier, src: int, n: int) -> None:
    batch = CopyBatch(dst_tier, src_tier, n)
    batch.add(dst, src)
    device.copy_batch(stream, batch)


def free_bytes() -> int:
    driver = load_driver_module()
    context = driver.cuDevicePrimaryCtxRetain(0)[1]
    driver.cuCtxPushCurrent(context)
    status, num_bytes, _ = driver.cuMemGetInfo()
    driver.cuCtxPopCurrent()
    driver.cuDevicePrimaryCtxRelease(0)
    assert int(status) == 0
    return int(num_bytes)


def test_gpu_memory_goes_back_to_the_gpu(device: CudaDevice) -> None:
    before = free_bytes()
    memory = MemoryRange(device, GPU, 512 * MIB)
    memory.resize(256 * MIB)
    assert before - free_bytes() >= 250 * MIB
    memory.close()
    assert before - free_bytes() <= 16 * MIB


def test_a_compiled_kernel_runs_in_stream_order(device: CudaDevice, memory: tuple[int, int]) -> None:
    gpu, host = memory
    kernel = compile_or_skip(device, "add")
    stream = device.create_stream()
    device.fill(stream, gpu, 4 * MIB, 1)
    for value in (1, 0x10):
        args = [ctypes.c_uint64(gpu), ctypes.c_uint32(MIB), ctypes.c_uint32(value)]
        kernel.launch(stream, (MIB // 256, 1, 1), (256, 1, 1), args)
    copy(device, stream, HOST, host, GPU, gpu, 4 * MIB)
    device.synchronize_stream(stream)
    assert ctypes.string_at(host, 4 * MIB) == (0x01010101 + 0x11).to_bytes(4, "little") * MIB


def test_mistakes_in_a_kernel_are_reported(device: CudaDevice) -> None:
    compile_or_skip(device, "add")
    with pytest.raises(CudaError) as caught:
        device.compile('extern "C" __global__ void broken() { undeclared = 1; }', "broken")
    assert "undeclared" in str(caught.value)


def test_the_host_does_not_wait(device: CudaDevice, memory: tuple[int, int]) -> None:
    """While one stream is busy: an event on it is not done, a waiting stream holds its work back, nothing blocks."""
    gpu, host = memory
    spin = compile_or_skip(device, "spin")
    ctypes.memset(host, 0, 4096)
    busy, waiting = device.create_stream(), device.create_stream()
    device.fill(busy, gpu, 4096, 5)
    # 2e9 cycles are about a second.
    spin.launch(busy, (1, 1, 1), (1, 1, 1), [ctypes.c_int64(2_000_000_000)])
    event = device.record_event(busy)
    device.wait_event(waiting, event)
    copy(device, waiting, HOST, host, GPU, gpu, 4096)
    copied = device.record_event(waiting)
    assert not device.is_event_done(event)
    assert not device.is_event_done(copied)
    assert ctypes.string_at(host, 4096) == bytes(4096)
    device.release_event(event)
    # Whatever was recycled is recorded elsewhere; the wait still holds.
    idle = device.create_stream()
    device.release_event(device.record_event(idle))
    assert not device.is_event_done(copied)
    device.synchronize_event(copied)
    assert ctypes.string_at(host, 4096) == b"\5" * 4096
    device.release_event(copied)


def test_a_thread_without_a_context_may_use_the_device(device: CudaDevice, memory: tuple[int, int]) -> None:
    gpu, host = memory
    errors: list[BaseException] = []

    def work() -> None:
        try:
            stream = device.create_stream()
            for used in (stream, device.default_stream()):
                device.fill(used, gpu, MIB, 9)
                event = device.record_event(used)
                device.wait_event(stream, event)
                copy(device, stream, HOST, host, GPU, gpu, MIB)
                device.is_event_done(event)
                device.synchronize_event(event)
                device.release_event(event)
                device.synchronize_stream(stream)
                assert ctypes.string_at(host, MIB) == b"\t" * MIB
            device.destroy_stream(stream)
            extra = MemoryRange(device, HOST, 8 * MIB)
            extra.resize(8 * MIB)
            extra.resize(2 * MIB)
            extra.close()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []


def test_the_calling_threads_context_is_left_as_it_was(device: CudaDevice, memory: tuple[int, int]) -> None:
    driver = load_driver_module()
    before = int(driver.cuCtxGetCurrent()[1])
    stream = device.create_stream()
    device.fill(stream, memory[0], 4096, 1)
    device.release_event(device.record_event(device.default_stream()))
    device.destroy_stream(stream)
    assert int(driver.cuCtxGetCurrent()[1]) == before


@pytest.mark.parametrize("num_bytes", [512, 4096, 256 << 10])
def test_batched_and_single_copies_do_the_same(device: CudaDevice, memory: tuple[int, int], num_bytes: int) -> None:
    gpu, host = memory
    count = 8 * MIB // num_bytes // 2
    for index in range(8 * MIB // 4096):
        ctypes.memset(host + index * 4096, index % 251, 4096)
    for stream in (device.create_stream(), device.default_stream()):  # the default stream takes no batches
        device.fill(stream, gpu, 16 * MIB, 255)
        there = CopyBatch(GPU, HOST, num_bytes)
        back = CopyBatch(HOST, GPU, num_bytes)
        for index in range(count):
            there.add(gpu + (count - 1 - index) * 2 * num_bytes, host + index * 2 * num_bytes)
            back.add(host + 8 * MIB + index * num_bytes, gpu + (count - 1 - index) * 2 * num_bytes)
        device.copy_batch(stream, there)
        device.copy_batch(stream, back)
        device.synchronize_stream(stream)
        for index in range(count):
            found = ctypes.string_at(host + 8 * MIB + index * num_bytes, num_bytes)
            assert found == ctypes.string_at(host + index * 2 * num_bytes, num_bytes)
