"""A device that looks like a GPU to the engine: CUDA source compiled for the processor, in the host's memory.

One thread after the other runs, a warp is one thread. Work is done at once, but no event is done before somebody waits.
"""

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
#define __device__
#define __forceinline__ inline
#define LANES 1
static unsigned __ballot_sync(unsigned, bool predicate) { return predicate ? 1 : 0; }
static int __ffs(unsigned value) { return __builtin_ffs((int)value); }
static unsigned long long atomicAdd(unsigned long long* to, unsigned long long n) {
    const unsigned long long old = *to; *to += n; return old;
}
"""

RUNNER = """
#define FOR_ALL_THREADS(call) \\
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) \\
        for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) call
#define COMMON (u64)a[0], (i64)a[1], (i64)a[2], (const i64*)a[3], (const i64*)a[4], (const u64*)a[5], (u64)a[6], \\
               (i64)a[7], (i64)a[8]
extern "C" void run_write_tokens(unsigned grid, unsigned block, const u64* a) {
    blockDim.x = block;
    FOR_ALL_THREADS(write_tokens(COMMON));
}
extern "C" void run_check_tokens(unsigned grid, unsigned block, const u64* a) {
    blockDim.x = block;
    FOR_ALL_THREADS(check_tokens(COMMON, (u64*)a[9], (u64)a[10], (u64)a[11]));
}
"""

NUM_ARGUMENTS = {"write_tokens": 9, "check_tokens": 12}


def compile_source(source, folder):
    """The library with both kernels."""
    path = folder / "kernels.cpp"
    path.write_text(PRELUDE + source + RUNNER)
    library = folder / "kernels.so"
    subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", "-o", str(library), str(path)], check=True)
    return ctypes.CDLL(str(library))


class EmulatedKernel:
    def __init__(self, library, name):
        self.function = getattr(library, "run_" + name)
        self.num_arguments = NUM_ARGUMENTS[name]

    def launch(self, stream, grid, block, arguments):
        assert grid[0] > 0 and grid[1:] == (1, 1) and block[1:] == (1, 1)
        assert len(arguments) == self.num_arguments
        assert all(type(argument) is ctypes.c_uint64 for argument in arguments)
        self.function(grid[0], block[0], (ctypes.c_uint64 * len(arguments))(*arguments))

    def close(self):
        pass


class EmulatedCudaDevice(Device):
    """A `HostDevice` with `compile`."""

    def __init__(self, library):
        self.inner = HostDevice(4096)
        self.library = library
        self.done = set()
        self.open = set()
        self.num_reserved = 0

    def compile(self, source, name):
        return EmulatedKernel(self.library, name)

    name = property(lambda self: "emulated CUDA")
    is_software = property(lambda self: False)

    def granularity_bytes(self, tier):
        return self.inner.granularity_bytes(tier)

    def total_bytes(self, tier):
        return self.inner.total_bytes(tier)

    def reserve_range(self, tier, num_bytes):
        self.num_reserved += 1
        return self.inner.reserve_range(tier, num_bytes)

    def release_range(self, tier, address, num_bytes):
        self.inner.release_range(tier, address, num_bytes)

    def map_memory(self, tier, address, num_bytes):
        self.inner.map_memory(tier, address, num_bytes)

    def unmap_memory(self, tier, address, num_bytes):
        self.inner.unmap_memory(tier, address, num_bytes)

    def default_stream(self):
        return self.inner.default_stream()

    def create_stream(self):
        return self.inner.create_stream()

    def destroy_stream(self, stream):
        self.inner.destroy_stream(stream)

    def synchronize_stream(self, stream):
        self.done |= self.open

    def record_event(self, stream):
        event = self.inner.record_event(stream)
        self.open.add(event)
        self.done.discard(event)
        return event

    def wait_event(self, stream, event):
        self.inner.wait_event(stream, event)

    def is_event_done(self, event):
        return event in self.done

    def synchronize_event(self, event):
        self.done.add(event)

    def release_event(self, event):
        self.open.remove(event)
        self.inner.release_event(event)

    def copy_batch(self, stream, batch):
        self.inner.copy_batch(stream, batch)

    def fill(self, stream, address, num_bytes, value):
        self.inner.fill(stream, address, num_bytes, value)

    def launch(self, stream, kernel):
        raise AssertionError("a device that is not software takes no HostKernel")

    def close(self):
        self.inner.close()
