"""What ranks, routers and peers send each other: values, which can be compared, copied and pickled, from one build to the other.

A copy is made by the constructor, from the arguments that make an equal value, and so goes through its checks. A build pickles as
the other one does: the class and those arguments.
"""

from dataclasses import fields
from typing import Any

from mypy_extensions import mypyc_attr


@mypyc_attr(native_class=True)
class Value:
    """Base of values. A class that is no dataclass says in `_arguments` what its constructor takes."""

    __slots__ = ()

    def _arguments(self) -> tuple[object, ...]:
        dataclass_self: Any = self
        return tuple([getattr(self, field.name) for field in fields(dataclass_self)])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, Value):
            return NotImplemented
        return self._arguments() == other._arguments()

    def __hash__(self) -> int:
        return hash(self._arguments())
