"""Values: objects that ranks, routers and peers exchange. They can be compared, copied and pickled, also between the two builds.

A copy calls the constructor with the arguments that make an equal value, so the constructor's checks run. A pickle has the class and
those arguments, the same in both builds.
"""

import inspect
from typing import Any, Final

from mypy_extensions import mypyc_attr

_parameters: Final[dict[Any, tuple[str, ...]]] = {}
"""Names of constructors' parameters, by class: of the classes whose values were compared, copied or shown so far."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Value:
    """Base of values. A class whose constructor's parameters are no attributes of the same names has its own `_arguments`."""

    __slots__ = ()

    def _arguments(self) -> tuple[object, ...]:
        kind: Any = type(self)
        names = _parameters.get(kind)
        if names is None:
            names = _parameters[kind] = tuple(inspect.signature(kind).parameters)
        return tuple([getattr(self, name) for name in names])

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
