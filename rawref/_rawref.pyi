from types import GenericAlias
from typing import Any, Final, Generic, Never, TypeVar, final

_Target_co = TypeVar("_Target_co", covariant=True)

@final
class ref(Generic[_Target_co]):
    """The one reference to a target that does not keep it alive."""

    def __new__(cls, target: _Target_co, /) -> ref[_Target_co]: ...
    def __call__(self) -> _Target_co | None:
        """The target, or None once it is dead."""

    def invalidate(self) -> None:
        """From now on the ref is dead. Twice is fine."""

    @property
    def is_valid(self) -> bool:
        """Whether a call would return the target."""

    @classmethod
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...

NULL: Final[ref[Never]]
"""A ref that is always dead."""

def invalidate(target: object, /) -> None:
    """Cut the target's ref, if it has one. Reports an exception that another finalizer has left set."""

def pack_int32(items: list[Any], begin: int, end: int, least: int, /) -> bytes | None:
    """The items from ``begin`` to ``end`` as native int32. None if one of them is no exact int, below ``least`` or above 2**31 - 1.

    `IndexError` if there are not so many.
    """

def seal(cls: type, /) -> None:
    """Close what mypyc leaves open in a class that it made. Does nothing to a class that Python made."""

def untrack(objects: list[Any], /) -> None:
    """Hide each object of the list from the garbage collector, which frees no cycle through it from then on."""

def untrack_class(cls: type, /) -> bool:
    """Hide all objects of the class from the garbage collector as they are made; they do not bring the next collection nearer either.

    `TypeError` for a class with ``__dict__``, ``__weakref__`` or items, and a second time. False, and no change, where this interpreter
    keeps its notes of an object elsewhere than CPython does.
    """

def write_unraisable(error: BaseException, place: object, /) -> None:
    """Hand an exception that nobody can catch to `sys.unraisablehook`."""
