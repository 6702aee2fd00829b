"""Values: objects that ranks, routers and peers exchange. They can be compared, copied and pickled, also between the two builds.

A copy calls the constructor with the arguments that make an equal value, so the constructor's checks run. A pickle has the class and
those arguments, the same in both builds.
"""

from dataclasses import fields
from typing import Any

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Value:
    """Base of values. A class that is no dataclass lists its constructor's arguments in `_arguments`."""

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([repr(argument) for argument in self._arguments()])})"
