"""Turning what a user passed into the numbers that the library works with, or into a clear error."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar, cast

from librt.vecs import vec
from mypy_extensions import i64

from .ids import DataRole, PageIndexMode

T = TypeVar("T")

MAX_COUNT: Final = 2**40
"""More tokens, blocks or layers than any sequence has; keeps 64-bit arithmetic far from its edge."""


def to_int(value: object, name: str) -> int:
    """``value`` as an int; numpy's integers are welcome, floats, bools and strings are a `TypeError`."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {value}")
    if isinstance(value, int):
        return value
    index = getattr(type(value), "__index__", None)
    number: object = None
    if index is not None:
        try:
            number = index(value)
        except TypeError:
            number = None  # an array of several numbers has the method, and none to give
    if not isinstance(number, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    return number


def to_count(value: object, name: str) -> i64:
    """``value`` as a number of things: an int from 0 to `MAX_COUNT`."""
    number = to_int(value, name)
    if number < 0 or number > MAX_COUNT:
        raise ValueError(f"{name} is {number}; it must be from 0 to {MAX_COUNT}")
    return number


def to_bool(value: object, name: str) -> bool:
    """``value``, which is True or False; 0 and 1 are a `TypeError`, and whatever else only has a truth value."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
    return value


def to_number(value: object, name: str) -> float:
    """``value`` as a float that is no nan; numpy's numbers are welcome, bools and strings are a `TypeError`."""
    number: float | None = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            raise ValueError(f"{name} is {value}; a float cannot hold it") from None
    elif getattr(type(value), "__float__", None) is not None and not isinstance(value, bool) and not hasattr(value, "__len__"):
        number = float(cast(Any, value))
    if number is None:
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if number != number:
        raise ValueError(f"{name} is {number}; it must be a number")
    return number


def to_text(value: object, name: str) -> str:
    """``value``, which is a str."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    return value


def to_instance(value: object, kind: type[T], name: str) -> T:
    """``value``, which is of that class."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}")
    return value


def to_list(values: object, name: str) -> list[object]:
    """What a user listed: a list as it is, an array's numbers as ints, anything else that can be iterated over but texts."""
    if isinstance(values, list):
        return values
    if isinstance(values, (str, bytes, bytearray, Mapping)):
        raise TypeError(f"{name} must be a sequence, not {type(values).__name__}")
    to_ints = getattr(values, "tolist", None)
    if to_ints is not None:
        numbers: object = to_ints()
        if isinstance(numbers, list):
            return numbers
    if isinstance(values, Iterable):
        return list(values)
    raise TypeError(f"{name} must be a sequence, not {type(values).__name__}")


def to_counts(values: object, name: str) -> vec[i64]:
    """Many of `to_count`."""
    items = to_list(values, name)
    # All of them are good nearly always, so what is wrong with one is for a second look.
    try:
        # Not known to be so: compiled, each item is looked at as it is read out, and one that is no i64 is a TypeError there.
        counts = vec[i64]([item for item in cast("list[i64]", items)])
    except (TypeError, ValueError, OverflowError):
        return _to_counts_one_by_one(items, name)
    for count in counts:
        # True and False pass for 1 and 0: `to_count` tells them apart.
        if not 1 < count <= MAX_COUNT:
            return _to_counts_one_by_one(items, name)
    return counts


def _to_counts_one_by_one(items: list[object], name: str) -> vec[i64]:
    counts = vec[i64]([0] * len(items))
    position: i64 = 0
    for item in items:
        counts[position] = to_count(item, name)
        position += 1
    return counts


def to_role(role: object, name: str) -> DataRole:
    if not isinstance(role, str):
        raise TypeError(f"{name} must be the role of a buffer, a str like 'key', not {type(role).__name__}")
    return DataRole(role)


def to_index_mode(mode: object, name: str) -> PageIndexMode:
    if not isinstance(mode, PageIndexMode):
        raise TypeError(f"{name} must be PageIndexMode.SHARED or PER_LAYER, not {mode!r}")
    return mode
