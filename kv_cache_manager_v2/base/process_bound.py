"""Resources that a forked child must leave alone: memory maps, files and worker threads belong to the parent.

`os.fork` copies every object, so the child's copies would release files that the parent still uses. The owner of such resources
registers here while it uses them, and is called in each forked child before any other code runs there.
"""

import os
from abc import ABCMeta, abstractmethod
from typing import Final



class ProcessBound(metaclass=ABCMeta):
    """An object that works only in the process that made it."""

    __slots__ = ()

    @abstractmethod
    def become_foreign(self) -> None:
        """Called in a forked child: this process does not own the resources."""


_bound: Final[list[ProcessBound]] = []


def bind_to_process(bound: ProcessBound) -> None:
    """Register: call `become_foreign` in forked children, until `release_from_process`."""
    _bound.append(bound)


def release_from_process(bound: ProcessBound) -> None:
    """Unregister. Calling it again does nothing."""
    for position, other in enumerate(_bound):
        if other is bound:
            del _bound[position]
            return


def _notify_child() -> None:
    for bound in _bound:
        bound.become_foreign()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_notify_child)
