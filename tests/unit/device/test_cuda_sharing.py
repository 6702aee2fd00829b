"""GPU memory that others may have: network cards, other GPUs, other processes; what the GPU or its driver refuses."""

import logging
import os
import stat
from typing import Any

import pytest

from kv_cache_manager_v2.base.errors import CudaError, LogicError, OutOfMemoryError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.cuda_device import CudaDevice
from kv_cache_manager_v2.device.memory_range import MemoryRange

from .fake_cuda_driver import FakeCudaDriver
from .fake_cuda_types import CUdevice_attribute, CUresult

GPU = CacheTier.GPU_MEM
MIB = 1 << 20
GRANULE = 2 * MIB
RDMA = CUdevice_attribute.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
DESCRIPTORS = CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
FABRIC = CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED


def flags(driver: FakeCudaDriver) -> set[int]:
    return {driver.properties[handle].allocFlags.gpuDirectRDMACapable for handle in driver.allocations}


def with_memory(driver: FakeCudaDriver, num_bytes: int = 3 * GRANULE, **options: Any) -> tuple[CudaDevice, MemoryRange]:
    device = CudaDevice(driver=driver, **options)
    memory = MemoryRange(device, GPU, num_bytes)
    memory.resize(num_bytes)
    return device, memory


def end(driver: FakeCudaDriver, device: CudaDevice, memory: MemoryRange) -> None:
    memory.close()
    device.close()
    assert driver.live() == {}


# -- network cards ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_supported", "wish", "flag"), [(0, None, 0), (0, False, 0), (1, None, 1), (1, True, 1), (1, False, 0)]
)
def test_network_cards_reach_the_pools_where_they_can(is_supported: int, wish: bool | None, flag: int) -> None:
    driver = FakeCudaDriver()
    driver.attributes[RDMA] = is_supported
    device, memory = with_memory(driver) if wish is None else with_memory(driver, gpu_direct_rdma=wish)
    assert flags(driver) == {flag}
    end(driver, device, memory)


def test_a_driver_too_old_to_know_of_it_has_none() -> None:
    driver = FakeCudaDriver()  # answers INVALID_VALUE to attributes that it does not know
    device, memory = with_memory(driver)
    assert flags(driver) == {0}
    end(driver, device, memory)


def test_asked_for_where_the_gpu_cannot_it_is_an_error() -> None:
    driver = FakeCudaDriver()
    with pytest.raises(LogicError, match="gpu_direct_rdma=True"):
        CudaDevice(driver=driver, gpu_direct_rdma=True)
    assert driver.live() == {}


def test_memory_that_is_refused_with_it_is_had_without_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    driver = FakeCudaDriver()
    driver.attributes[RDMA] = 1
    driver.refuses_rdma = True
    device, memory = with_memory(driver)
    assert flags(driver) == {0}
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "GPUDirect RDMA" in warning and "801" in warning
    # Asked once: the next chunks are created as it goes.
    assert driver.calls.count("cuMemCreate") == 3 + 1
    end(driver, device, memory)


def test_asked_for_and_refused_it_is_an_error_that_names_it() -> None:
    driver = FakeCudaDriver()
    driver.attributes[RDMA] = 1
    driver.refuses_rdma = True
    device = CudaDevice(driver=driver, gpu_direct_rdma=True)
    memory = MemoryRange(device, GPU, GRANULE)
    with pytest.raises(CudaError, match="gpu_direct_rdma=True"):
        memory.resize(GRANULE)
    end(driver, device, memory)


def test_a_full_gpu_is_no_reason_to_do_without() -> None:
    driver = FakeCudaDriver(total_bytes=2 * GRANULE)
    driver.attributes[RDMA] = 1
    device = CudaDevice(driver=driver)
    memory = MemoryRange(device, GPU, 3 * GRANULE)
    with pytest.raises(OutOfMemoryError):
        memory.resize(3 * GRANULE)
    memory.resize(2 * GRANULE)
    assert flags(driver) == {1}
    # Nor is another failure.
    memory.resize(0)
    driver.fail_call(1, CUresult.CUDA_ERROR_UNKNOWN)
    driver.total_bytes = 0
    with pytest.raises(OutOfMemoryError):
        memory.resize(GRANULE)
    driver.total_bytes = GRANULE
    memory.resize(GRANULE)
    assert flags(driver) == {1}
    end(driver, device, memory)


# -- other GPUs -------------------------------------------------------------------------------------------------------


def test_peers_may_access_what_is_mapped() -> None:
    driver = FakeCudaDriver(num_devices=4)
    driver.peers = {(2, 1), (3, 1)}
    device = CudaDevice(1, driver=driver, peers=[2, 3])
    memory = MemoryRange(device, GPU, 200 * GRANULE)
    for num_granules in (3, 200, 50, 120):
        memory.resize(num_granules * GRANULE)
        mapped = {memory.address + index * GRANULE for index in range(num_granules)}
        for granules in (driver.accessible, driver.peer_granules[2], driver.peer_granules[3]):
            assert mapped <= granules
    assert 0 not in driver.peer_granules
    end(driver, device, memory)
    assert not any(driver.peer_granules.values())


@pytest.mark.parametrize("peer", [-1, 1, 4])
def test_peers_that_are_none(peer: int) -> None:
    driver = FakeCudaDriver(num_devices=4)
    with pytest.raises(ValueError, match=f"peers has {peer}"):
        CudaDevice(1, driver=driver, peers=[peer])
    assert driver.live() == {}


def test_a_gpu_that_cannot_access_the_other() -> None:
    driver = FakeCudaDriver(num_devices=4)
    driver.peers = {(1, 2)}  # the other way round it could
    with pytest.raises(LogicError, match="cuda:2 cannot access"):
        CudaDevice(1, driver=driver, peers=[2])
    assert driver.live() == {}


# -- other processes --------------------------------------------------------------------------------------------------


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_file_descriptors_for_other_processes() -> None:
    driver = FakeCudaDriver()
    driver.attributes[DESCRIPTORS] = 1
    device, memory = with_memory(driver, 130 * GRANULE, exportable_as="file_descriptor")
    before = open_descriptors()
    chunks = device.export_memory(memory.address, 130 * GRANULE)
    # In order, without gaps, all of it.
    assert [address for address, _, _ in chunks] == sorted(driver.spans)
    assert {address: size for address, size, _ in chunks} == driver.spans
    assert open_descriptors() == before + len(chunks)
    for _, _, descriptor in chunks:
        assert isinstance(descriptor, int) and stat.S_ISCHR(os.fstat(descriptor).st_mode)
        os.close(descriptor)
    # A part: the chunks that have some of it.
    (chunk,) = device.export_memory(memory.address + 5 * GRANULE + 100, 10)
    assert chunk[0] == memory.address + 4 * GRANULE and chunk[1] == 4 * GRANULE
    assert isinstance(chunk[2], int)
    os.close(chunk[2])
    with pytest.raises(LogicError):
        device.export_memory(memory.address + 129 * GRANULE, GRANULE + 1)
    with pytest.raises(ValueError):
        device.export_memory(memory.address, 0)
    end(driver, device, memory)


def test_an_export_that_fails_leaves_no_descriptor_open() -> None:
    driver = FakeCudaDriver()
    driver.attributes[DESCRIPTORS] = 1
    device, memory = with_memory(driver, exportable_as="file_descriptor")
    before = open_descriptors()
    for nth in (1, 2, 3):
        driver.fail_call(nth)
        with pytest.raises(CudaError, match="cuMemExportToShareableHandle"):
            device.export_memory(memory.address, 3 * GRANULE)
        assert open_descriptors() == before
    driver.fail_call(0)
    end(driver, device, memory)


def test_fabric_handles_for_other_machines() -> None:
    driver = FakeCudaDriver()
    driver.attributes[FABRIC] = 1
    device, memory = with_memory(driver, exportable_as="fabric")
    handles = [handle for _, _, handle in device.export_memory(memory.address, 3 * GRANULE)]
    assert handles == [handle.to_bytes(64, "little") for handle in driver.allocations]
    memory.resize(0)
    driver.fail_call(1, CUresult.CUDA_ERROR_NOT_SUPPORTED)
    with pytest.raises(CudaError, match="exportable_as"):
        memory.resize(GRANULE)
    end(driver, device, memory)


def test_handles_that_the_gpu_does_not_have() -> None:
    for kind in ("file_descriptor", "fabric"):
        with pytest.raises(LogicError, match=kind):
            CudaDevice(driver=FakeCudaDriver(), exportable_as=kind)
    with pytest.raises(ValueError, match="exportable_as is 'shared'"):
        CudaDevice(driver=FakeCudaDriver(), exportable_as="shared")


def test_memory_that_is_not_exportable() -> None:
    driver = FakeCudaDriver()
    device, memory = with_memory(driver)
    with pytest.raises(LogicError, match="exportable_as"):
        device.export_memory(memory.address, GRANULE)
    end(driver, device, memory)
