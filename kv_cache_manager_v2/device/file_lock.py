"""Locks of open files, held by this process alone: a forked child does not keep them.

A lock belongs to what was opened, and a child that `os.fork` makes has that open, too: it would keep the lock after its parent's end. So
each forked child closes its copies before any other code runs there, and `unlock_file` unlocks, whatever process still has it open.
"""

import errno
import fcntl
import os
from typing import Final, final


from ..base.process_bound import ProcessBound, bind_to_process
from .private_files import open_private

_held: Final[dict[int, int]] = {}
"""By file that a forked child closes its copy of: the process that has locked it, or 0."""


def keep_from_children(file: int) -> None:
    """A forked child closes its copy of the file. Until `unlock_file`."""
    _held.setdefault(file, 0)


def lock_file(file: int) -> None:
    """`BlockingIOError` if another process, or another manager of this one, has locked the file. Until `unlock_file`."""
    # First: a child that another thread forks meanwhile must know it.
    _held[file] = os.getpid()
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        del _held[file]
        if isinstance(error, PermissionError):  # the answer of some file systems, such as NFS
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
        raise


def open_locked(path: str, flags: int, is_read_only: bool = False) -> int:
    """A file of `open_private`, locked."""
    file = open_private(path, flags, is_read_only)
    try:
        lock_file(file)
    except OSError:
        os.close(file)
        raise
    return file


def unlock_file(file: int) -> None:
    """Before it is closed; nothing for a file that this process has not locked."""
    if _held.pop(file, 0) == os.getpid():
        fcntl.flock(file, fcntl.LOCK_UN)


@final
class _HeldFiles(ProcessBound):
    """All that this process has locked, or keeps from its children."""

    __slots__ = ()

    def become_foreign(self) -> None:
        """Close the copies of the parent's files. Their numbers stay taken: what the child still closes is no other file."""
        if len(_held) == 0:
            return
        nothing = -1
        try:
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            pass
        for file in list(_held):
            try:
                if nothing >= 0:
                    os.dup2(nothing, file, False)
                else:
                    os.close(file)
            except OSError:
                pass
        _held.clear()
        if nothing >= 0:
            os.close(nothing)


bind_to_process(_HeldFiles())
