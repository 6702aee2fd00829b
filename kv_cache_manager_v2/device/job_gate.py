"""Flags of disk jobs: what a job waits for and what it raises, on devices whose streams are not the host's."""

from abc import ABCMeta, abstractmethod

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class JobFlag(metaclass=ABCMeta):
    """A flag that a stream raises before a job begins, or the job when it is done."""

    __slots__ = ()

    @abstractmethod
    def is_raised(self) -> bool:
        """Whether the job that waits for it may begin. Called by worker threads, one at a time, until it is; calls no driver. An exception
        is the reason why the job never begins."""

    @abstractmethod
    def give(self) -> None:
        """Raise it: the job is done. Called once, by a worker thread; must not raise an exception."""


class GateWatch(metaclass=ABCMeta):
    """Detects that flags will never be raised. Called by the caller's thread while it waits for a job with gates."""

    __slots__ = ()

    @abstractmethod
    def find_obstacle(self) -> str:
        """The reason why flags that are not raised never will be; empty if they may."""
