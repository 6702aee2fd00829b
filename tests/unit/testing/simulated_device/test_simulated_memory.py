"""Ranges, mapping, limits and contents of the simulated device's memory."""

import ctypes

import pytest

from kv_cache_manager_v2.base.errors import LogicError, OutOfMemoryError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.port import CopyBatch
from kv_cache_manager_v2.testing.simulated_device import SimulatedDevice
from kv_cache_manager_v2.testing.simulated_memory import MAPPED_POISON, UNMAPPED_POISON

GPU, HOST, DISK = CacheTier.GPU_MEM, CacheTier.HOST_MEM, CacheTier.DISK
PAGE = 4096


def test_contents_live_only_while_mapped():
    device = SimulatedDevice(0)
    address = device.reserve_range(GPU, 2 * PAGE)
    device.map_memory(GPU, address, PAGE)
    assert ctypes.string_at(address, PAGE) == bytes([MAPPED_POISON]) * PAGE
    device.host_write(address, b"abc")
    assert device.host_read(address, 3) == b"abc"
    device.unmap_memory(GPU, address, PAGE)
    assert ctypes.string_at(address, PAGE) == bytes([UNMAPPED_POISON]) * PAGE
    device.map_memory(GPU, address, 2 * PAGE)
    assert ctypes.string_at(address, 2 * PAGE) == bytes([MAPPED_POISON]) * 2 * PAGE


def test_copies_move_bytes_between_tiers():
    for seed in range(10):
        device = SimulatedDevice(seed)
        gpu, host = device.reserve_range(GPU, PAGE), device.reserve_range(HOST, PAGE)
        device.map_memory(GPU, gpu, PAGE)
        device.map_memory(HOST, host, PAGE)
        device.host_write(host, bytes(range(256)))
        batch = CopyBatch(GPU, HOST, 64)
        for position in range(4):  # the four quarters in reverse order
            batch.add(gpu + position * 64, host + (3 - position) * 64)
        stream = device.create_stream()
        device.copy_batch(stream, batch)
        batch.add(gpu, host)  # the caller's batch is the caller's again
        device.synchronize_stream(stream)
        expected = b"".join(bytes(range(beg, beg + 64)) for beg in (192, 128, 64, 0))
        assert device.host_read(gpu, 256) == expected


def test_mapping_in_pieces():
    """Chunks may be unmapped in other pieces than they were mapped in; an access may run over several."""
    device = SimulatedDevice(0)
    address = device.reserve_range(GPU, 8 * PAGE)
    device.map_memory(GPU, address, 2 * PAGE)
    device.map_memory(GPU, address + 2 * PAGE, 3 * PAGE)
    device.fill(device.default_stream(), address, 5 * PAGE, 9)
    device.synchronize_stream(device.default_stream())
    device.unmap_memory(GPU, address + PAGE, 3 * PAGE)
    assert device.mapped_bytes(GPU) == 2 * PAGE
    for beg, size in ((0, 2), (1, 1), (4, 2), (7, 1)):
        with pytest.raises(LogicError):
            device.unmap_memory(GPU, address + beg * PAGE, size * PAGE)
    for beg, size in ((0, 1), (0, 3), (4, 1)):
        with pytest.raises(LogicError):
            device.map_memory(GPU, address + beg * PAGE, size * PAGE)
    assert device.mapped_bytes(GPU) == 2 * PAGE
    assert device.host_read(address, 1) == device.host_read(address + 4 * PAGE, 1) == b"\x09"


def test_limits():
    device = SimulatedDevice(0, total_bytes=8 * PAGE)
    address = device.reserve_range(GPU, 64 * PAGE)  # addresses cost nothing
    device.map_memory(GPU, address, 6 * PAGE)
    with pytest.raises(OutOfMemoryError):
        device.map_memory(GPU, address + 6 * PAGE, 3 * PAGE)
    device.map_memory(GPU, address + 6 * PAGE, 2 * PAGE)
    host = device.reserve_range(HOST, 8 * PAGE)
    device.map_memory(HOST, host, 8 * PAGE)  # each tier has its own
    device.unmap_memory(GPU, address, 4 * PAGE)
    device.set_memory_limit(GPU, 5 * PAGE)
    with pytest.raises(OutOfMemoryError):
        device.map_memory(GPU, address, 2 * PAGE)
    device.map_memory(GPU, address, PAGE)
    assert device.mapped_bytes(GPU) == 5 * PAGE


def test_misuse():
    device = SimulatedDevice(0)
    address = device.reserve_range(GPU, 4 * PAGE)
    for num_bytes in (0, 1, PAGE + 1, -PAGE):
        with pytest.raises(ValueError):
            device.reserve_range(GPU, num_bytes)
    with pytest.raises(ValueError):
        device.reserve_range(DISK, PAGE)
    with pytest.raises(ValueError):
        device.map_memory(GPU, address + 1, PAGE)
    with pytest.raises(LogicError):
        device.map_memory(HOST, address, PAGE)
    with pytest.raises(LogicError):
        device.map_memory(GPU, address + PAGE, 4 * PAGE)
    with pytest.raises(LogicError):
        device.release_range(GPU, address, PAGE)
    device.map_memory(GPU, address, PAGE)
    with pytest.raises(LogicError):
        device.release_range(GPU, address, 4 * PAGE)
    with pytest.raises(LogicError):
        device.close()
    stream = device.default_stream()
    with pytest.raises(ValueError):
        device.fill(stream, address, 8, 256)
    with pytest.raises(ValueError):
        device.fill(stream, address, 0, 1)
    with pytest.raises(ValueError):
        SimulatedDevice(0, granularity_bytes=100)
    device.unmap_memory(GPU, address, PAGE)
    device.release_range(GPU, address, 4 * PAGE)
    with pytest.raises(LogicError):
        device.release_range(GPU, address, 4 * PAGE)
    device.close()
    device.close()
    assert list(device.races) == []


def test_released_addresses_are_not_given_again():
    device = SimulatedDevice(0)
    seen = set()
    for _ in range(50):
        address = device.reserve_range(GPU, 16 * PAGE)
        assert address not in seen
        seen.add(address)
        device.release_range(GPU, address, 16 * PAGE)
    device.close()


def test_large_granularity_is_kept():
    device = SimulatedDevice(0, granularity_bytes=1 << 21)
    assert device.granularity_bytes(GPU) == 1 << 21
    assert device.reserve_range(GPU, 1 << 21) % (1 << 21) == 0
