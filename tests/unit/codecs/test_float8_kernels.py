"""The CUDA kernels of `Float8Codec` read and write what its numpy does, byte for byte: their source runs on the processor here."""

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from simulation.cuda_over_fake import import_fake, make_cuda_device, require_clean

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    BufferId,
    CacheTier,
    CoalescedBuffer,
    DataRole,
    Device,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerGroupId,
    LayerId,
    SlotDescVariant,
)
from kv_cache_manager_v2.base.errors import CudaError
from kv_cache_manager_v2.codecs.float8_codec import Float8Codec
from kv_cache_manager_v2.codecs.float8_kernels import CUDA_SOURCE, PAGES_PER_LAUNCH
from kv_cache_manager_v2.codecs.int4_codec import Int4Codec
from kv_cache_manager_v2.device.cuda_kernel import CudaCompiler, load_nvrtc_module
from kv_cache_manager_v2.device.memory_range import MemoryRange

RUN = 24
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@pytest.fixture
def device() -> Iterator[Device]:
    if import_fake("kernels_on_host").COMPILER is None:
        pytest.skip("no C++ compiler to run the CUDA source on the processor")
    device, driver = make_cuda_device(3)
    yield device
    device.close()
    require_clean(driver)


def page_of(roles: list[list[str]], num_bytes: int) -> SlotDescVariant:
    """A pool for each list of roles, whose buffers have that many bytes, half as many in the second one."""
    pools = []
    for pool, names in enumerate(roles):
        buffer_ids = tuple(BufferId(LayerId(index), DataRole(role)) for index, role in enumerate(names))
        pools.append(CoalescedBuffer(num_bytes >> pool, buffer_ids))
    return SlotDescVariant(LayerGroupId(0), tuple(pools))


def all_kinds_of_bits(dtype: str, count: int) -> np.ndarray[Any, Any]:
    """Numbers of every exponent, zeros of both signs, infinities, what is no number, subnormal ones: random bits, and runs of one size."""
    random = np.random.default_rng(7)
    kind = {2: np.uint16, 4: np.uint32}[ITEM_BYTES[dtype]]
    bits = random.integers(0, np.iinfo(kind).max, count, kind, endpoint=True)
    runs = bits[: count // 2].reshape(-1, RUN)
    # Half of all runs have numbers of some 15 exponents, as many as codes have; some have no bits but the lowest ones.
    mantissa = {"float32": 23, "float16": 10, "bfloat16": 7}[dtype]
    most = random.integers(0, 1 << (8 * ITEM_BYTES[dtype] - 1 - mantissa), (len(runs), 1))
    exponents = np.maximum(most - random.integers(0, 17, runs.shape), 0).astype(kind)
    low = runs & kind((1 << mantissa) - 1)
    runs[:] = (runs & kind(1 << (8 * ITEM_BYTES[dtype] - 1))) | low | (exponents << kind(mantissa))
    runs[::9] = 0
    runs[1::9, 3:] &= kind(7)
    return bits.view(np.uint8)


def run_on(device: Device, codec: Float8Codec, page: SlotDescVariant, data: list[np.ndarray[Any, Any]]) -> tuple[bytes, list[bytes]]:
    """Pack pages, whose bytes are a row in each pool's array, and unpack them over ones: what was packed, and what came back."""
    count, cold_bytes = len(data[0]), codec.cold_bytes(page)
    pools = [MemoryRange(device, CacheTier.GPU_MEM, rows.size) for rows in data]
    cold = MemoryRange(device, CacheTier.HOST_MEM, count * cold_bytes)
    stream = device.create_stream()
    cold.resize(count * cold_bytes)
    ctypes.memset(cold.address, 0, count * cold_bytes)
    hot = []
    for memory, rows in zip(pools, data):
        memory.resize(rows.size)
        ctypes.memmove(memory.address, rows.ctypes.data, rows.size)
        # From the last page to the first: the order of pages is not that of addresses.
        hot.append([memory.address + (count - 1 - number) * rows.shape[1] for number in range(count)])
    places = [cold.address + number * cold_bytes for number in range(count)]
    codec.validate(device)
    codec.encode(device, stream, page, hot, places)
    device.synchronize_stream(stream)
    packed = ctypes.string_at(cold.address, count * cold_bytes)
    for memory, rows in zip(pools, data):
        ctypes.memset(memory.address, 255, rows.size)
    codec.decode(device, stream, page, hot, places)
    device.synchronize_stream(stream)
    unpacked = [ctypes.string_at(memory.address, rows.size) for memory, rows in zip(pools, data)]
    device.destroy_stream(stream)
    for memory in [*pools, cold]:
        memory.close()
    return packed, unpacked


@pytest.mark.parametrize("dtype", list(ITEM_BYTES))
@pytest.mark.parametrize(
    ("roles", "packed_roles"),
    [([["key", "value"]], None), ([["key", "value", "key", "value"], ["key"]], None), ([["key", "rope", "key", "key"], ["rope"]], ["key"])],
)
def test_the_kernels_equal_the_numpy(device: Device, dtype: str, roles: list[list[str]], packed_roles: list[str] | None) -> None:
    """More pages than a launch takes; buffers that are packed and buffers that are not, in two pools."""
    count = PAGES_PER_LAUNCH + 6
    num_bytes = 4 * RUN * ITEM_BYTES[dtype]
    data = []
    for pool, names in enumerate(roles):
        size = len(names) * (num_bytes >> pool)
        data.append(all_kinds_of_bits(dtype, count * size // ITEM_BYTES[dtype]).reshape(count, size))
    page = page_of(roles, num_bytes)
    codec = Float8Codec(dtype, RUN, packed_roles)
    host = HostDevice()
    expected = run_on(host, codec, page, data)
    assert len(set(expected[0])) == 256, "all codes"
    assert run_on(device, codec, page, data) == expected
    host.close()


def test_a_manager_on_a_gpu_has_the_bytes_of_one_on_the_host(device: Device) -> None:
    """Sequences take turns on level 0, and pages swap where host memory is full too."""
    layer = AttentionLayerConfig(LayerId(0), [BufferConfig("key", 4 * 48 * 4), BufferConfig("value", 4 * 48 * 4)])
    packed = Float8Codec("float32", 48).cold_bytes(page_of([["key", "value"]], 4 * 48 * 4))
    tiers = [GpuCacheTierConfig(4 * 8 * 48 * 4, EvictionPolicy.LRU), HostCacheTierConfig(5 * packed, EvictionPolicy.LRU)]
    config = KVCacheManagerConfig(4, tiers, [layer])
    found = []
    host = HostDevice()
    for one in (host, device):
        pages: list[bytes] = []
        with KVCacheManager(config, device=one, cold_page_codec=Float8Codec("float32", 48)) as manager:
            (pool,) = manager.pool_group_descs[0].pools
            kv_caches = [manager.create_kv_cache() for _ in range(3)]
            for turn in range(3):
                for number, kv_cache in enumerate(kv_caches):
                    assert kv_cache.resume() and kv_cache.resize(12), manager.last_refusal
                    one.synchronize_stream(kv_cache.cuda_stream)
                    for ordinal, slot in enumerate(kv_cache.get_base_page_indices(0)):
                        address = int(pool.base_address) + slot * int(pool.slot_bytes)
                        if turn == 0:
                            data = np.random.default_rng(7 * number + ordinal).standard_normal(8 * 48).astype(np.float32).tobytes()
                            ctypes.memmove(address, data, len(data))
                        pages.append(ctypes.string_at(address, int(pool.slot_bytes)))
                    kv_cache.suspend()
            assert manager.get_statistics().transfers[0].blocks > 0
            for kv_cache in kv_caches:
                kv_cache.close()
        found.append(pages)
    assert found[0] == found[1] and len(set(found[0])) > 9, "some pages have changed: they were packed"
    host.close()


def test_one_codec_serves_devices_that_come_and_go() -> None:
    if import_fake("kernels_on_host").COMPILER is None:
        pytest.skip("no C++ compiler to run the CUDA source on the processor")
    codec = Float8Codec("bfloat16", RUN)
    data = [all_kinds_of_bits("bfloat16", 8 * RUN).reshape(2, -1)]
    found = []
    for seed in range(3):
        device, driver = make_cuda_device(seed)
        found.append(run_on(device, codec, page_of([["key"]], 4 * RUN * 2), data))
        device.close()
        require_clean(driver)
    assert found[0] == found[1] == found[2]


def test_codecs_without_kernels_are_refused_on_a_gpu(device: Device) -> None:
    with pytest.raises(ValueError, match="Int4Codec packs with numpy on the host"):
        Int4Codec("bfloat16").validate(device)


@pytest.mark.parametrize("capability", [75, 80, 90])
def test_the_source_compiles(capability: int) -> None:
    try:
        module = load_nvrtc_module()
        module.nvrtcVersion()
    except (CudaError, RuntimeError) as error:
        pytest.skip(f"no NVRTC: {error}")
    assert len(CudaCompiler(module, capability).compile(CUDA_SOURCE, ())) > 1000
