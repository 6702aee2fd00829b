"""Constants, enumerations and one-line functions that TensorRT-LLM's engine imports."""

import os
from enum import IntEnum
from typing import Final, Never, SupportsIndex, TypeAlias

from ...base.checks import to_int
from ...base.ids import CacheLevel

CACHE_LEVEL1: Final = CacheLevel(1)

BACKEND: Final = "cpp"
"""The engine hands tokens over as int32 views to a backend of that name, and as lists to any other."""

NDEBUG: Final = os.environ.get("TLLM_DEBUG_MODE", "")[:1] != "1"

SlidingWindowSize: TypeAlias = int | None
IndexSeq: TypeAlias = memoryview
"""Base page indices, as a sequence gives them."""

_OF_BLOCKS: Final = "no block leaves the manager, which announces its own; add_stored_event and add_removed_event take hashes"
_REFUSED: Final = {
    "add_stored_event_from_block": _OF_BLOCKS,
    "add_stored_block_event_from_block": _OF_BLOCKS,
    "add_stored_life_cycle_event_from_block": _OF_BLOCKS,
    "add_removed_event_from_block": _OF_BLOCKS,
    "add_removed_life_cycle_event": _OF_BLOCKS,
}


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


def refuse_name(owner: str, name: str) -> Never:
    """The `AttributeError` of a name that is not there; of one that TensorRT-LLM has, with the reason and the way out."""
    reason = _REFUSED.get(name)
    raise AttributeError(f"{owner} has no {name!r}" + ("" if reason is None else f": {reason}"))
