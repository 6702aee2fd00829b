"""The clock of statistics. No decision depends on it."""

from abc import ABCMeta, abstractmethod
from typing import ClassVar

from mypy_extensions import mypyc_attr

from ..base.handle import Handle


@mypyc_attr(allow_interpreted_subclasses=True)
class StatisticsClock(Handle, metaclass=ABCMeta):
    """A source of time: replace it in tests, or with the engine's own."""

    __slots__ = ()

    _NAMES: ClassVar[str] = "a clock of this process"

    @abstractmethod
    def seconds(self) -> float:
        """Seconds since any fixed moment; never decreases."""
        raise NotImplementedError("StatisticsClock.seconds is for subclasses to define")
