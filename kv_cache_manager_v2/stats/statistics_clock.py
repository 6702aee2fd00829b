"""Where statistics get the time from. No decision is made from it."""

from abc import ABCMeta, abstractmethod

from mypy_extensions import mypyc_attr


@mypyc_attr(native_class=True, allow_interpreted_subclasses=True)
class StatisticsClock(metaclass=ABCMeta):
    """Where the time comes from: replace it in tests, or where an engine has its own."""

    __slots__ = ()

    @abstractmethod
    def seconds(self) -> float:
        """Since any moment; never less than before."""
