"""One launch converts a batch for all layers, to what the host's converter says; NVRTC compiles the source where it
is there."""

import ctypes
import random

import numpy as np
import pytest
from unit.kernels.emulated_device import COMPILER, EmulatedCudaDevice, EmulatedKernel, compile_source
from unit.kernels.random_batches import check_output, check_random_steps, random_model

from kv_cache_manager_v2 import DensePages, DevicePageIndices, HostDevice, KVCacheManager, LogicError, PageIndexMode
from kv_cache_manager_v2.base.errors import CudaError
from kv_cache_manager_v2.device.cuda_kernel import CudaCompiler, load_nvrtc_module
from kv_cache_manager_v2.kernels.device_page_indices import CUDA_SOURCE


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


class LateDevice(EmulatedCudaDevice):
    """Streams are queues that run when the host waits for them, or a kernel on them runs. Refuses the ``nth`` call of ``refused``."""

    def __init__(self, library, refused, nth):
        super().__init__(library)
        self.kernel = LateKernel(self, library)
        self.refused = refused
        self.nth = nth
        self.queues = {}
        self.streams_of_events = {}

    def refuse(self, call):
        if call == self.refused:
            self.nth -= 1
            if self.nth == 0:
                raise CudaError(f"{call} was refused")

    def copy_batch(self, stream, batch):
        self.refuse("copy_batch")
        self.queues.setdefault(stream, []).append(batch)

    def run(self, stream):
        for batch in self.queues.pop(stream, []):
            self.inner.copy_batch(self.inner.default_stream(), batch)

    def record_event(self, stream):
        if self.queues.get(stream):  # of the update under test, not of the manager
            self.refuse("record_event")
        event = self.inner.record_event(self.inner.default_stream())
        self.streams_of_events[event] = stream
        return event

    def synchronize_event(self, event):
        self.run(self.streams_of_events[event])

    def synchronize_stream(self, stream):
        self.run(stream)


class LateKernel(EmulatedKernel):
    def __init__(self, device, library):
        super().__init__(library)
        self.device = device

    def launch(self, stream, grid, block, arguments):
        self.device.refuse("launch")
        queued = list(self.device.queues.get(stream, []))
        self.device.run(stream)
        super().launch(stream, grid, block, arguments)
        # The emulated GPU is done with it, the host does not know yet.
        self.device.queues[stream] = queued


@pytest.mark.parametrize("refused", ["copy_batch", "launch", "record_event"])
def test_an_update_that_fails_half_way_leaves_no_copy_behind(library, refused):
    """Its staging memory is written again two updates later: by then no copy may read it, on whichever stream it was."""
    device = LateDevice(library, refused, 1)
    with KVCacheManager(random_model(random.Random(2), False), device=device) as manager:
        outputs = [DensePages(layer, role, PageIndexMode.PER_LAYER) for layer, role in manager.all_buffer_ids]
        indices = DevicePageIndices(manager, outputs, 5, 80)
        first, second = device.create_stream(), device.create_stream()
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(17, 0)
            with pytest.raises(CudaError):
                indices.update([kv_cache], first)
            assert device.nth == 0, "the call was refused"
            for _ in range(3):
                indices.update([kv_cache], second)
                assert not device.queues.get(first), "a copy of the failed update still reads the staging memory"
            for number, output in enumerate(outputs):
                check_output(manager, output, [kv_cache], indices.address_of(number), -1, read_words)
        device.synchronize_stream(second)
        indices.close()
    device.close()


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_source_compiles(capability):
    try:
        module = load_nvrtc_module()
        module.nvrtcVersion()
    except (CudaError, RuntimeError) as error:
        pytest.skip(f"no NVRTC: {error}")
    assert len(CudaCompiler(module, capability).compile(CUDA_SOURCE, [])) > 100
