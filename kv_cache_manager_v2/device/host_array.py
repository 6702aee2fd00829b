"""Host memory as an array by its address, and an array's address in host memory."""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
from librt.vecs import vec
from mypy_extensions import i64


def host_words(address: int, num_words: int) -> npt.NDArray[np.int64]:
    """``num_words`` words of 64 bits from ``address`` on, no copy. Valid as long as the memory is mapped."""
    memory: Any = (ctypes.c_int64 * num_words).from_address(address)
    words: npt.NDArray[np.int64] = np.frombuffer(memory, dtype=np.int64)
    return words


def word_array_address(words: vec[i64]) -> int:
    """Where the words of a vec lie; the same as long as this vec is not appended to."""
    return int(np.frombuffer(memoryview(words), dtype=np.int64).ctypes.data)
