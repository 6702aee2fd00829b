"""`HostDevice` beyond the contract: what it costs, what goes back to the operating system, what memory limits do."""

import ctypes
import resource

import pytest

from kv_cache_manager_v2.base.errors import LogicError, OutOfMemoryError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.port import CopyBatch

GPU, HOST = CacheTier.GPU_MEM, CacheTier.HOST_MEM
MIB = 1 << 20
GIB = 1 << 30


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def test_a_tier_larger_than_the_machine_is_mapped_at_once() -> None:
    device = HostDevice()
    before = resident_bytes()
    memory = MemoryRange(device, GPU, 1024 * GIB)
    memory.resize(1024 * GIB)
    device.fill(0, memory.address + 1000 * GIB, 4096, 7)
    assert ctypes.string_at(memory.address + 1000 * GIB, 4096) == b"\7" * 4096
    memory.resize(GIB)
    memory.resize(1024 * GIB)
    # Given back and mapped anew: the byte is gone.
    assert ctypes.string_at(memory.address + 1000 * GIB, 16) == bytes(16)
    assert resident_bytes() - before < 16 * MIB
    memory.close()
    device.close()


def test_physical_memory_is_allocated_when_touched_and_freed_on_unmap() -> None:
    device = HostDevice()
    memory = MemoryRange(device, HOST, 256 * MIB)
    before = resident_bytes()
    memory.resize(256 * MIB)
    assert resident_bytes() - before < 16 * MIB
    ctypes.memset(memory.address, 1, 128 * MIB)
    assert resident_bytes() - before > 120 * MIB
    memory.resize(64 * MIB)
    assert 56 * MIB < resident_bytes() - before < 80 * MIB
    memory.close()
    assert resident_bytes() - before < 16 * MIB
    device.close()


def test_memory_that_the_system_refuses_changes_nothing() -> None:
    device = HostDevice()
    memory = MemoryRange(device, GPU, 8 * GIB)
    memory.resize(2 * MIB)
    ctypes.memset(memory.address, 9, 2 * MIB)
    old_limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (4 * GIB, old_limits[1]))
    try:
        with pytest.raises(OutOfMemoryError) as caught:
            memory.resize(8 * GIB)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, old_limits)
    assert str(8 * GIB - 2 * MIB) in str(caught.value)
    assert memory.mapped_bytes == 2 * MIB
    assert ctypes.string_at(memory.address, 2 * MIB) == b"\t" * (2 * MIB)
    memory.resize(4 * MIB)
    ctypes.memset(memory.address + 2 * MIB, 1, 2 * MIB)
    memory.close()
    device.close()


def test_streams_are_eager() -> None:
    device = HostDevice(4096)
    memory = MemoryRange(device, GPU, 8192)
    memory.resize(8192)
    stream = device.create_stream()
    device.fill(stream, memory.address, 4096, 3)
    assert ctypes.string_at(memory.address, 4096) == b"\3" * 4096
    event = device.record_event(stream)
    assert device.is_event_done(event)
    batch = CopyBatch(GPU, GPU, 100)
    batch.add(memory.address + 4096, memory.address)
    device.copy_batch(stream, batch)
    assert ctypes.string_at(memory.address + 4096, 100) == b"\3" * 100
    memory.close()
    device.close()


def test_a_stream_must_be_the_devices_own() -> None:
    device = HostDevice(4096)
    stream = device.create_stream()
    device.destroy_stream(stream)
    for wrong in (1, -1, 0x7F0000001000, stream):
        with pytest.raises(LogicError):
            device.record_event(wrong)
        with pytest.raises(LogicError):
            device.fill(wrong, 0, 1, 1)
        with pytest.raises(LogicError):
            device.synchronize_stream(wrong)
    device.close()


@pytest.mark.parametrize("granularity_bytes", [0, -4096, 2048, 3 * 4096])
def test_granularity_is_a_power_of_two_of_a_page_at_least(granularity_bytes: int) -> None:
    with pytest.raises(ValueError):
        HostDevice(granularity_bytes)


def test_a_large_granularity_aligns_ranges() -> None:
    device = HostDevice(64 * MIB)
    addresses = [device.reserve_range(GPU, 64 * MIB) for _ in range(4)]
    assert all(address % (64 * MIB) == 0 for address in addresses)
    for address in addresses:
        device.release_range(GPU, address, 64 * MIB)
    device.close()


def test_a_forgotten_range_names_how_many_and_how_much() -> None:
    device = HostDevice(4096)
    address = device.reserve_range(GPU, 8192)
    other = device.reserve_range(HOST, 4096)
    with pytest.raises(LogicError) as caught:
        device.close()
    assert "2" in str(caught.value) and "12288" in str(caught.value)
    device.release_range(GPU, address, 8192)
    device.release_range(HOST, other, 4096)
    device.close()
