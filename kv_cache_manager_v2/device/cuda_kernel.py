"""CUDA kernels compiled at run time, from source text.

NVRTC, the compiler, comes with the package ``nvidia-cuda-nvrtc`` and is imported when the first kernel is compiled. It makes
machine code for the very GPU; if it does not know the GPU, it makes PTX for the highest compute capability that both
have, which the driver translates. Compile errors contain the compiler's log.
"""

import ctypes
import importlib
from collections.abc import Sequence
from typing import Any, Final, final


from ..base.errors import CudaError, KVCacheManagerError, LogicError
from ..base.handle import Handle
from .cuda_context import CudaContext
from .cuda_driver import CudaDriver, name_stream

_NVRTC_MODULE: Final = "cuda.bindings.nvrtc"


def load_nvrtc_module() -> Any:
    """`cuda.bindings.nvrtc`; `CudaError` if it is not installed."""
    try:
        return importlib.import_module(_NVRTC_MODULE)
    except ImportError as error:
        raise CudaError(f"cannot import {_NVRTC_MODULE}: {error}; pip install cuda-python nvidia-cuda-nvrtc") from error


@final
class CudaCompiler:
    """NVRTC for GPUs of one compute capability (``90`` is 9.0)."""

    __slots__ = ("_module", "_capability")

    def __init__(self, module: Any, capability: int) -> None:
        self._module: Final = module
        self._capability: Final = capability

    def compile(self, source: str, options: Sequence[str]) -> bytes:
        """A cubin, or PTX, of the source; `CudaError` with the compiler's log if it does not compile."""
        target = self._choose_target()
        is_known = target == self._capability
        architecture = f"sm_{target}" if is_known else f"compute_{target}"
        arguments = [option.encode() for option in (f"--gpu-architecture={architecture}", *options)]
        program = self._call("nvrtcCreateProgram", source.encode(), b"kernel.cu", 0, [], [])
        try:
            status = self._module.nvrtcCompileProgram(program, len(arguments), arguments)[0]
            if int(status) != 0:
                raise CudaError(f"nvrtcCompileProgram failed: {self._text_of(status)}\n{self._log(program)}")
            return self._read(program, "nvrtcGetCUBIN" if is_known else "nvrtcGetPTX")
        finally:
            self._call("nvrtcDestroyProgram", program)

    def _choose_target(self) -> int:
        """The highest compute capability that both the compiler and the GPU have: a GPU runs no PTX of a higher one."""
        known = [int(target) for target in self._call("nvrtcGetSupportedArchs")]
        suitable = [target for target in known if target <= self._capability]
        if not suitable:
            raise CudaError(
                f"NVRTC compiles for the compute capabilities {known} (90 is 9.0), and this GPU has {self._capability};"
                " install a version of nvidia-cuda-nvrtc that knows this GPU"
            )
        return max(suitable)

    def _log(self, program: Any) -> str:
        return self._read(program, "nvrtcGetProgramLog").rstrip(b"\0").decode("utf-8", "replace")

    def _read(self, program: Any, name: str) -> bytes:
        num_bytes: int = self._call(f"{name}Size", program)
        # The compiler writes into this object; a bytes object of length 0 or 1 would be shared with others.
        buffer = bytes(num_bytes + 2)
        self._call(name, program, buffer)
        return buffer[:num_bytes]

    def _call(self, name: str, *args: Any) -> Any:
        try:
            returned = getattr(self._module, name)(*args)
        except RuntimeError as error:
            raise CudaError(f"{name} could not be called: {error}; pip install nvidia-cuda-nvrtc") from error
        if int(returned[0]) != 0:
            raise CudaError(f"{name} failed: {self._text_of(returned[0])}")
        return returned[1] if len(returned) > 1 else None

    def _text_of(self, status: Any) -> str:
        text: bytes = self._module.nvrtcGetErrorString(status)[1]
        return f"error {int(status)}, {text.decode('utf-8', 'replace')}"


@final
class CudaKernel(Handle):
    """A function that `CudaDevice.compile` loaded. `close` unloads it, the device's `close` at the latest."""

    __slots__ = ("name", "_driver", "_context", "_module", "_function", "_is_closed")

    def __init__(self, driver: CudaDriver, context: CudaContext, image: bytes, name: str) -> None:
        with context:
            module = driver.call("cuModuleLoadData", image)
            try:
                function = driver.call("cuModuleGetFunction", module, name.encode())
            except KVCacheManagerError:
                driver.call("cuModuleUnload", module)
                raise
        self.name: Final = name
        self._driver: Final = driver
        self._context: Final = context
        self._module: Final[Any] = module
        self._function: Final[Any] = function
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def launch(
        self, stream: int, grid: tuple[int, int, int], block: tuple[int, int, int], args: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        """Enqueue ``grid`` x ``block`` threads. Each of ``args`` is a ctypes value of the parameter's type, as in
        ``ctypes.c_uint64(address)``; their values are read before this returns.
        """
        if self._is_closed:
            raise LogicError(f"the kernel {self.name} is closed; compile it again")
        # The driver takes an array with the address of each value.
        addresses: Any = (ctypes.c_void_p * max(1, len(args)))(*[ctypes.addressof(arg) for arg in args])
        with self._context:
            self._driver.call(
                "cuLaunchKernel",
                self._function,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                shared_bytes,
                name_stream(stream),
                ctypes.addressof(addresses),
                0,
            )
        # Compiled code drops a local after its last use: without this call the array is freed before the driver reads it.
        _keep_alive(addresses)

    def close(self) -> None:
        """Unload the kernel. Idempotent; no launch of it may be running; if it raises, it may be called again."""
        if self._is_closed:
            return
        with self._context:
            self._driver.call("cuModuleUnload", self._module)
        self._is_closed = True


def _keep_alive(value: object) -> None:
    """Does nothing: a use that keeps the caller's reference alive until here."""
