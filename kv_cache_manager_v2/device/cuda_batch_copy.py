"""The driver's `cuMemcpyBatchAsync`, called by its address: cuda-python would need a Python object for each number.

The driver returns the address for a given CUDA version, and with it one of two signatures:

    12.8   (dsts, srcs, sizes, count, attributes, attribute indices, number of attributes, index of a failed copy, stream)
    13.0   (dsts, srcs, sizes, count, attributes, attribute indices, number of attributes, stream)

The version of cuda-python does not matter. Calls release the GIL.
"""

import ctypes
from typing import Any, Final, final

from librt.vecs import vec
from mypy_extensions import i64

from .cuda_driver import CudaDriver
from .host_array import word_array_address

_FUNCTION: Final = "cuMemcpyBatchAsync"
_FIRST_VERSION: Final = 12080
_VERSION_WITHOUT_FAILED_INDEX: Final = 13000

_COMMON_ARGUMENTS: Final = (
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
)

# CUmemcpyAttributes: {source access order; place of the source: kind, number; of the destination: kind, number; flags}.
_SOURCES_IN_STREAM_ORDER: Final = (1, 0, 0, 0, 0, 0)


@final
class CopyArrays:
    """Copies as the driver reads them: three arrays of 64-bit words, and where these lie, which is asked once: each answer takes numpy some
    microseconds, as long as the call of the driver."""

    __slots__ = ("dsts", "srcs", "sizes", "addresses")

    def __init__(self, dsts: vec[i64], srcs: vec[i64], sizes: vec[i64]) -> None:
        self.dsts: Final = dsts
        self.srcs: Final = srcs
        self.sizes: Final = sizes
        self.addresses: Final = [word_array_address(dsts), word_array_address(srcs), word_array_address(sizes)]


@final
class CudaBatchCopy:
    """Made by `find_batch_copy`."""

    __slots__ = ("_function", "_has_failed_index", "_attributes", "_first_indices", "_failed_index")

    def __init__(self, address: int, has_failed_index: bool) -> None:
        more = (ctypes.c_void_p,) if has_failed_index else ()
        self._function: Final[Any] = ctypes.CFUNCTYPE(ctypes.c_int, *_COMMON_ARGUMENTS, *more, ctypes.c_void_p)(address)
        self._has_failed_index: Final = has_failed_index
        self._attributes: Final[Any] = (ctypes.c_int32 * len(_SOURCES_IN_STREAM_ORDER))(*_SOURCES_IN_STREAM_ORDER)
        self._first_indices: Final[Any] = (ctypes.c_size_t * 1)(0)  # by attribute: its first copy; all copies have the one attribute
        self._failed_index: Final[Any] = (ctypes.c_size_t * 1)(0)

    def enqueue(self, stream: int, arrays: CopyArrays, count: int) -> int:
        """Pass the first ``count`` copies, one or more, to the driver, which has read them on return; returns the driver's status."""
        failed_index = (self._failed_index,) if self._has_failed_index else ()
        status: int = self._function(*arrays.addresses, count, self._attributes, self._first_indices, 1, *failed_index, stream)
        return status


def find_batch_copy(driver: CudaDriver) -> CudaBatchCopy | None:
    """The batch copy function; None if the driver is too old (before CUDA 12.8)."""
    driver_version: int = driver.call("cuDriverGetVersion")
    if driver_version < _FIRST_VERSION:
        return None
    has_failed_index = driver_version < _VERSION_WITHOUT_FAILED_INDEX
    version = _FIRST_VERSION if has_failed_index else _VERSION_WITHOUT_FAILED_INDEX
    address = driver.find_function(_FUNCTION, version)
    return None if address == 0 else CudaBatchCopy(address, has_failed_index)
