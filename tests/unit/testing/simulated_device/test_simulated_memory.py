"""Ranges, mapping, limits and contents of the simulated device's memory."""

import ctypes

import pytest

from kv_cache_manager_v2.base.errors import OutOfMemoryError
from kv_cache_manager_v2.base.ids import CacheTier
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


def test_large_granularity_is_kept():
    device = SimulatedDevice(0, granularity_bytes=1 << 21)
    assert device.granularity_bytes(GPU) == 1 << 21
    assert device.reserve_range(GPU, 1 << 21) % (1 << 21) == 0
