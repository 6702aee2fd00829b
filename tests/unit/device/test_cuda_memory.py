"""GPU memory in chunks: few handles for large pools, the same granules for those who map, nothing lost on the way."""

import random

import pytest
from gpu.gpu_figures import mapping_seconds

from kv_cache_manager_v2.base.errors import CudaError, KVCacheManagerError, OutOfMemoryError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.cuda_device import CudaDevice

from .fake_cuda_driver import FakeCudaDriver
from .fake_cuda_types import CUresult

GPU = CacheTier.GPU_MEM
MIB = 1 << 20
GIB = 1 << 30
GRANULE = 2 * MIB


def counts(driver: FakeCudaDriver) -> dict[str, int]:
    return {name: driver.calls.count(name) for name in ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease")}


def test_80_gb_are_some_thousand_calls() -> None:
    """In granules, as memory was mapped once, each of these counts was 40,960."""
    driver = FakeCudaDriver(total_bytes=96 * GIB)
    device = CudaDevice(driver=driver)
    driver.calls.clear()
    assert min(mapping_seconds(device, 80 * GIB)) > 0
    # 80 GiB / 64 MiB chunks; unmapped in two halves.
    assert counts(driver) == {
        "cuMemCreate": 1280, "cuMemMap": 1280, "cuMemSetAccess": 1, "cuMemUnmap": 2, "cuMemRelease": 1280
    }  # fmt: skip
    device.close()
    assert driver.live() == {}


@pytest.mark.parametrize(
    ("num_granules", "sizes"),
    [
        # A chunk is at most 1/32 of what is mapped, and at most 64 MiB, which are 32 granules.
        (1, [1]),
        (63, [1] * 63),
        (64, [2] * 32),
        (67, [2] * 33 + [1]),
        (32 * 32 + 31, [32] * 32 + [16, 8, 4, 2, 1]),
    ],
)
def test_sizes_of_chunks(num_granules: int, sizes: list[int]) -> None:
    driver = FakeCudaDriver(total_bytes=8 * GIB)
    device = CudaDevice(driver=driver)
    address = device.reserve_range(GPU, num_granules * GRANULE)
    device.map_memory(GPU, address, num_granules * GRANULE)
    assert [size // GRANULE for _, size in sorted(driver.spans.items())] == sizes
    device.unmap_memory(GPU, address, num_granules * GRANULE)
    device.release_range(GPU, address, num_granules * GRANULE)
    device.close()
    assert driver.live() == {}


@pytest.mark.parametrize("chunk_bytes", [1, GRANULE, 64 * MIB, GIB])
def test_no_plan_depends_on_chunks(chunk_bytes: int) -> None:
    """What pools and quotas are computed with, and the smallest mapping, are granules."""
    driver = FakeCudaDriver()
    device = CudaDevice(driver=driver, chunk_bytes=chunk_bytes)
    assert device.granularity_bytes(GPU) == GRANULE
    address = device.reserve_range(GPU, GRANULE)
    device.map_memory(GPU, address, GRANULE)
    assert list(driver.spans.values()) == [GRANULE]
    device.unmap_memory(GPU, address, GRANULE)
    device.release_range(GPU, address, GRANULE)
    device.close()


@pytest.mark.parametrize("chunk_bytes", [0, -GRANULE, 3 * MIB])
def test_sizes_of_chunks_that_are_refused(chunk_bytes: int) -> None:
    with pytest.raises(ValueError, match="chunk_bytes"):
        CudaDevice(driver=FakeCudaDriver(), chunk_bytes=chunk_bytes)


def test_a_chunk_that_is_left_in_part_stays_and_is_used_again() -> None:
    """256 granules in chunks of 8: the range shrinks by 3, by 5 more, and grows again."""
    driver = FakeCudaDriver(total_bytes=256 * GRANULE)
    device = CudaDevice(driver=driver)
    address = device.reserve_range(GPU, 256 * GRANULE)
    device.map_memory(GPU, address, 256 * GRANULE)
    assert set(driver.spans.values()) == {8 * GRANULE}
    driver.calls.clear()
    device.unmap_memory(GPU, address + 253 * GRANULE, 3 * GRANULE)
    assert driver.calls == []
    # The GPU is full: only who knows of the rest understands why.
    other = device.reserve_range(GPU, GRANULE)
    with pytest.raises(OutOfMemoryError) as caught:
        device.map_memory(GPU, other, GRANULE)
    assert f"{3 * GRANULE} bytes are left of chunks" in str(caught.value) and "chunk_bytes" in str(caught.value)
    driver.calls.clear()
    device.map_memory(GPU, address + 253 * GRANULE, 2 * GRANULE)
    assert driver.calls == []
    device.unmap_memory(GPU, address + 248 * GRANULE, 7 * GRANULE)
    assert driver.calls == ["cuMemUnmap", "cuMemRelease"]
    device.map_memory(GPU, other, GRANULE)
    device.unmap_memory(GPU, other, GRANULE)
    device.unmap_memory(GPU, address, 248 * GRANULE)
    for beg, size in list(driver.ranges.items()):
        device.release_range(GPU, beg, size)
    device.close()
    assert driver.live() == {}


def test_a_driver_that_unmaps_one_mapping_at_a_time() -> None:
    driver = FakeCudaDriver()
    driver.is_unmapping_one_by_one = True
    device = CudaDevice(driver=driver)
    address = device.reserve_range(GPU, 8 * GRANULE)
    device.map_memory(GPU, address, 8 * GRANULE)
    device.unmap_memory(GPU, address, 8 * GRANULE)
    assert driver.mappings == {} and driver.calls.count("cuMemUnmap") == 1 + 8
    device.release_range(GPU, address, 8 * GRANULE)
    device.close()
    assert driver.live() == {}


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_random_mappings(seed: int, one_by_one: bool) -> None:
    """By brute force over granules: what is mapped is accessible, and what is not costs at most what chunks left in part."""
    generator = random.Random(seed)
    driver = FakeCudaDriver(total_bytes=700 * GRANULE)
    driver.is_unmapping_one_by_one = one_by_one
    device = CudaDevice(driver=driver, chunk_bytes=generator.choice([1, 2, 8, 32]) * GRANULE)
    ranges = [device.reserve_range(GPU, 400 * GRANULE) for _ in range(2)]
    mapped: set[int] = set()
    num_refused = 0
    for _ in range(150):
        beg = generator.choice(ranges) + generator.choice([0, generator.randrange(400)]) * GRANULE
        count = generator.randint(1, 400)
        wanted = {granule for granule in range(beg, beg + count * GRANULE, GRANULE)}
        is_map = not wanted & mapped
        if not is_map and not wanted <= mapped:
            # As much of it as is mapped from the beginning on, or none.
            count = next((i for i in range(count) if beg + i * GRANULE not in mapped), count)
            wanted = {beg + i * GRANULE for i in range(count)}
        if count == 0 or not any(r <= beg and beg + count * GRANULE <= r + 400 * GRANULE for r in ranges):
            continue
        # Not the allocations: what the driver would not take back before may be taken back now.
        before = dict(driver.mappings), dict(driver.spans), set(driver.accessible)
        if generator.random() < 0.4:
            driver.fail_call(generator.randint(1, 12))
        try:
            if is_map:
                device.map_memory(GPU, beg, count * GRANULE)
                mapped |= wanted
            else:
                device.unmap_memory(GPU, beg, count * GRANULE)
                mapped -= wanted
        except KVCacheManagerError:
            num_refused += 1
            assert (driver.mappings, driver.spans, driver.accessible) == before
        driver.fail_call(0)
        assert mapped <= driver.accessible
        # Each chunk has a mapped granule; so all that lies idle is the rest of chunks.
        for address, size in driver.spans.items():
            assert any(granule in mapped for granule in range(address, address + size, GRANULE))
    assert num_refused > 0
    for granule in sorted(mapped):
        device.unmap_memory(GPU, granule, GRANULE)
    assert driver.mappings == {}
    for beg in ranges:
        device.release_range(GPU, beg, 400 * GRANULE)
    device.close()
    assert driver.live() == {}


def test_a_release_that_fails_is_tried_again() -> None:
    driver = FakeCudaDriver()
    device = CudaDevice(driver=driver)
    address = device.reserve_range(GPU, 4 * GRANULE)
    device.map_memory(GPU, address, 4 * GRANULE)
    driver.fail_call(2, CUresult.CUDA_ERROR_UNKNOWN)
    device.unmap_memory(GPU, address, 4 * GRANULE)
    assert driver.failed_call == "cuMemRelease" and len(driver.allocations) == 1
    device.release_range(GPU, address, 4 * GRANULE)
    driver.fail_call(1, CUresult.CUDA_ERROR_UNKNOWN)
    with pytest.raises(CudaError):
        device.close()
    device.close()
    assert driver.live() == {}
