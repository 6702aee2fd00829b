"""`CudaDevice` through the real cuda-python, over a driver in host memory: the whole contract suite, bytes included.

The strict fake driver in Python checks what `CudaDevice` asks for; this checks that cuda-python takes it. The driver,
``libcuda_in_host_memory.c``, is compiled here and found by cuda-python in a process of its own.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CONTRACT = HERE.parent.parent / "contract"

LIVES_AND_DIES = """
import sys
sys.path[:] = {path!r}
import ctypes
import mmap
import os
from kv_cache_manager_v2.base.errors import CudaError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.cuda_device import CudaDevice
from kv_cache_manager_v2.device.memory_range import MemoryRange

library = ctypes.CDLL("libcuda.so.1")
assert library.fake_num_live() == 0

class Nvrtc:
    def __getattr__(self, name):
        def function(*args):
            if name == "nvrtcGetSupportedArchs":
                return (0, [90])
            if name.endswith("Size"):
                return (0, 4)
            return (0, None) if name == "nvrtcCreateProgram" else (0,)
        return function

device = CudaDevice(nvrtc=Nvrtc())
memory = MemoryRange(device, CacheTier.GPU_MEM, 1 << 30)
memory.resize(4 << 20)
stream = device.create_stream()
device.fill(stream, memory.address, 4 << 20, 0)
kernel = device.compile("", "store")
word = memory.address + 64
for value, target in ((0xCAFE, stream), (0xBEEF, device.default_stream())):
    kernel.launch(target, (1, 1, 1), (32, 1, 1), [ctypes.c_uint64(word), ctypes.c_uint32(value)])
    device.synchronize_stream(target)
    assert ctypes.string_at(word, 4) == value.to_bytes(4, "little")
try:
    device.compile("", "missing")
except CudaError as error:
    assert "cuModuleGetFunction" in str(error) and "500" in str(error)
else:
    raise AssertionError("a function that is not there")
# Another process would map the file descriptors; here the same one does.
sharing = CudaDevice(exportable_as="file_descriptor")
shared = MemoryRange(sharing, CacheTier.GPU_MEM, 256 << 20)
shared.resize(256 << 20)
sharing.fill(stream, shared.address, 256 << 20, 7)
chunks = sharing.export_memory(shared.address, 256 << 20)
assert [size for _, size, _ in chunks] == [8 << 20] * 32
for _, size, descriptor in chunks:
    with mmap.mmap(descriptor, size) as view:
        assert view[:] == bytes([7]) * size
        view[:3] = b"new"
    os.close(descriptor)
assert ctypes.string_at(chunks[31][0], 4) == b"new" + bytes([7])
shared.resize(100 << 20)
shared.resize(200 << 20)
sharing.fill(stream, shared.address, 200 << 20, 8)
shared.close()
sharing.close()
host = MemoryRange(device, CacheTier.HOST_MEM, 64 << 20)
host.resize(10 << 20)
host.resize(5 << 20)
assert library.fake_num_live() > 0
host.close()
memory.close()
device.close()
assert library.fake_num_live() == 0, library.fake_num_live()
print("fine")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """In which cuda-python finds our driver, and Python the package under test."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        pytest.skip("cuda-python is not installed")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no C compiler, or no Linux: the driver in host memory cannot be built")
    folder = tmp_path_factory.mktemp("libcuda")
    source = HERE / "libcuda_in_host_memory.c"
    command = [compiler, "-O1", "-Wall", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(source)]
    subprocess.run(command, check=True, timeout=60)
    paths = [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(path for path in paths if path),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


def test_everything_that_the_device_made_goes_back(environment: dict[str, str]) -> None:
    program = LIVES_AND_DIES.format(path=sys.path)
    command = [sys.executable, "-P", "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "fine", result.stderr


@pytest.mark.parametrize(("driver_version", "words"), [(12080, "1"), (12080, "0"), (13000, "1")])
def test_the_contract_suite(environment: dict[str, str], driver_version: int, words: str) -> None:
    """A driver of 12.8 has batches of copies in a form that cuda-python 13 cannot call; one of 13.0 has its form. Where streams cannot
    wait for words, the call that copies from or to a disk waits.
    """
    only_cuda = ["-k", "[cuda and not fake"]
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *only_cuda, str(CONTRACT)]
    environment = {**environment, "FAKE_CUDA_VERSION": str(driver_version), "FAKE_CUDA_WORDS": words}
    result = subprocess.run(command, env=environment, cwd=CONTRACT.parent, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout and "no CUDA" not in result.stdout
