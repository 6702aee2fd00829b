"""Physical memory behind ranges that are going to be pinned."""

import ctypes
import resource

import pytest

from kv_cache_manager_v2.base.errors import OutOfMemoryError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.cuda_device import CudaDevice
from kv_cache_manager_v2.device.host_memory import commit_memory, decommit_memory, release_addresses, reserve_addresses, total_host_bytes
from kv_cache_manager_v2.device.memory_touch import available_host_bytes, touch_memory

from .fake_cuda_driver import FakeCudaDriver

MIB = 1 << 20
PAGE = 4096
HOST = CacheTier.HOST_MEM


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def test_every_page_is_there_afterwards() -> None:
    num_bytes = 100 * MIB + 3 * PAGE
    address = reserve_addresses(num_bytes, PAGE)
    commit_memory(address, num_bytes)
    before = resident_bytes()
    touch_memory(address, num_bytes)
    # On one core nothing is touched in advance.
    assert resident_bytes() - before in range(95 * MIB, 110 * MIB) or resident_bytes() - before < 10 * MIB
    assert ctypes.string_at(address + num_bytes - 100, 100) == bytes(100)
    decommit_memory(address, num_bytes)
    release_addresses(address, num_bytes)


def test_what_is_available_is_less_than_there_is() -> None:
    available = available_host_bytes()
    assert available is None or 0 < available < total_host_bytes()


def test_more_than_there_is_is_refused_before_it_is_taken() -> None:
    device = CudaDevice(driver=FakeCudaDriver(pinnable_bytes=1 << 50))
    address = device.reserve_range(HOST, 1 << 45)
    before = resident_bytes()
    with pytest.raises(OutOfMemoryError, match="available") as caught:
        device.map_memory(HOST, address, 1 << 45)
    assert str(1 << 45) in str(caught.value) and "quota" in str(caught.value)
    assert resident_bytes() - before < 10 * MIB
    device.map_memory(HOST, address, 4 * MIB)
    device.unmap_memory(HOST, address, 4 * MIB)
    device.release_range(HOST, address, 1 << 45)
    device.close()
