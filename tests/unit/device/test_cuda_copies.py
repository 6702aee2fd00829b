"""How copies reach the driver: as arrays, in either form of its batch call, cut where pieces of memory end."""

import ctypes
import gc
import random
import sys
from typing import Any

import pytest

from kv_cache_manager_v2.base.errors import CudaError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.cuda_device import CudaDevice
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.port import CopyBatch

from .fake_cuda_driver import FakeCudaDriver
from .fake_cuda_types import CUresult

GPU, HOST = CacheTier.GPU_MEM, CacheTier.HOST_MEM
GRANULE = 2 << 20
PAGE = 64 << 10


@pytest.mark.parametrize("driver_version", [12040, 12080, 12090, 13000, 13050])
@pytest.mark.parametrize("seed", range(6))
def test_random_batches_arrive_whole_and_in_pieces_that_are_units(seed: int, driver_version: int) -> None:
    """The fake driver takes no copy that lies in two registrations or two ranges; byte for byte, all of them arrive."""
    generator = random.Random(seed)
    driver = FakeCudaDriver(driver_version=driver_version)
    device = CudaDevice(driver=driver, max_registration_bytes=generator.choice([1, 2, 4]) * GRANULE)
    pools: dict[CacheTier, list[MemoryRange]] = {GPU: [], HOST: []}
    for tier, ranges in pools.items():
        for _ in range(3):
            pool = MemoryRange(device, tier, 8 * GRANULE)
            ranges.append(pool)
            # In steps, so that registrations have odd sizes.
            for granules in sorted(generator.sample(range(1, 9), 2)):
                pool.resize(granules * GRANULE)
    stream = device.create_stream()
    for _ in range(20):
        dst_tier, src_tier = generator.choice([(GPU, HOST), (HOST, GPU), (GPU, GPU), (HOST, HOST)])
        batch = CopyBatch(dst_tier, src_tier, PAGE)
        expected: list[tuple[int, int]] = []
        used: set[int] = set()
        written: set[int] = set()
        dst = src = 0
        for _ in range(generator.randint(1, 80)):
            if dst == 0 or generator.random() < 0.5:
                dst, src = (place(generator, pools[tier]) for tier in (dst_tier, src_tier))
            else:
                dst += PAGE
                src += PAGE
                if not (is_mapped(pools[dst_tier], dst) and is_mapped(pools[src_tier], src)):
                    dst, src = (place(generator, pools[tier]) for tier in (dst_tier, src_tier))
            if dst in used or src in written or dst == src:
                continue  # no copy of a batch may depend on another one
            used |= {dst, src}
            written.add(dst)
            batch.add(dst, src)
            expected.append((dst, src))
        driver.copies.clear()
        device.copy_batch(stream, batch)
        found: list[tuple[int, int]] = []
        for dst, src, num_bytes in driver.copies:
            assert num_bytes % PAGE == 0
            found += [(dst + offset, src + offset) for offset in range(0, num_bytes, PAGE)]
        assert found == expected
    for pool in pools[GPU] + pools[HOST]:
        pool.close()
    device.close()
    assert driver.live() == {}
    assert ("cuMemcpyBatchAsync" in driver.calls) == (driver_version >= 12080)


def place(generator: random.Random, pools: list[MemoryRange]) -> int:
    pool = generator.choice(pools)
    return pool.address + generator.randrange(pool.mapped_bytes // PAGE) * PAGE


def is_mapped(pools: list[MemoryRange], address: int) -> bool:
    return any(pool.address <= address < pool.address + pool.mapped_bytes for pool in pools)


@pytest.mark.parametrize("failure", [CUresult.CUDA_ERROR_INVALID_VALUE, CUresult.CUDA_ERROR_UNKNOWN])
def test_a_batch_that_the_driver_refuses(failure: CUresult) -> None:
    driver = FakeCudaDriver()
    device = CudaDevice(driver=driver)
    gpu, host = MemoryRange(device, GPU, GRANULE), MemoryRange(device, HOST, GRANULE)
    gpu.resize(GRANULE)
    host.resize(GRANULE)
    stream = device.create_stream()
    batch = CopyBatch(GPU, HOST, PAGE)
    for index in range(3):
        batch.add(gpu.address + 2 * index * PAGE, host.address + 3 * index * PAGE)
    driver.fail_call(2, failure)  # the first call makes the context current
    with pytest.raises(CudaError) as caught:
        device.copy_batch(stream, batch)
    assert driver.failed_call == "cuMemcpyBatchAsync" and driver.copies == []
    for part in ("cuMemcpyBatchAsync", str(int(failure)), failure.name):
        assert part in str(caught.value)
    device.copy_batch(stream, batch)
    assert len(driver.copies) == 3 and driver.calls.count("cuMemcpyBatchAsync") == 2
    gpu.close()
    host.close()
    device.close()
    assert driver.live() == {}


def test_a_batch_makes_as_many_calls_as_one_copy() -> None:
    """Nothing is asked of the driver copy by copy."""
    driver = FakeCudaDriver()
    device = CudaDevice(driver=driver)
    gpu, host = MemoryRange(device, GPU, 64 * GRANULE), MemoryRange(device, HOST, 64 * GRANULE)
    gpu.resize(64 * GRANULE)
    host.resize(64 * GRANULE)
    stream = device.create_stream()
    batch = CopyBatch(GPU, HOST, PAGE)
    for index in range(1000):
        batch.add(gpu.address + 2 * index * PAGE, host.address + (index * 7 % 2000) * PAGE)
    driver.calls.clear()
    device.copy_batch(stream, batch)
    assert driver.calls == ["cuCtxPushCurrent", "cuMemcpyBatchAsync", "cuCtxPopCurrent"]
    assert len(driver.copies) == 1000
    gpu.close()
    host.close()
    device.close()


class CountingDriver(FakeCudaDriver):
    """Counts what Python's allocator has given out when a batch reaches the driver, whichever way it is called."""

    num_blocks = 0

    def _batch_of_13(self, *arguments: Any) -> int:
        self.num_blocks = sys.getallocatedblocks()
        return super()._batch_of_13(*arguments)

    def cuMemcpyBatchAsync(self, *arguments: Any) -> tuple[Any, ...]:
        self.num_blocks = self.num_blocks or sys.getallocatedblocks()
        return super().cuMemcpyBatchAsync(*arguments)  # type: ignore[no-any-return]


def test_no_object_is_made_for_a_copy() -> None:
    """A thousand copies take as many Python objects as ten, and only the first batch asks numpy where its arrays lie."""
    driver = CountingDriver()
    device = CudaDevice(driver=driver)
    gpu, host = MemoryRange(device, GPU, 64 * GRANULE), MemoryRange(device, HOST, 64 * GRANULE)
    gpu.resize(64 * GRANULE)
    host.resize(64 * GRANULE)
    stream = device.create_stream()
    made: dict[int, int] = {}
    # The first batch makes the arrays.
    for count in (1000, 10, 1000):
        batch = CopyBatch(GPU, HOST, PAGE)
        for index in range(count):
            batch.add(gpu.address + 2 * index * PAGE, host.address + (index * 7 % 2000) * PAGE)
        driver.num_blocks = 0
        gc.collect()
        asked: set[str] = set()
        before = sys.getallocatedblocks()
        sys.setprofile(lambda frame, event, argument: asked.add(frame.f_code.co_filename))
        try:
            device.copy_batch(stream, batch)
        finally:
            sys.setprofile(None)
        made[count] = driver.num_blocks - before
        assert len(made) == 1 or not any("numpy" in name for name in asked)
    assert made[1000] - made[10] < 100
    gpu.close()
    host.close()
    device.close()


@pytest.mark.parametrize("order", ["srcAccessOrder", "srcLocHint", "dstLocHint", "flags"])
def test_the_attributes_lie_as_cuda_python_lays_them(order: str) -> None:
    """Six words of 32 bits, the first of which is the order: as `CUmemcpyAttributes` of the installed cuda-python has them."""
    try:
        from cuda.bindings import driver
    except ImportError:
        pytest.skip("cuda-python is not installed")
    attributes = driver.CUmemcpyAttributes()
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = 5
    stream_order = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    setattr(attributes, order, {"srcAccessOrder": stream_order, "flags": 9}.get(order, location))
    expected = {
        "srcAccessOrder": [1, 0, 0, 0, 0, 0],
        "srcLocHint": [0, 1, 5, 0, 0, 0],
        "dstLocHint": [0, 0, 0, 1, 5, 0],
        "flags": [0, 0, 0, 0, 0, 9],
    }
    assert list((ctypes.c_int32 * 6).from_address(int(attributes.getPtr()))) == expected[order]
