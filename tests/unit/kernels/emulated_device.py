"""A device that looks like a GPU: CUDA source compiled for the processor, pools in the host's memory. Work is done at
once."""

import ctypes
import shutil
import subprocess

from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.device.port import Device

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")

PRELUDE = """
struct Dim { unsigned x; };
static Dim threadIdx, blockIdx, blockDim;
#define __global__
"""

RUNNER = """
extern "C" void run(unsigned grid, unsigned block, const u64* a) {
    blockDim.x = block;
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x)
            convert_page_indices((const int*)a[0], (const i64*)a[1], (const i64*)a[2], (const i64*)a[3], (const
            i64*)a[4],
                                 (int*)a[5], (i64)a[6], (i64)a[7], (i64)a[8]);
}
"""


def compile_source(source, folder):
    path = folder / "kernels.cpp"
    path.write_text(PRELUDE + source + RUNNER)
    library = folder / "kernels.so"
    subprocess.run(
        [COMPILER, "-O1", "-fsanitize=undefined", "-shared", "-fPIC", "-o", str(library), str(path)], check=True
    )
    return ctypes.CDLL(str(library))


class EmulatedKernel:
    def __init__(self, library):
        self.library = library
        self.num_launches = 0

    def launch(self, stream, grid, block, arguments):
        assert grid[0] > 0 and grid[1:] == (1, 1) and block[1:] == (1, 1) and len(arguments) == 9
        assert all(type(argument) is ctypes.c_uint64 for argument in arguments)
        self.library.run(grid[0], block[0], (ctypes.c_uint64 * len(arguments))(*arguments))
        self.num_launches += 1

    def close(self):
        pass


class EmulatedCudaDevice(Device):
    """A `HostDevice` that is none, with `compile`."""

    def __init__(self, library):
        self.inner = HostDevice(4096)
        self.kernel = EmulatedKernel(library)

    def compile(self, source, name):
        return self.kernel

    name = property(lambda self: "emulated CUDA")
    is_software = property(lambda self: False)

    def launch(self, stream, kernel):
        raise AssertionError("a device that is not software takes no HostKernel")


def forward(name):
    return lambda self, *arguments: getattr(self.inner, name)(*arguments)


for method in (
    "granularity_bytes total_bytes reserve_range release_range map_memory unmap_memory default_stream create_stream "
    "destroy_stream synchronize_stream record_event wait_event is_event_done synchronize_event release_event "
    "copy_batch fill close"
).split():
    setattr(EmulatedCudaDevice, method, forward(method))
EmulatedCudaDevice.__abstractmethods__ = frozenset()
