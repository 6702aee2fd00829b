"""A wait at process exit for work of worker threads: Python lets threads run until `atexit` functions, and stops them right after.

One function, registered with `atexit` when this module is imported, so that it is called after those that an engine registers. It
waits for all work that was begun, for a few seconds in all: a disk that does not answer must not keep a process alive. Afterwards, while
Python shuts down, the threads are gone and no call waits for them.
"""

import atexit
import time
from abc import ABCMeta, abstractmethod
from typing import Final


_EXIT_SECONDS: Final = 2.0


class Drained(metaclass=ABCMeta):
    """An object whose threads may be working at exit."""

    __slots__ = ()

    @abstractmethod
    def drain_until(self, deadline: float) -> None:
        """Wait until all begun work is done, or until ``deadline`` by `time.monotonic`. In a forked process: return at once."""


_drained: Final[list[Drained]] = []


def drain_at_exit(drained: Drained) -> None:
    """Wait for it at exit, until `forget_at_exit`."""
    _drained.append(drained)


def forget_at_exit(drained: Drained) -> None:
    """Do not wait for it at exit. Calling it again does nothing."""
    for position, other in enumerate(_drained):
        if other is drained:
            del _drained[position]
            return


def _drain_all() -> None:
    deadline = time.monotonic() + _EXIT_SECONDS
    for drained in list(_drained):
        drained.drain_until(deadline)


atexit.register(_drain_all)
