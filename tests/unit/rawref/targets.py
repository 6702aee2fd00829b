"""Classes that can be referred to. The tests run them as they are, and compiled by mypyc.

Functions of rawref are imported by name: looking one up in the module with an exception set may clear that exception, where the name
is not in CPython's cache of types' attributes.
"""

from typing import ClassVar

from mypy_extensions import mypyc_attr
from rawref import invalidate, seal, write_unraisable


class Closing:
    """Does what a target should: invalidates where it lets go."""

    __slots__ = ("name", "__rawref__")

    name: str
    __rawref__: object

    def __init__(self, name: str) -> None:
        self.name = name
        self.__rawref__ = None

    def close(self) -> None:
        invalidate(self)

    def __del__(self) -> None:
        invalidate(self)

    def held_in_the_attribute(self) -> object:
        """In compiled code this is the guard itself, which no other code can get hold of."""
        return self.__rawref__

    def adopt(self, held: object) -> None:
        """What no class should do: keep something in the attribute."""
        self.__rawref__ = held


@mypyc_attr(allow_interpreted_subclasses=True)
class Forgetful:
    """Never invalidates. What it owns dies before and after its guard, in the order of the attributes."""

    __slots__ = ("before", "__rawref__", "after")

    before: object
    __rawref__: object
    after: object

    def __init__(self) -> None:
        self.before = None
        self.after = None


class Rising:
    """Comes back from its own ``__del__``, once."""

    __slots__ = ("cuts", "__rawref__")

    risen: ClassVar[list[object]] = []
    cuts: bool
    __rawref__: object

    def __init__(self, cuts: bool) -> None:
        self.cuts = cuts

    def __del__(self) -> None:
        if self.cuts:
            invalidate(self)
        Rising.risen.append(self)


class Failing:
    """Raises in ``__del__``. Compiled, the collector goes on to the next object with that exception set."""

    __slots__ = ("peer",)

    peer: object

    def __init__(self) -> None:
        self.peer = self

    def __del__(self) -> None:
        raise ValueError("from a finalizer")


class Cautious:
    """Goes on in ``__del__`` whatever was raised before, and raises nothing itself."""

    __slots__ = ("peer", "ends", "__rawref__")

    peer: object
    ends: list[str]
    __rawref__: object

    def __init__(self, ends: list[str]) -> None:
        self.peer = self
        self.ends = ends
        self.__rawref__ = None

    def __del__(self) -> None:
        invalidate(self)
        try:
            self.ends.append("".join(["reach", "ed"]))
            raise KeyError("of its own")
        except BaseException as error:
            write_unraisable(error, "a place")


class Undeclared:
    """No attribute for rawref."""

    __slots__ = ("name",)

    name: str

    def __init__(self) -> None:
        self.name = "undeclared"


@mypyc_attr(allow_interpreted_subclasses=True)
class Sealing:
    """Seals its subclasses."""

    __slots__ = ()

    @classmethod
    def __init_subclass__(cls) -> None:
        seal(cls)


class SealedWithoutArguments(Sealing):
    """(A docstring that begins with a bracket.)"""

    __slots__ = ("size", "__rawref__")

    size: int
    __rawref__: object

    def __init__(self) -> None:
        self.size = 0
        self.__rawref__ = None


@mypyc_attr(allow_interpreted_subclasses=True)
class Sealed(Sealing):
    """A plain attribute, a property of each kind, and a constructor."""

    __slots__ = ("plain", "_size", "__rawref__")

    plain: object
    _size: int
    __rawref__: object

    def __init__(self, size: int) -> None:
        self.plain = "plain"
        self._size = size
        self.__rawref__ = None

    @property
    def size(self) -> int:
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        if size < 0:
            raise ValueError("negative")
        self._size = size

    @property
    def double(self) -> int:
        return 2 * self._size

    def __del__(self) -> None:
        invalidate(self)


class Linked:
    """One of millions, which the tests hide from the garbage collector."""

    __slots__ = ("number", "next", "held")

    number: int
    next: "Linked | None"
    held: object

    def __init__(self, number: int) -> None:
        self.number = number
        self.next = None
        self.held = None
