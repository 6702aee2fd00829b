"""Where statistics get the time from. No decision is made from it."""

from abc import ABCMeta, abstractmethod
from typing import ClassVar

from mypy_extensions import mypyc_attr

from ..base.handle import Handle


@mypyc_attr(native_class=True, allow_interpreted_subclasses=True)
class StatisticsClock(Handle, metaclass=ABCMeta):
    """Where the time comes from: replace it in tests, or where an engine has its own."""

    __slots__ = ()

    _NAMES: ClassVar[str] = "a clock of this process"

    @abstractmethod
    def seconds(self) -> float:
        """Since any moment; never less than before."""
        raise NotImplementedError("StatisticsClock.seconds is for subclasses to define")
