"""What `make gpu` measures, with the goals, and the table of it."""

import ctypes
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
)
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.port import NO_TIMER, STILL_RUNNING, CopyBatch
from kv_cache_manager_v2.kernels.device_page_indices import CUDA_SOURCE, KERNEL_NAME

from .gpu_setting import GPU, HOST, MIB, Setting

_NUM_RUNS = 5
_GOAL_BYTES = 80_000_000_000
_GOAL_SECONDS = 2.0


@dataclass(frozen=True)
class Figure:
    """``goal``: the most that it should be, or with ``is_least`` the least; None: there is none."""

    what: str
    value: float
    unit: str
    goal: float | None = None
    is_least: bool = False

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return "met" if (self.value >= self.goal if self.is_least else self.value <= self.goal) else "missed"

    @property
    def cells(self) -> list[str]:
        goal = "" if self.goal is None else f"{'>=' if self.is_least else '<='} {self.goal:.4g} {self.unit}"
        return [self.what, f"{self.value:.4g} {self.unit}".strip(), goal, self.verdict]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Figures = list[Figure]


def device_seconds(device: Any, stream: int, enqueue: Callable[[], None]) -> float:
    """The least of some runs, from when the stream gets there to when it is through."""
    best = float("inf")
    for _ in range(_NUM_RUNS + 1):  # the first one warms up
        timer = device.start_timer(stream)
        assert timer != NO_TIMER, "the device has no timer"
        enqueue()
        device.stop_timer(stream, timer)
        device.synchronize_stream(stream)
        seconds: float = device.read_timer(timer)
        assert seconds != STILL_RUNNING and seconds >= 0.0, f"the timer says {seconds}"
        device.release_timer(timer)
        best = min(best, seconds)
    return best


def copies_beside_one_large(setting: Setting) -> Figures:
    """Pages that are scattered on both sides, beside as many bytes in one pinned copy."""
    num_bytes = setting.pick(256 * MIB, 8 * MIB)
    figures: Figures = []
    device = setting.make_device()
    stream = device.create_stream()
    ranges = {tier: MemoryRange(device, tier, 2 * num_bytes) for tier in (GPU, HOST)}
    for memory in ranges.values():
        memory.resize(2 * num_bytes)
    for name, dst, src in (("to the GPU", GPU, HOST), ("to the host", HOST, GPU)):
        whole = device_seconds(device, stream, lambda: _copy(device, stream, ranges, dst, src, num_bytes, num_bytes))
        figures.append(Figure(f"one pinned copy of {num_bytes >> 20} MiB {name}", num_bytes / whole / 1e9, "GB/s"))
        for size in (16 << 10, 64 << 10, 256 << 10, MIB, 4 * MIB):
            pages = device_seconds(device, stream, lambda: _copy(device, stream, ranges, dst, src, num_bytes, size))
            goal = 90.0 if size >= 256 << 10 else None
            figures.append(Figure(f"pages of {size >> 10} KiB {name}, of one copy's rate", 100.0 * whole / pages, "%", goal, True))
    for memory in ranges.values():
        memory.close()
    device.close()
    return figures


def _copy(device: Any, stream: int, ranges: dict[CacheTier, MemoryRange], dst: CacheTier, src: CacheTier, total: int, size: int) -> None:
    """Every second page of both ranges, backwards on one side; or all of it in one piece."""
    batch = CopyBatch(dst, src, size)
    count = total // size
    for index in range(count):
        step = 1 if count == 1 else 2
        batch.add(ranges[dst].address + step * (count - 1 - index) * size, ranges[src].address + step * index * size)
    device.copy_batch(stream, batch)


def page_index_conversion(setting: Setting) -> Figures:
    """256 sequences of 4096 blocks, one layer, one launch."""
    setting.require_kernels()
    num_rows, width = setting.pick(256, 4), setting.pick(4096, 64)
    device = setting.make_device()
    kernel = device.compile(CUDA_SOURCE, KERNEL_NAME)
    stream = device.create_stream()
    places = {"base": 0}
    end = 4 * num_rows * width
    for name, num_words in (("lengths", num_rows), ("scratch", 3 * num_rows), ("slots", 1), ("rules", 8)):
        places[name] = end
        end += 8 * num_words
    places["out"] = end
    end += 4 * num_rows * width
    host, gpu = MemoryRange(device, HOST, end), MemoryRange(device, GPU, end)
    host.resize(end)
    gpu.resize(end)
    scale, offset = 6, 2
    base = (ctypes.c_int32 * (num_rows * width)).from_address(host.address)
    base[:] = [index % 1000 if index % 7 else -1 for index in range(num_rows * width)]
    (ctypes.c_int64 * num_rows).from_address(host.address + places["lengths"])[:] = [width] * num_rows
    (ctypes.c_int64 * (3 * num_rows)).from_address(host.address + places["scratch"])[:] = [0] * (3 * num_rows)
    (ctypes.c_int64 * 8).from_address(host.address + places["rules"])[:] = [0, scale, offset, 1, 1, 0, width, -1]
    _whole(device, stream, GPU, gpu.address, HOST, host.address, end)
    words = [gpu.address + places[name] for name in ("base", "lengths", "scratch", "slots", "rules", "out")] + [1, num_rows, width]
    arguments = [ctypes.c_uint64(word) for word in words]
    grid = ((num_rows * width + 255) // 256, 1, 1)
    seconds = device_seconds(device, stream, lambda: kernel.launch(stream, grid, (256, 1, 1), arguments))
    _whole(device, stream, HOST, host.address, GPU, gpu.address, end)
    device.synchronize_stream(stream)
    found = (ctypes.c_int32 * (num_rows * width)).from_address(host.address + places["out"])
    assert list(found) == [-1 if slot < 0 else slot * scale + offset for slot in base]
    del found, base
    host.close()
    gpu.close()
    device.close()
    return [Figure(f"page indices of {num_rows} x {width} entries converted", seconds * 1e6, "us", 20.0)]


def _whole(device: Any, stream: int, dst_tier: CacheTier, dst: int, src_tier: CacheTier, src: int, num_bytes: int) -> None:
    batch = CopyBatch(dst_tier, src_tier, num_bytes)
    batch.add(dst, src)
    device.copy_batch(stream, batch)


def resume_of_host_pages(setting: Setting) -> Figures:
    """A sequence whose 1,000 pages went to host memory is resumed: what the call takes of the host's time."""
    num_pages = setting.pick(1000, 50)
    tokens_per_block, page_bytes = 4, setting.pick(64 << 10, 1 << 10)
    layers = [AttentionLayerConfig(LayerId(0), [BufferConfig("key", page_bytes // 2), BufferConfig("value", page_bytes // 2)])]
    tiers = [
        GpuCacheTierConfig(num_pages * page_bytes, EvictionPolicy.LRU),
        HostCacheTierConfig((num_pages + 8) * page_bytes, EvictionPolicy.LRU),
    ]
    config = KVCacheManagerConfig(tokens_per_block, list(tiers), layers, max_util_for_resume=1.0)
    device = setting.make_device()
    best = float("inf")
    with KVCacheManager(config, device=device) as manager:
        stream = device.create_stream()
        sequence = manager.create_kv_cache()
        assert sequence.resume(stream) and sequence.resize(num_pages * tokens_per_block), manager.last_refusal
        for _ in range(_NUM_RUNS):
            sequence.suspend()
            with manager.create_kv_cache() as other:
                assert other.resume(stream) and other.resize(num_pages * tokens_per_block), manager.last_refusal
            below = manager.get_storage_statistics(1)[0]
            assert below.total - below.free == num_pages, f"{below.total - below.free} pages are in host memory"
            device.synchronize_stream(stream)
            began = time.perf_counter()
            assert sequence.resume(stream), manager.last_refusal
            best = min(best, time.perf_counter() - began)
            device.synchronize_stream(stream)
        sequence.close()
        device.destroy_stream(stream)
    device.close()
    return [Figure(f"resume of {num_pages} pages in host memory, host time", best * 1e3, "ms", 1.0)]


def mapping_seconds(device: Any, num_bytes: int) -> tuple[float, float, float]:
    """One range of GPU memory: mapped with one call, half of it released, then the rest."""
    memory = MemoryRange(device, GPU, num_bytes)
    times = [time.perf_counter()]
    for size in (num_bytes, num_bytes // 2, 0):
        memory.resize(size)
        times.append(time.perf_counter())
    memory.close()
    return times[1] - times[0], times[2] - times[1], times[3] - times[2]


def time_to_map(setting: Setting) -> Figures:
    """80 % of the GPU."""
    device = setting.make_device()
    granule = device.granularity_bytes(GPU)
    num_bytes = device.total_bytes(GPU) * setting.pick(80, 10) // 100 // (2 * granule) * 2 * granule
    whole, half, rest = mapping_seconds(device, num_bytes)
    device.close()
    goal = _GOAL_SECONDS * num_bytes / _GOAL_BYTES
    return [
        Figure(f"map {num_bytes / 1e9:.1f} GB", whole, "s", goal),
        Figure("give half of it back", half, "s"),
        Figure("give the rest back", rest, "s"),
    ]


MEASUREMENTS = {
    measured.__name__: measured
    for measured in (copies_beside_one_large, page_index_conversion, resume_of_host_pages, time_to_map)
}
