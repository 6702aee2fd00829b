"""Turning what a user passed into the numbers that the library works with, or into a clear error."""

from typing import Final

from mypy_extensions import i64

from .ids import PageIndexMode

MAX_COUNT: Final = 2**40
"""More tokens, blocks or layers than any sequence has; keeps 64-bit arithmetic far from its edge."""


def to_int(value: object, name: str) -> int:
    """``value`` as an int; numpy's integers are welcome, floats and strings are a `TypeError`."""
    if isinstance(value, int):
        return value
    index = getattr(type(value), "__index__", None)
    if index is None:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    number: int = index(value)
    return number


def to_count(value: object, name: str) -> i64:
    """``value`` as a number of things: an int from 0 to `MAX_COUNT`."""
    number = to_int(value, name)
    if number < 0 or number > MAX_COUNT:
        raise ValueError(f"{name} is {number}; it must be from 0 to {MAX_COUNT}")
    return number


def validate_index_mode(mode: object) -> None:
    if not isinstance(mode, PageIndexMode):
        raise TypeError(f"a page index mode is PageIndexMode.SHARED or PER_LAYER, not {mode!r}")
