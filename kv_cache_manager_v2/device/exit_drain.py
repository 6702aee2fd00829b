"""What worker threads have under way when the process ends: Python lets them go on until here, and stops them right after.

One function, registered with `atexit` when this module is imported, so that it is called after those that an engine registers. It waits
for what was begun, for a few seconds in all: a disk that answers no more must not keep a process. Afterwards, as Python takes itself apart,
the threads are gone and nobody waits for them.
"""

import atexit
import time
from abc import ABCMeta, abstractmethod
from typing import Final

from mypy_extensions import mypyc_attr

_EXIT_SECONDS: Final = 2.0


@mypyc_attr(native_class=True)
class Drained(metaclass=ABCMeta):
    """Something that has threads at work."""

    __slots__ = ()

    @abstractmethod
    def drain_until(self, deadline: float) -> None:
        """Wait until all that was begun is done, or it is later than this by `time.monotonic`. In a forked process: return at once."""


_drained: Final[list[Drained]] = []


def drain_at_exit(drained: Drained) -> None:
    """From here on; `forget_at_exit` ends that."""
    _drained.append(drained)


def forget_at_exit(drained: Drained) -> None:
    """Once is enough, more often is fine."""
    for position, other in enumerate(_drained):
        if other is drained:
            del _drained[position]
            return


def _drain_all() -> None:
    deadline = time.monotonic() + _EXIT_SECONDS
    for drained in list(_drained):
        drained.drain_until(deadline)


atexit.register(_drain_all)
