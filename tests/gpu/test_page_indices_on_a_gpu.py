"""Page indices converted by one launch, and pools seen by torch and CuPy, on a GPU. Skipped where there is none."""

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
from small_models import config_of, run_prompt
from unit.kernels.random_batches import check_random_steps

from kv_cache_manager_v2 import CopyBatch, DebugFill, KVCacheManager
from kv_cache_manager_v2.base.errors import CudaError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.cuda_device import CudaDevice
from kv_cache_manager_v2.device.cuda_driver import find_cuda_obstacle
from kv_cache_manager_v2.device.cuda_kernel import load_nvrtc_module
from kv_cache_manager_v2.device.memory_range import MemoryRange

_OBSTACLE = find_cuda_obstacle()
pytestmark = pytest.mark.skipif(_OBSTACLE != "", reason=f"no CUDA: {_OBSTACLE}")


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    device = CudaDevice()
    yield device
    device.close()


class Reader:
    """Bytes of the GPU, through pinned memory."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self.host = MemoryRange(device, CacheTier.HOST_MEM, 4 << 20)
        self.host.resize(4 << 20)

    def read(self, address: int, num_bytes: int) -> bytes:
        stream = self.device.default_stream()
        batch = CopyBatch(CacheTier.HOST_MEM, CacheTier.GPU_MEM, num_bytes)
        batch.add(self.host.address, address)
        self.device.copy_batch(stream, batch)
        self.device.synchronize_stream(stream)
        return ctypes.string_at(self.host.address, num_bytes)


@pytest.fixture
def reader(device: CudaDevice) -> Iterator[Reader]:
    reader = Reader(device)
    yield reader
    reader.host.close()


@pytest.mark.parametrize("seed", range(6))
def test_the_kernel_equals_the_host(device: CudaDevice, reader: Reader, seed: int) -> None:
    try:
        load_nvrtc_module().nvrtcVersion()
    except (CudaError, RuntimeError) as error:
        pytest.skip(f"no NVRTC: {error}")
    check_random_steps(device, seed, lambda address, count: memoryview(reader.read(address, 4 * count)).cast("i"))


def test_pages_begin_as_zeros_and_null_slots_stay(device: CudaDevice, reader: Reader) -> None:
    with KVCacheManager(config_of(reserve_null_slot=True), device=device) as manager:
        with run_prompt(manager, list(range(200))):
            (group,) = manager.pool_group_descs
            (pool,) = group.pools
            assert reader.read(pool.base_address, group.num_slots * pool.slot_bytes) == bytes(
                group.num_slots * pool.slot_bytes
            )


def test_debug_fill(device: CudaDevice, reader: Reader) -> None:
    with KVCacheManager(config_of(), device=device, debug_fill=DebugFill.NAN) as manager:
        with run_prompt(manager, list(range(10))) as kv_cache:
            slot = kv_cache.get_base_page_indices(0)[1]
            (pool,) = manager.pool_group_descs[0].pools
            assert reader.read(pool.base_address + slot * pool.slot_bytes, pool.slot_bytes) == b"\xff" * pool.slot_bytes


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_pool_views(device: CudaDevice, reader: Reader, name: str) -> None:
    library: Any = pytest.importorskip(name, reason=f"{name} is not installed; it is a dependency of this test only")
    if name == "torch" and not library.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    with KVCacheManager(config_of(), device=device) as manager:
        view = manager.pool_view(0, "value", by_slot=True)
        assert view.__dlpack_device__() == (2, 0) and not hasattr(view, "__array_interface__")
        array = library.from_dlpack(view)
        array[3] = 7
        if name == "torch":
            library.cuda.synchronize()
            assert array.data_ptr() == view.address
        else:
            library.cuda.runtime.deviceSynchronize()
            assert library.asarray(view).data.ptr == array.data.ptr == view.address
        (pool,) = manager.pool_group_descs[0].pools
        assert reader.read(view.address + 3 * pool.slot_bytes, 32) == b"\7" * 32
        del array
        view.release()
