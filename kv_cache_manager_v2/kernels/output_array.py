"""Arrays that kernels read: the caller's own, checked once, or new ones."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..base.checks import to_int

INT32: Final = np.dtype(np.int32)
INT64: Final = np.dtype(np.int64)


def to_output_array(given: object, name: str, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> npt.NDArray[Any]:
    """The caller's writable, C-contiguous array of exactly that dtype and shape; a new one for None.

    Anything that numpy wraps without a copy is accepted: pinned memory of torch (as ``tensor.numpy()``), ctypes, `memoryview`.
    """
    if given is None:
        return np.empty(shape, dtype)
    if isinstance(given, (list, tuple)):
        raise TypeError(f"{name} must be an array or a buffer of {dtype}, not {type(given).__name__}")
    array: npt.NDArray[Any] = np.asarray(given)
    if array.dtype != dtype:
        raise TypeError(f"{name} has the dtype {array.dtype}; it must be {dtype}")
    if array.shape != shape:
        raise ValueError(f"{name} has the shape {array.shape}; it must be {shape}")
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError(f"{name} must be C-contiguous and writable")
    return array


def to_filler(given: object) -> int:
    """The int32 for entries without a page."""
    number = to_int(given, "filler")
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"filler is {number}; entries are int32, from {-(1 << 31)} to {(1 << 31) - 1}")
    return number


def flat_view(array: npt.NDArray[Any]) -> memoryview:
    """A one-dimensional view, whose single items are written much faster than numpy's."""
    flat: Any = array.reshape(-1)
    return memoryview(flat).cast("B").cast("i" if array.dtype == INT32 else "q")
