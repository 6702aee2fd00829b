"""Validation of arguments: converts the caller's value to the library's type, or raises an error that names the argument.

What comes out is of the library's type itself, not of a subclass of the caller's: no later call runs the caller's code.
"""

import builtins
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from librt.vecs import vec
from mypy_extensions import i64

from .ids import DataRole, PageIndexMode

T = TypeVar("T")

MAX_COUNT: Final = 2**40
"""Upper bound of every count of tokens, blocks or layers; keeps 64-bit arithmetic far from overflow."""


_MISSING: Final = object()
_MOST_BITS: Final = 4096
"""Bits of the longest int that is shown in a message: Python refuses to write one of more than 4,300 digits."""


def type_name(value: object) -> str:
    """For messages. With its module where it has a builtin type's name: `numpy.bool`."""
    kind = type(value)
    if kind.__module__ != "builtins" and hasattr(builtins, kind.__name__):
        return f"{kind.__module__}.{kind.__name__}"
    return kind.__name__


def other_kind(value: object, *wanted: type) -> str:
    """`type_name`, for "must be a KVCacheManagerConfig, not ...". With its module where it has the name of a wanted one."""
    kind = type(value)
    if kind.__name__ in [each.__name__ for each in wanted]:
        return f"{kind.__module__}.{kind.__name__}; it must be that of {wanted[0].__module__.rpartition('.')[0]}"
    return type_name(value)


def shown(value: object) -> str:
    """For messages: how it is written, or its type where that fails."""
    try:
        return repr(value)
    except Exception:
        return f"a {type_name(value)}"


def has_attribute(value: object, name: str) -> bool:
    """`hasattr` as Python has it: compiled it takes any error that the value raises, Ctrl-C too, for an attribute that is missing."""
    return getattr(value, name, _MISSING) is not _MISSING


def _is_bool(value: object) -> bool:
    """Whether it is a bool, or one of numpy or torch, which have a number as well."""
    return isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))


def is_bytes(value: object) -> bool:
    """Whether it is raw bytes, which are no list of numbers though Python iterates over them as one."""
    return isinstance(value, (bytes, bytearray)) or (isinstance(value, memoryview) and value.itemsize == 1)


def to_int(value: object, name: str) -> int:
    """``value`` as an int. Numpy integers are accepted; floats, bools and strings are a `TypeError`. `ValueError`: of over 4,096 bits."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {value}")
    if isinstance(value, int):
        return _require_shown(value if type(value) is int else int.__index__(value), name)
    index = getattr(type(value), "__index__", None)
    number: object = None
    if index is not None and not _is_bool(value):
        try:
            number = index(value)
        except TypeError:
            number = None  # an array of several numbers has the method, and none to give
    if not isinstance(number, int):
        raise TypeError(f"{name} must be an int, not {type_name(value)}")
    return _require_shown(number if type(number) is int else int.__index__(number), name)


def _require_shown(number: int, name: str) -> int:
    if not -MAX_COUNT <= number <= MAX_COUNT and number.bit_length() > _MOST_BITS:
        raise ValueError(f"{name} is an int of {number.bit_length()} bits; none of so many is in range")
    return number


def to_count(value: object, name: str) -> i64:
    """``value`` as a count: an int from 0 to `MAX_COUNT`."""
    number = to_int(value, name)
    if number < 0 or number > MAX_COUNT:
        raise ValueError(f"{name} is {number}; it must be from 0 to {MAX_COUNT}")
    return number


def to_int_within(value: object, name: str, least: int, most: int, reason: str = "") -> i64:
    """``value`` as an int from ``least`` to ``most``; ``reason``: for the message, with what stands before it."""
    number = to_int(value, name)
    if number < least or number > most:
        raise ValueError(f"{name} is {number}; it must be from {least} to {most}{reason}")
    return number


def to_index(value: object, name: str, count: int, things: str) -> int:
    """``value`` as the number of one of ``count`` things, from 0 on; ``things``: for the message, "cache levels"."""
    number = to_int(value, name)
    if not 0 <= number < count:
        raise ValueError(f"{name} is {number}; there are {count} {things}")
    return number


def to_bool(value: object, name: str) -> bool:
    """``value`` as a bool. 0, 1 and other objects with a truth value are a `TypeError`."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {type_name(value)}")
    return value


def to_number(value: object, name: str) -> float:
    """``value`` as a float that is not nan. Numpy numbers are accepted; bools and strings are a `TypeError`."""
    number: float | None = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            raise ValueError(f"{name} is an int of {int(value).bit_length()} bits; a float cannot hold it") from None
    elif getattr(type(value), "__float__", None) is not None and not _is_bool(value) and not has_attribute(value, "__len__"):
        # Of a complex number, or one of numpy, `float` loses a part.
        if isinstance(value, complex) or "complex" in str(getattr(value, "dtype", "")):
            raise TypeError(f"{name} must be a number, not the complex {type(value).__name__}")
        number = float(cast(Any, value))
    if number is None:
        raise TypeError(f"{name} must be a number, not {type_name(value)}")
    if number != number:
        raise ValueError(f"{name} is {number}; it must be a number")
    return number


def to_text(value: object, name: str) -> str:
    """``value``, which is a str."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    return to_plain_text(value)


def require_path(path: str, name: str, kind: str) -> str:
    """``path``, which the operating system can take as a path: it has a name, and no null. ``kind``: "file" or "folder"."""
    if path == "":
        raise ValueError(f"{name} is empty; give the path of a {kind}")
    try:
        is_usable = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_usable = False
    if not is_usable:
        raise ValueError(f"{name} is {path!r}, which no file system can name: it has a null character or half of one in it")
    return path


def to_plain_text(text: str) -> str:
    """An equal `str` that is of no subclass."""
    return text if type(text) is str else str.__str__(text)


def to_plain_bytes(data: bytes) -> bytes:
    """Equal `bytes` that are of no subclass."""
    return data if type(data) is bytes else bytes.__getitem__(data, slice(None))


def to_instance(value: object, kind: type[T], name: str) -> T:
    """``value``, which is of that class."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {other_kind(value, kind)}")
    return value


def to_instance_or_none(value: object, kind: type[T], name: str) -> T | None:
    """``value``, which is of that class or None."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__} or None, not {other_kind(value, kind)}")
    return value


def to_texts_by_name(value: object, name: str) -> dict[str, str]:
    """``value``, a mapping of str to str, as a dict of our own."""
    return {to_text(key, f"a name in {name}"): to_text(text, f"{name}[{shown(key)}]") for key, text in to_items(value, name)}


def to_items(value: object, name: str) -> list[tuple[object, object]]:
    """The items of ``value``, a mapping."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, such as a dict, not {type_name(value)}")
    return list(value.items())


def to_short_list(values: object, name: str, most: int) -> list[object]:
    """`to_list` of what has at most ``most`` items; more are a `ValueError`, where they can be counted before they are listed."""
    if isinstance(values, (list, tuple, Sequence)):
        _require_at_most(len(values), name, most)
    items = to_list(values, name)
    _require_at_most(len(items), name, most)
    return items


def _require_at_most(count: int, name: str, most: int) -> None:
    if count > most:
        raise ValueError(f"{name} has {count} items; there can be {most}")


def to_list(values: object, name: str) -> list[object]:
    """``values`` as a list of our own: a copy of a list, an array's numbers as ints, any other iterable but a str, a mapping or a set,
    whose order differs from process to process.

    A copy, since an item's own code may change the caller's list while it is gone through: compiled code would write past its end.
    """
    if type(values) is list or type(values) is tuple:
        # First: to ask for an abstract class is interpreted code, also compiled.
        return list(values)
    if isinstance(values, (str, Mapping, set, frozenset)) or is_bytes(values):
        raise TypeError(f"{name} must be a sequence, not {type(values).__name__}")
    to_ints = getattr(values, "tolist", None)
    if to_ints is not None:
        numbers: object = to_ints()
        if isinstance(numbers, list):
            return numbers
        raise TypeError(f"{name} must be a sequence, not {type(values).__name__} without a dimension")
    if isinstance(values, Iterable):
        return list(values)
    raise TypeError(f"{name} must be a sequence, not {type(values).__name__}")


def to_counts(values: object, name: str) -> vec[i64]:
    """`to_count` of each item; ``name``: "one of" and the argument's."""
    items = to_list(values, name.removeprefix("one of "))
    # Fast path: nearly always every item is valid. Only on an error does a second pass find the item at fault.
    try:
        # The cast is unchecked. Compiled code checks each item as it reads it: an item that is no i64 raises a TypeError here.
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
    return DataRole(to_plain_text(role))


def to_index_mode(mode: object, name: str) -> PageIndexMode:
    if not isinstance(mode, PageIndexMode):
        raise TypeError(f"{name} must be PageIndexMode.SHARED or PER_LAYER, not {shown(mode)}")
    return mode
