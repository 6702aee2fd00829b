"""Checked calls of the CUDA driver: each one either worked or raised.

A failed call is a `CudaError` with the call's name, the driver's number and the driver's own text; out of memory is an
`OutOfMemoryError` with the same. The driver module is imported on first use only: the library works, and imports fast,
without an NVIDIA driver and without cuda-python. The module is `cuda.bindings.driver` unless a test passes
its own.
"""

import importlib
from typing import Any, Final, final


from ..base.errors import CudaError, KVCacheManagerError, OutOfMemoryError
from ..base.package_log import PackageLog

_logger: Final = PackageLog(__name__)

SUCCESS: Final = 0
INVALID_VALUE: Final = 1
OUT_OF_MEMORY: Final = 2
NO_DEVICE: Final = 100
OPERATING_SYSTEM: Final = 304
NOT_FOUND: Final = 500
NOT_READY: Final = 600
NOT_SUPPORTED: Final = 801

LEGACY_DEFAULT_STREAM: Final = 1

_BROKEN_CONTEXT: Final = frozenset(
    (
        214,  # ECC_UNCORRECTABLE
        220,  # NVLINK_UNCORRECTABLE
        226,  # CONTAINED
        700,  # ILLEGAL_ADDRESS
        702,  # LAUNCH_TIMEOUT
        709,  # CONTEXT_IS_DESTROYED
        710,  # ASSERT
        714,  # HARDWARE_STACK_ERROR
        715,  # ILLEGAL_INSTRUCTION
        716,  # MISALIGNED_ADDRESS
        717,  # INVALID_ADDRESS_SPACE
        718,  # INVALID_PC
        719,  # LAUNCH_FAILED
        721,  # TENSOR_MEMORY_LEAK
        810,  # MPS_CLIENT_TERMINATED
    )
)
"""Errors of work that ran earlier, the manager's or the engine's: every later call returns the same until the process ends."""
NO_GPU_SEEN: Final = "the CUDA driver sees no GPU"

_DRIVER_MODULE: Final = "cuda.bindings.driver"


def load_driver_module() -> Any:
    """`cuda.bindings.driver`; `CudaError` if cuda-python is not installed."""
    try:
        return importlib.import_module(_DRIVER_MODULE)
    except ImportError as error:
        raise CudaError(f"cannot import {_DRIVER_MODULE}: {error}; pip install cuda-python, or use the host device") from error


def find_cuda_obstacle(driver_module: Any = None) -> str:
    """The reason why CUDA cannot be used in this process; an empty string if it can.

    Initialises the driver: children that this process forks afterwards cannot use it.
    """
    try:
        driver = CudaDriver(load_driver_module() if driver_module is None else driver_module)
        status = driver.status_of("cuInit", 0)
        if int(status) == NO_DEVICE:
            return NO_GPU_SEEN
        if int(status) != SUCCESS:
            raise driver.make_error("cuInit", status)
        num_devices: int = driver.call("cuDeviceGetCount")
    except KVCacheManagerError as error:
        return str(error)
    return NO_GPU_SEEN if num_devices == 0 else ""


def name_stream(stream: int) -> int:
    """The stream's handle in a form that is the same in every process.

    0 is CUDA's legacy default stream, unless ``CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM`` makes it the thread's own.
    """
    return LEGACY_DEFAULT_STREAM if stream == 0 else stream


@final
class CudaDriver:
    """The driver. ``call`` is for rare calls; those that a step makes often have methods of their own."""

    __slots__ = ("module", "_success", "_relaxed", "_exchange", "_record", "_wait", "_query")

    def __init__(self, module: Any) -> None:
        self.module: Final = module
        self._success: Final[Any] = module.CUresult.CUDA_SUCCESS
        self._relaxed: Final[Any] = module.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._exchange: Final[Any] = module.cuThreadExchangeStreamCaptureMode
        self._record: Final[Any] = module.cuEventRecord
        self._wait: Final[Any] = module.cuStreamWaitEvent
        self._query: Final[Any] = module.cuEventQuery

    def call(self, name: str, *args: Any) -> Any:
        """Call the driver's function ``name``; returns its first result besides the status, or None."""
        returned = self._ask(name, *args)
        self._require(name, returned[0])
        return returned[1] if len(returned) > 1 else None

    def status_of(self, name: str, *args: Any) -> Any:
        """Call the driver's function ``name`` and return its status, for callers that handle failure."""
        return self._ask(name, *args)[0]

    def device_attribute(self, name: str, device: Any) -> int:
        """The device's attribute; 0 if the driver or cuda-python is too old to know it: then the GPU has no such feature."""
        attribute = getattr(self.module.CUdevice_attribute, name, None)
        return 0 if attribute is None else self._find("cuDeviceGetAttribute", INVALID_VALUE, attribute, device)

    def find_function(self, name: str, version: int) -> int:
        """The address of the driver's function, with that CUDA version's signature; 0 if the driver has none."""
        return self._find("cuGetProcAddress", NOT_FOUND, name.encode(), version, 0)

    def _find(self, name: str, absent: int, *args: Any) -> int:
        """The number that the driver's function ``name`` gives; 0 where its status is ``absent``."""
        returned = self._ask(name, *args)
        if int(returned[0]) == absent:
            return 0
        self._require(name, returned[0])
        return int(returned[1])

    def _ask(self, name: str, *args: Any) -> Any:
        """All that the driver's function ``name`` returns, the status first."""
        try:
            return getattr(self.module, name)(*args)
        except RuntimeError as error:
            # What cuda-python raises where there is no driver, or a driver without that function.
            raise CudaError(f"{name} could not be called: {error}") from error

    def _require(self, name: str, status: Any) -> None:
        if status is not self._success and int(status) != SUCCESS:
            raise self.make_error(name, status)

    def relax_captures(self) -> Any:
        """Let the calling thread make calls that a graph capture in progress, of its own or another thread's, would forbid, and
        which would end the capture. Returns the previous mode, for `restore_captures`.

        Nothing that this library enqueues belongs in an engine's graph. Recording events and waiting for them needs no permission.
        """
        returned = self._exchange(self._relaxed)
        # If a driver refuses, calls work as without relaxation.
        return returned[1] if int(returned[0]) == SUCCESS else self._relaxed

    def restore_captures(self, mode: Any) -> None:
        if mode is not self._relaxed:
            self._exchange(mode)

    def record_event(self, event: Any, stream: int) -> None:
        self._require("cuEventRecord", self._record(event, stream)[0])

    def wait_event(self, stream: int, event: Any) -> None:
        self._require("cuStreamWaitEvent", self._wait(stream, event, 0)[0])

    def is_event_done(self, event: Any) -> bool:
        mode = self.relax_captures()
        try:
            status = self._query(event)[0]
        finally:
            self.restore_captures(mode)
        if status is not self._success and int(status) == NOT_READY:
            return False
        self._require("cuEventQuery", status)
        return True

    def make_error(self, name: str, status: Any) -> KVCacheManagerError:
        """The exception for a call that returned ``status``."""
        number = int(status)
        message = f"{name} failed with error {number}"
        text = self._describe("cuGetErrorName", status)
        if text:
            message += f", {text}"
        text = self._describe("cuGetErrorString", status)
        if text:
            message += f": {text}"
        if number in _BROKEN_CONTEXT:
            message += "; the CUDA context is broken, perhaps by an earlier kernel or copy: restart the process"
        return OutOfMemoryError(message) if number == OUT_OF_MEMORY else CudaError(message)

    def make_error_of_number(self, name: str, number: int) -> KVCacheManagerError:
        """The exception for a function that was called by address and returned ``number``."""
        try:
            status = self.module.CUresult(number)
        except ValueError:
            # A driver newer than cuda-python has error numbers without a name in cuda-python.
            return CudaError(f"{name} failed with error {number}")
        return self.make_error(name, status)

    def _describe(self, name: str, status: Any) -> str:
        returned = getattr(self.module, name)(status)
        if int(returned[0]) != SUCCESS:
            return ""
        text: bytes = returned[1]
        return text.decode("utf-8", "replace")
