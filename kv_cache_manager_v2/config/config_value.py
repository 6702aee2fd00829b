"""What all configuration values have in common: how they are copied and pickled, and how their fields are checked.

Every class of this folder is a frozen dataclass that checks itself when it is made. A wrong type is a `TypeError`, a
value that can never work a `ValueError`; the text names the field, the value and what is allowed. Sequences are kept
as tuples, so that nobody can change a configuration that a manager holds. Values that fit only together (the quota
and the layers, the ratios and the pool groups) are checked where they are used.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from mypy_extensions import mypyc_attr

MAX_CONFIG_INT: Final = 2**60
"""Larger sizes and lengths are mistakes, and arithmetic on them could overflow 64 bits."""


@mypyc_attr(native_class=True)
class ConfigValue:
    """Base of the frozen dataclasses. Copies and pickles go through the constructor, and so through its checks."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        dataclass_self: Any = self
        return type(self), tuple([getattr(self, field.name) for field in fields(dataclass_self)])


def validate_int(value: object, name: str, minimum: int, maximum: int = MAX_CONFIG_INT) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{name} is {value}; it must be at least {minimum}")
    if value > maximum:
        raise ValueError(f"{name} is {value}; it must be at most {maximum}")


def validate_text(value: object, name: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{name} must not be empty")


def validate_bool(value: object, name: str) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")


def validate_share(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not 0 < value <= 1:
        raise ValueError(f"{name} is {value}; it must be over 0 and at most 1")


def to_tuple(value: Sequence[object], name: str) -> tuple[object, ...]:
    """A tuple of the items; a text is no sequence here."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a list or a tuple, not {type(value).__name__}")
    return tuple(value)
