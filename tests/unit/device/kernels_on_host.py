"""Kernels of CUDA source, run on the processor: one thread of the grid after the other, a warp is one thread.

`KernelsOnHost` gets what the fake compiler made of the source (`FakeNvrtc`: the source itself), compiles it with the machine's C++
compiler, once for each source, and calls it with the parameters that a launch named.
"""

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from .fake_cuda_types import require

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
_DECLARATION = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(\w+)\s*\(([^)]*)\)')

PRELUDE = """
struct Dim { unsigned x, y, z; };
static Dim threadIdx, blockIdx, blockDim, gridDim;
#define __global__
#define __device__
#define __forceinline__ inline
#define LANES 1
static inline float __shfl_xor_sync(unsigned, float value, int) { return value; }
static inline unsigned __ballot_sync(unsigned, bool predicate) { return predicate ? 1 : 0; }
static inline int __ffs(unsigned value) { return __builtin_ffs((int)value); }
static inline unsigned long long atomicAdd(unsigned long long* to, unsigned long long n) {
    const unsigned long long old = *to; *to += n; return old;
}
static inline long long clock64() { static long long now; return now += 1000000; }
"""

RUNNER = """
extern "C" void run_{name}(const unsigned* grid, const unsigned* block, void** p) {{
    gridDim = Dim{{grid[0], grid[1], grid[2]}};
    blockDim = Dim{{block[0], block[1], block[2]}};
    for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < block[0]; ++threadIdx.x) {name}({arguments});
}}
extern "C" void sizes_{name}(unsigned* sizes) {{ {sizes} }}
"""


class KernelsOnHost:
    """One for many drivers: it keeps what it has compiled. Needs a C++ compiler (`COMPILER` is not None)."""

    def __init__(self) -> None:
        self._libraries: dict[bytes, ctypes.CDLL] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="kernels-on-host-")

    def prepare(
        self, image: bytes, name: str, grid: Sequence[int], block: Sequence[int], parameters: int
    ) -> tuple[Callable[[], bool], list[int]]:
        """What runs the kernel with the values that the parameters have now, and those values that may be addresses."""
        library = self._library(image)
        require(hasattr(library, f"run_{name}"), f"there is no kernel {name} in the module")
        require(tuple(grid[1:]) == (1, 1) and tuple(block[1:]) == (1, 1), "this fake runs grids of one dimension")
        sizes = (ctypes.c_uint * 64)()
        getattr(library, f"sizes_{name}")(sizes)
        count = list(sizes).index(0)
        sources = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))
        values = [
            ctypes.create_string_buffer(ctypes.string_at(sources[index] or 0, sizes[index]), max(8, sizes[index])) for index in range(count)
        ]
        pointers = (ctypes.c_void_p * max(1, count))(*[ctypes.addressof(value) for value in values])
        grid_words, block_words = (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block)
        run = getattr(library, f"run_{name}")

        def call() -> bool:
            assert len(values) == count  # alive until the kernel has run
            run(grid_words, block_words, pointers)
            return True

        words = [value.raw[begin : begin + 8] for value, size in zip(values, sizes) for begin in range(0, size - 7, 8)]
        return call, [int.from_bytes(word, "little") for word in words]

    def _library(self, image: bytes) -> ctypes.CDLL:
        if image not in self._libraries:
            source = image.split(b":", 1)[1].decode()
            runners = ""
            for name, parameters in _DECLARATION.findall(source):
                types = [re.sub(r"\w+\s*$", "", parameter).strip() for parameter in parameters.split(",") if parameter.strip()]
                arguments = ", ".join(f"*({kind}*)p[{index}]" for index, kind in enumerate(types))
                sizes = " ".join(f"sizes[{index}] = sizeof({kind});" for index, kind in enumerate(types))
                runners += RUNNER.format(name=name, arguments=arguments, sizes=f"{sizes} sizes[{len(types)}] = 0;")
            path = Path(self._folder.name) / f"kernels{len(self._libraries)}.cpp"
            path.write_text(PRELUDE + source + runners)
            library = path.with_suffix(".so")
            subprocess.run([str(COMPILER), "-O1", "-shared", "-fPIC", "-o", str(library), str(path)], check=True, timeout=120)
            self._libraries[image] = ctypes.CDLL(str(library))
        return self._libraries[image]
