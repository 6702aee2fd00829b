"""Constants, enumerations and one-line functions that TensorRT-LLM's engine imports."""

import os
from enum import IntEnum
from typing import Final, SupportsIndex, TypeAlias

from ...base.checks import to_int
from ...base.ids import CacheLevel

CACHE_LEVEL1: Final = CacheLevel(1)

BACKEND: Final = "cpp"
"""The engine hands tokens over as int32 views to a backend of that name, and as lists to any other."""

NDEBUG: Final = os.environ.get("TLLM_DEBUG_MODE", "")[:1] != "1"

SlidingWindowSize: TypeAlias = int | None
IndexSeq: TypeAlias = memoryview
"""Base page indices, as a sequence gives them."""


class LayerType(IntEnum):
    """What a layer stores: pages per block, or one recurrent state."""

    ATTENTION = 0
    SSM = 1


class PageStatus(IntEnum):
    """LOCKED: on level 0 and in use. HELD: a suspended sequence needs it. DROPPABLE: kept for reuse only."""

    LOCKED = 0
    HELD = 1
    DROPPABLE = 2


def exact_div(x: SupportsIndex, y: SupportsIndex) -> int:
    """``x / y``. `ValueError` if it does not divide, or ``y`` is 0."""
    dividend = to_int(x, "x")
    divisor = to_int(y, "y")
    if divisor == 0 or dividend % divisor != 0:
        raise ValueError(f"x is {dividend} and y is {divisor}; y must divide x")
    return dividend // divisor


def typed_range(*args: SupportsIndex) -> range:
    """`range`, whose numbers may be ids of any integer type."""
    numbers = [to_int(arg, "each of args") for arg in args]
    if len(numbers) == 1:
        return range(numbers[0])
    if len(numbers) == 2:
        return range(numbers[0], numbers[1])
    if len(numbers) == 3:
        return range(numbers[0], numbers[1], numbers[2])
    raise TypeError(f"typed_range() takes 1 to 3 args, not {len(numbers)}")
