"""Arguments for `CudaKernel.launch`, for callers without ctypes."""

import ctypes
from collections.abc import Sequence
from typing import Any


def to_word_arguments(words: Sequence[int]) -> list[Any]:
    """Arguments for parameters of 64 bits each: addresses and counts."""
    return [ctypes.c_uint64(word) for word in words]
