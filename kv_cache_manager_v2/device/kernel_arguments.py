"""Arguments for `CudaKernel.launch`, for callers without ctypes."""

import ctypes
from collections.abc import Sequence
from typing import Any


def to_word_arguments(words: Sequence[int]) -> list[Any]:
    """Arguments for parameters of 64 bits each: addresses and counts."""
    return [ctypes.c_uint64(word) for word in words]


def to_struct_argument(words: Sequence[int]) -> Any:
    """An argument for a parameter that is a struct of so many words of 64 bits."""
    return (ctypes.c_uint64 * len(words))(*words)
