"""The base of all configuration classes, and their checks.

Every class of this folder is a frozen dataclass that validates itself when it is made. A wrong type is a `TypeError`, a
value that can never work a `ValueError`; the message names the field, the value and what is allowed. Numpy numbers are accepted
and stored as Python's. These classes are plain Python classes also in the compiled build: a native class would convert its
arguments before our checks run. Sequences are stored as tuples, so a configuration cannot change while a manager uses it.
Values that fit only together (the quota and the layers, the ratios and the pool groups) are checked where they are used.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

from mypy_extensions import mypyc_attr

from ..base.checks import is_bytes, to_bool, to_instance, to_instance_or_none, to_int, to_number, to_text

T = TypeVar("T")

MAX_CONFIG_INT: Final = 2**60
"""Larger sizes and lengths are mistakes, and arithmetic on them could overflow 64 bits."""


@mypyc_attr(native_class=False)
class ConfigValue:
    """Base of the frozen dataclasses. Copying and unpickling call the constructor, so the checks run."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        dataclass_self: Any = self
        return type(self), tuple([getattr(self, field.name) for field in fields(dataclass_self)])


def given(config: object, field: str) -> object:
    """The field's value as the user passed it. Compiled code that reads a field by name would check its type, with a vague error."""
    value: object = getattr(config, field)
    return value


def take_int(config: ConfigValue, field: str, name: str, minimum: int, maximum: int = MAX_CONFIG_INT) -> None:
    """Store the field as an int from ``minimum`` to ``maximum``; errors call it ``name``."""
    number = to_int(given(config, field), name)
    if number < minimum:
        raise ValueError(f"{name} is {number}; it must be at least {minimum}")
    if number > maximum:
        raise ValueError(f"{name} is {number}; it must be at most {maximum}")
    object.__setattr__(config, field, number)


def take_optional_int(config: ConfigValue, field: str, name: str, minimum: int, maximum: int = MAX_CONFIG_INT) -> None:
    """`take_int`, unless it is None."""
    if given(config, field) is not None:
        take_int(config, field, name, minimum, maximum)


def take_share(config: ConfigValue, field: str, name: str) -> None:
    """Store the field as a float above 0 and at most 1."""
    number = to_number(given(config, field), name)
    if not 0 < number <= 1:
        raise ValueError(f"{name} is {given(config, field)}; it must be over 0 and at most 1")
    object.__setattr__(config, field, number)


def take_float(config: ConfigValue, field: str, name: str, minimum: float, maximum: float, or_else: str = "") -> None:
    """Store the field as a float from ``minimum`` to ``maximum``; ``or_else``: for the message, what else it may be."""
    number = to_number(given(config, field), name)
    if not minimum <= number <= maximum:
        raise ValueError(f"{name} is {given(config, field)}; it must be from {minimum:g} to {maximum:g}{or_else}")
    object.__setattr__(config, field, number)


def take_optional_float(config: ConfigValue, field: str, name: str, minimum: float, maximum: float) -> None:
    """`take_float`, unless it is None."""
    if given(config, field) is not None:
        take_float(config, field, name, minimum, maximum, ", or None")


def take_text(config: ConfigValue, field: str, name: str) -> None:
    """Store the field as a str that is not empty."""
    text = to_text(given(config, field), name)
    if not text:
        raise ValueError(f"{name} must not be empty")
    object.__setattr__(config, field, text)


def validate_bool(config: ConfigValue, field: str, name: str) -> None:
    to_bool(given(config, field), name)


def take_choice(config: ConfigValue, field: str, name: str, choices: Sequence[str]) -> None:
    """Store the field as one of the words in ``choices``."""
    word = to_text(given(config, field), name)
    if word not in choices:
        raise ValueError(f"{name} is {word!r}; it is one of {', '.join([repr(choice) for choice in choices])}")
    object.__setattr__(config, field, word)


def validate_instance(config: ConfigValue, field: str, kind: type[object]) -> None:
    to_instance(given(config, field), kind, field)


def validate_optional_instance(config: ConfigValue, field: str, kind: type[object]) -> None:
    to_instance_or_none(given(config, field), kind, field)


def to_objects(values: object, kind: type[T], name: str) -> tuple[T, ...]:
    """``values`` as a tuple of objects of that class."""
    items: list[T] = []
    for item in to_tuple(values, name):
        if not isinstance(item, kind):
            raise TypeError(f"{name} must be {kind.__name__} objects, not {type(item).__name__}")
        items.append(item)
    return tuple(items)


def to_tuple(value: object, name: str) -> tuple[object, ...]:
    """``value`` as a tuple; a str is not accepted as a sequence."""
    if isinstance(value, str) or is_bytes(value) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a list or a tuple, not {type(value).__name__}")
    return tuple(value)
