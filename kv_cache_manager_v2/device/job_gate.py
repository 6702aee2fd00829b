"""What a disk job waits for, and what it tells, where the streams are not the host's: see `DiskWorkers`."""

from abc import ABCMeta, abstractmethod

from mypy_extensions import mypyc_attr


@mypyc_attr(native_class=True, allow_interpreted_subclasses=True)
class JobGate(metaclass=ABCMeta):
    __slots__ = ()

    @abstractmethod
    def is_open(self) -> bool:
        """Whether the job may begin. Asked by worker threads, one at a time, until it is; calls no driver. What it raises is the
        reason why the job never begins."""


@mypyc_attr(native_class=True)
class JobSignal(metaclass=ABCMeta):
    __slots__ = ()

    @abstractmethod
    def give(self) -> None:
        """The job is done. Called once, by a worker thread; must not raise."""


@mypyc_attr(native_class=True)
class GateWatch(metaclass=ABCMeta):
    """Asked by the caller's thread while it waits for a job with gates: what opens them may be broken for good."""

    __slots__ = ()

    @abstractmethod
    def find_obstacle(self) -> str:
        """Why gates that are not open by now will never be; empty if they may."""
