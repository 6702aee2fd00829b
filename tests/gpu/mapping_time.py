"""How long GPU memory takes to be mapped and given back: what a large pool costs at the start of an engine."""

import time
from dataclasses import dataclass

from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.port import Device


@dataclass(frozen=True)
class MappingTime:
    num_bytes: int
    map_seconds: float
    unmap_seconds: float


def measure_mapping(device: Device, num_bytes: int) -> MappingTime:
    """One range of ``num_bytes`` of GPU memory (rounded up to the granularity), mapped with one call and unmapped with one."""
    memory = MemoryRange(device, CacheTier.GPU_MEM, num_bytes)
    try:
        began = time.perf_counter()
        memory.resize(memory.max_bytes)
        mapped = time.perf_counter()
        memory.resize(0)
        ended = time.perf_counter()
    finally:
        memory.close()
    return MappingTime(memory.max_bytes, mapped - began, ended - mapped)
