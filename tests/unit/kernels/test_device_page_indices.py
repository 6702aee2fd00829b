"""One launch converts a batch for all layers, to what the host's converter says; NVRTC compiles the source where it
is there."""

import ctypes
import random

import numpy as np
import pytest
from unit.kernels.emulated_device import COMPILER, EmulatedCudaDevice, compile_source
from unit.kernels.random_batches import check_random_steps, random_model

from kv_cache_manager_v2 import DensePages, DevicePageIndices, HostDevice, KVCacheManager, LogicError, PageIndexMode
from kv_cache_manager_v2.base.errors import CudaError
from kv_cache_manager_v2.device.cuda_kernel import CudaCompiler, load_nvrtc_module
from kv_cache_manager_v2.kernels.page_index_kernel import CUDA_SOURCE


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no C++ compiler to run the CUDA source on the processor")
    return compile_source(CUDA_SOURCE, tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def device(library):
    device = EmulatedCudaDevice(library)
    yield device
    device.close()  # says so if memory was left behind


def read_words(address, count):
    return np.frombuffer((ctypes.c_int32 * count).from_address(address), np.int32)


@pytest.mark.parametrize("seed", range(12))
def test_the_kernel_equals_the_host(device, seed):
    check_random_steps(device, seed, read_words)
    assert device.kernel.num_launches == 5, "one launch per step, however many layers"


def test_misuse(device):
    with KVCacheManager(random_model(random.Random(2), True), device=device) as manager:
        shared = DevicePageIndices(manager, [DensePages(layer, "key") for layer in manager.layer_ids], 1, 4)
        with pytest.raises(ValueError):
            DevicePageIndices(manager, [], 1, 4)
        with manager.create_kv_cache() as kv_cache, manager.create_kv_cache() as other:
            with pytest.raises(LogicError):
                shared.update([kv_cache], 0)
            assert kv_cache.resume() and other.resume()
            with pytest.raises(ValueError):
                shared.update([kv_cache, other], 0)
            assert kv_cache.resize(17, 0)
            with pytest.raises(ValueError):
                shared.update([kv_cache], 0)
        shared.close()
        with pytest.raises(LogicError):
            shared.update([], 0)
    with KVCacheManager(random_model(random.Random(2), True), device=HostDevice()) as manager:
        with pytest.raises(LogicError):
            DevicePageIndices(manager, [DensePages(0, "key", PageIndexMode.PER_LAYER)], 1, 4)


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_source_compiles(capability):
    try:
        module = load_nvrtc_module()
        module.nvrtcVersion()
    except (CudaError, RuntimeError) as error:
        pytest.skip(f"no NVRTC: {error}")
    assert len(CudaCompiler(module, capability).compile(CUDA_SOURCE, [])) > 100
