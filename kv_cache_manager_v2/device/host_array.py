"""Host memory as an array, by its address; and the address of an array."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from librt.vecs import vec
from mypy_extensions import i64

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def host_words(address: int, num_words: int) -> npt.NDArray[np.int64]:
    """``num_words`` words of 64 bits from ``address`` on, no copy. Valid as long as the memory is mapped."""
    memory: Any = (ctypes.c_int64 * num_words).from_address(address)
    import numpy  # not at the top: a manager on the host device starts without it

    words: npt.NDArray[np.int64] = numpy.frombuffer(memory, dtype=numpy.int64)
    return words


def host_bytes(address: int, num_bytes: int) -> npt.NDArray[np.uint8]:
    """``num_bytes`` bytes from ``address`` on, no copy, of memory that may be written. Valid as long as it is mapped."""
    memory: Any = (ctypes.c_ubyte * num_bytes).from_address(address)
    import numpy

    found: npt.NDArray[np.uint8] = numpy.frombuffer(memory, dtype=numpy.uint8)
    return found


def word_array_address(words: vec[i64]) -> int:
    """The address of a vec's words; valid until the vec is appended to."""
    import numpy

    return int(numpy.frombuffer(memoryview(words), dtype=numpy.int64).ctypes.data)
