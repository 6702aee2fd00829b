"""Signatures of classes for `inspect`, where Python finds none itself."""

import inspect
import sys
from collections.abc import Iterable
from types import MethodDescriptorType
from typing import Any, Final, final


_FIRST_PYTHON: Final = (3, 13)


@final
class ClassSignature:
    """The ``__signature__`` of a class whose `__init__` is compiled, and of those derived from it that have no other.

    From Python 3.13 on `inspect.signature` takes a compiled `__init__` for a function of Python, and raises a `TypeError`.
    """

    __slots__ = ()

    def __get__(self, instance: object, owner: Any) -> inspect.Signature:
        if instance is not None or not isinstance(owner.__init__, MethodDescriptorType):
            raise AttributeError("__signature__")
        signature = inspect.signature(owner.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def give_signatures(values: Iterable[object]) -> None:
    """To the classes among them, where they need it."""
    if sys.version_info < _FIRST_PYTHON:
        return
    for value in values:
        if isinstance(value, type) and isinstance(getattr(value, "__init__"), MethodDescriptorType):
            setattr(value, "__signature__", ClassSignature())
