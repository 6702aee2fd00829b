"""Base of objects that name resources of this process: memory, threads, files, a device. They can be neither copied nor pickled.

A copy would free the same memory twice. A subclass of `Handle` gets two more rules, in both builds: its attributes cannot be deleted
(plain Python attributes can), and `__init__` runs once.
"""

from functools import wraps
from typing import Any, ClassVar, Final, Never, SupportsIndex

import rawref
from mypy_extensions import mypyc_attr

from .build_mode import is_compiled

_PACKAGE: Final = __name__.rpartition(".base.")[0]


@mypyc_attr(allow_interpreted_subclasses=True)
class Handle:
    """Base of managers, devices, sequences, leases and all other objects that own or use resources of this process."""

    __slots__ = ()

    _NAMES: ClassVar[str] = "memory of this process"
    """The things that an object of the class names; used in error messages."""

    @classmethod
    def __init_subclass__(cls) -> None:
        handle_class: Any = cls
        rawref.seal(handle_class)
        if not is_compiled() and handle_class.__module__.startswith(_PACKAGE) and "__init__" in vars(handle_class):
            _let_init_run_once(handle_class)

    def __reduce__(self) -> Never:
        raise TypeError(_copy_refusal(self))

    def __reduce_ex__(self, protocol: SupportsIndex) -> Never:
        raise TypeError(_copy_refusal(self))


def _copy_refusal(handle: Handle) -> str:
    name = type(handle).__name__
    article = "an" if name[0] in "AEIOU" else "a"
    return f"{article} {name} names {handle._NAMES}; it can be neither copied nor pickled"


def _let_init_run_once(handle_class: Any) -> None:
    """Make a second call of `__init__` an error; `rawref.seal` does that for compiled classes."""
    init = handle_class.__init__
    slots = [name for base in reversed(handle_class.__mro__) for name in getattr(base, "__slots__", ()) if name != "__rawref__"]

    @wraps(init)
    def init_once(self: object, *args: object, **keywords: object) -> None:
        if type(self) is handle_class and any([hasattr(self, name) for name in slots]):
            raise TypeError(f"a {handle_class.__name__} is made once, and this one is: __init__ cannot be called again; make another one")
        init(self, *args, **keywords)

    handle_class.__init__ = init_once
