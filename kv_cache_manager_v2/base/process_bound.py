"""What a process made and its forked children must leave alone: memory maps, files and worker threads are the parent's.

`os.fork` copies every object, and with them the right to give files back that the parent still uses. So whoever guards such things
is listed here while they are in use, and is told in each child, before any other code runs there.
"""

import os
from abc import ABCMeta, abstractmethod
from typing import Final

from mypy_extensions import mypyc_attr


@mypyc_attr(native_class=True)
class ProcessBound(metaclass=ABCMeta):
    """Something that works in the process that made it only."""

    __slots__ = ()

    @abstractmethod
    def become_foreign(self) -> None:
        """This process is a fork of the one that made it."""


_bound: Final[list[ProcessBound]] = []


def bind_to_process(bound: ProcessBound) -> None:
    """Tell it of forks from here on; `release_from_process` ends that."""
    _bound.append(bound)


def release_from_process(bound: ProcessBound) -> None:
    """Once is enough, more often is fine."""
    for position, other in enumerate(_bound):
        if other is bound:
            del _bound[position]
            return


def _tell_child() -> None:
    for bound in _bound:
        bound.become_foreign()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_child)
