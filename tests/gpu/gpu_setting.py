"""Where the cases of `make gpu` run: on the card of this machine, or over one of the fake drivers, which shows that the cases run at all.

`Card` names the machine whose figures may be written down. It is made by `find_card` alone, which finds none where the driver is a
fake one.
"""

import ctypes
import datetime
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kv_cache_manager_v2.base.errors import CudaError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.cuda_device import CudaDevice
from kv_cache_manager_v2.device.cuda_driver import find_cuda_obstacle, load_driver_module
from kv_cache_manager_v2.device.cuda_kernel import load_nvrtc_module
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.port import CopyBatch

GPU, HOST, DISK = CacheTier.GPU_MEM, CacheTier.HOST_MEM, CacheTier.DISK
MIB: Final = 1 << 20
_SIGNS_OF_A_CARD: Final = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
_FAKES: Final = Path(__file__).parents[1] / "unit" / "device"


class Skipped(Exception):
    """Says what the case needs and does not find."""


@dataclass(frozen=True)
class Card:
    name: str
    driver_version: str
    date: str


def is_fake_library() -> bool:
    """Whether libcuda is the one in host memory: it says how many things are alive."""
    try:
        return hasattr(ctypes.CDLL("libcuda.so.1"), "fake_num_live")
    except OSError:
        return False


def find_card() -> Card | None:
    """The GPU that a `CudaDevice` would take; None without one, and over any fake driver."""
    if find_cuda_obstacle() or is_fake_library() or not any(Path(sign).exists() for sign in _SIGNS_OF_A_CARD):
        return None
    driver = load_driver_module()
    version = int(driver.cuDriverGetVersion()[1])
    device = CudaDevice()
    name = device.name.split(" ", 1)[1]
    device.close()
    text = f"CUDA {version // 1000}.{version % 1000 // 10}"
    module = Path(_SIGNS_OF_A_CARD[0])
    if module.exists():
        words = module.read_text().split()
        numbers = [word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit()]
        text += f", driver {numbers[0]}" if numbers else ""
    return Card(name, text, datetime.date.today().isoformat())


def import_fake(module: str) -> Any:
    """The fakes live with the tests of `CudaDevice`, which are no package that this one could name."""
    name = "device_tests"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, _FAKES / "__init__.py", submodule_search_locations=[str(_FAKES)])
        assert spec is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{name}.{module}")


class Setting:
    """``seed``: of the fake driver in Python; None: whatever driver cuda-python finds, which may be the one in host memory."""

    def __init__(self, folder: Path, seed: int | None = None, **driver_arguments: Any) -> None:
        self.folder = folder
        self.is_python_fake = seed is not None
        self.is_fake = seed is not None or is_fake_library()
        self._files: Any = None
        self._nvrtc: Any = None
        if seed is None:
            self.driver: Any = load_driver_module()
            return
        kernels = import_fake("kernels_on_host")
        runner = None if kernels.COMPILER is None else kernels.KernelsOnHost()
        self.driver = import_fake("async_cuda_driver").AsyncCudaDriver(seed, kernels=runner, **driver_arguments)
        self._nvrtc = import_fake("fake_nvrtc").FakeNvrtc()
        self._files = import_fake("fake_files").FakeFiles()

    def pick(self, on_a_card: int, over_a_fake: int) -> int:
        """A size."""
        return over_a_fake if self.is_fake else on_a_card

    def make_device(self, **arguments: Any) -> CudaDevice:
        return CudaDevice(
            driver=self.driver if self.is_python_fake else None, nvrtc=self._nvrtc, files=self._files, **arguments
        )

    def require_kernels(self) -> None:
        if self.is_python_fake:
            if import_fake("kernels_on_host").COMPILER is None:
                raise Skipped("no C++ compiler to run kernels on the processor")
            return
        if self.is_fake:
            raise Skipped("the driver in host memory runs no kernels")
        try:
            load_nvrtc_module().nvrtcVersion()
        except (CudaError, RuntimeError) as error:
            raise Skipped(f"no NVRTC: {error}") from error

    def call(self, name: str, *arguments: Any) -> Any:
        """Of the driver, which must succeed; its result."""
        returned = getattr(self.driver, name)(*arguments)
        assert int(returned[0]) == 0, f"{name}: {returned[0]}"
        return returned[1] if len(returned) > 1 else None

    def push_context(self) -> None:
        """The primary context, as an engine has it. `pop_context` gives it back."""
        self.call("cuInit", 0)
        self.call("cuCtxPushCurrent", self.call("cuDevicePrimaryCtxRetain", self.call("cuDeviceGet", 0)))

    def pop_context(self) -> None:
        self.call("cuCtxPopCurrent")
        self.call("cuDevicePrimaryCtxRelease", self.call("cuDeviceGet", 0))


class Tiers:
    """A device with so many bytes of each tier. A context manager."""

    def __init__(self, setting: Setting, num_bytes: int, **arguments: Any) -> None:
        self.num_bytes = num_bytes
        self.device = setting.make_device(**arguments)
        self.ranges = {
            tier: MemoryRange(self.device, tier, num_bytes, str(setting.folder) if tier == DISK else None)
            for tier in (GPU, HOST, DISK)
        }
        for memory in self.ranges.values():
            memory.resize(num_bytes)
        self.stream = self.device.create_stream()

    def __enter__(self) -> "Tiers":
        return self

    def __exit__(self, *_: object) -> None:
        self.device.synchronize_stream(self.stream)
        for memory in self.ranges.values():
            memory.close()
        self.device.close()

    def address(self, tier: CacheTier) -> int:
        return self.ranges[tier].address

    def copy(self, dst: CacheTier, src: CacheTier, size: int, *, turned: bool = False, count: int = 0) -> None:
        """All of the tier in pieces of ``size``, or the first ``count``; ``turned``: the first one goes to where the last one is."""
        count = count or self.num_bytes // size
        batch = CopyBatch(dst, src, size)
        for index in range(count):
            place = count - 1 - index if turned else index
            batch.add(self.address(dst) + place * size, self.address(src) + index * size)
        self.device.copy_batch(self.stream, batch)

    def fill_host(self, first: int, size: int) -> None:
        """Each piece with a value of its own."""
        for index in range(self.num_bytes // size):
            ctypes.memset(self.address(HOST) + index * size, (first + index) % 251, size)

    def host_bytes(self, size: int) -> list[int]:
        """The value of each piece, all of whose bytes have it."""
        values = []
        for index in range(self.num_bytes // size):
            data = ctypes.string_at(self.address(HOST) + index * size, size)
            assert data == data[:1] * size, f"piece {index} is torn"
            values.append(data[0])
        return values

    def synchronize(self) -> None:
        self.device.synchronize_stream(self.stream)
