"""What a disk job waits for, and what it tells, where the streams are not the host's: see `DiskWorkers`."""

from abc import ABCMeta, abstractmethod

from mypy_extensions import mypyc_attr


@mypyc_attr(native_class=True)
class JobGate(metaclass=ABCMeta):
    __slots__ = ()

    @abstractmethod
    def is_open(self) -> bool:
        """Whether the job may begin. Asked by worker threads, one at a time, until it is; what it raises fails the job."""


@mypyc_attr(native_class=True)
class JobSignal(metaclass=ABCMeta):
    __slots__ = ()

    @abstractmethod
    def give(self) -> None:
        """The job is done. Called once, by a worker thread; must not raise."""
