"""Host memory by its address, as an array that the host reads and writes."""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt


def host_words(address: int, num_words: int) -> npt.NDArray[np.int64]:
    """``num_words`` words of 64 bits from ``address`` on, no copy. Valid as long as the memory is mapped."""
    memory: Any = (ctypes.c_int64 * num_words).from_address(address)
    words: npt.NDArray[np.int64] = np.frombuffer(memory, dtype=np.int64)
    return words
