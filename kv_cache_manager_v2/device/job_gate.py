"""Gates and signals of disk jobs: what a job waits for and what it raises, on devices whose streams are not the host's."""

from abc import ABCMeta, abstractmethod

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class JobGate(metaclass=ABCMeta):
    __slots__ = ()

    @abstractmethod
    def is_open(self) -> bool:
        """Whether the job may begin. Called by worker threads, one at a time, until it is; calls no driver. An exception is the
        reason why the job never begins."""


class JobSignal(metaclass=ABCMeta):
    __slots__ = ()

    @abstractmethod
    def give(self) -> None:
        """Raise the signal: the job is done. Called once, by a worker thread; must not raise an exception."""


class GateWatch(metaclass=ABCMeta):
    """Detects that gates will never open. Called by the caller's thread while it waits for a job with gates."""

    __slots__ = ()

    @abstractmethod
    def find_obstacle(self) -> str:
        """The reason why closed gates will never open; empty if they may."""
