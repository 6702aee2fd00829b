"""The types of `cuda.bindings.driver` that `CudaDevice` uses, as strict as cuda-python: what is what is checked on
use.
"""

from enum import IntEnum
from typing import Any


class DriverMisuse(Exception):
    """A call that the real driver would crash on or leave undefined, or that cuda-python would not take."""


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_OPERATING_SYSTEM = 304
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_ILLEGAL_STATE = 401
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713
    CUDA_ERROR_LAUNCH_FAILED = 719
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905
    CUDA_ERROR_CAPTURED_EVENT = 907
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908
    CUDA_ERROR_UNKNOWN = 999


class Refused(Exception):
    """The driver returns this status, and has done nothing."""

    def __init__(self, status: CUresult) -> None:
        super().__init__(status.name)
        self.status = status


class CUstreamCaptureMode(IntEnum):
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1
    CU_STREAM_CAPTURE_MODE_RELAXED = 2


class CUstreamCaptureStatus(IntEnum):
    CU_STREAM_CAPTURE_STATUS_NONE = 0
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2


class CUmemAllocationType(IntEnum):
    CU_MEM_ALLOCATION_TYPE_PINNED = 1


class CUmemAllocationHandleType(IntEnum):
    CU_MEM_HANDLE_TYPE_NONE = 0
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1
    CU_MEM_HANDLE_TYPE_FABRIC = 8


class CUmemLocationType(IntEnum):
    CU_MEM_LOCATION_TYPE_DEVICE = 1


class CUmemAccess_flags(IntEnum):
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3


class CUmemAllocationGranularity_flags(IntEnum):
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0


class CUdevice_attribute(IntEnum):
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128


class _Handle:
    def __init__(self, value: int) -> None:
        if type(value) is not int:
            raise DriverMisuse(f"{type(self).__name__} of a {type(value).__name__}")
        self._value = value

    def __int__(self) -> int:
        return self._value


class CUdeviceptr(_Handle):
    pass


class CUdevice(_Handle):
    pass


class CUcontext(_Handle):
    pass


class CUstream(_Handle):
    pass


class CUevent(_Handle):
    pass


class CUmodule(_Handle):
    pass


class CUfunction(_Handle):
    pass


class CUmemGenericAllocationHandle(_Handle):
    pass


class CUmemLocation:
    def __init__(self) -> None:
        self.type: Any = None
        self.id: Any = None

    def check(self, ordinals: set[int]) -> None:
        is_device = self.type is CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        require(is_device and self.id in ordinals, "location is not a GPU that was asked for")


class CUmemAllocationFlags:
    def __init__(self) -> None:
        self.gpuDirectRDMACapable: Any = 0


class CUmemAllocationProp:
    def __init__(self) -> None:
        self.type: Any = None
        self.requestedHandleTypes: Any = CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        self.location = CUmemLocation()
        self.allocFlags = CUmemAllocationFlags()

    def check(self, ordinals: set[int]) -> None:
        require(self.type is CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED, "allocation type")
        require(type(self.requestedHandleTypes) is CUmemAllocationHandleType, "handle type")
        require(self.allocFlags.gpuDirectRDMACapable in (0, 1), "flag of GPUDirect RDMA")
        self.location.check(ordinals)


class CUmemFabricHandle:
    def __init__(self, data: bytes) -> None:
        self.data = data


class CUmemAccessDesc:
    def __init__(self) -> None:
        self.location = CUmemLocation()
        self.flags: Any = None


KINDS: tuple[type, ...] = (
    CUresult,
    CUmemAllocationType,
    CUmemAllocationHandleType,
    CUmemLocationType,
    CUmemAccess_flags,
    CUmemAllocationGranularity_flags,
    CUstreamCaptureMode,
    CUstreamCaptureStatus,
    CUdevice_attribute,
    CUdeviceptr,
    CUmemAllocationProp,
    CUmemAccessDesc,
)


def require(condition: bool, what: str) -> None:
    if not condition:
        raise DriverMisuse(what)


def require_int(value: object, what: str) -> int:
    require(type(value) is int, f"{what} is a {type(value).__name__}, not an int")
    assert isinstance(value, int)
    return value


def require_handle(value: object, kind: type[_Handle], what: str) -> int:
    """What cuda-python takes for a handle: its class, or the bare number."""
    require(type(value) in (kind, int), f"{what} is a {type(value).__name__}, not a {kind.__name__}")
    assert isinstance(value, (_Handle, int))
    return int(value)
