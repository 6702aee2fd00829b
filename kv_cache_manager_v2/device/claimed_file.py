"""A file that one owner writes, from its beginning: no other owner of this process or another one may write it meanwhile.

The claim is a lock on the open file (`flock`), so another name of the file is no way in. It ends with `close`, or with the process. A
forked child closes its copy of the file, and so keeps no claim of its parent's. On a file system without such locks nothing is claimed, nor
is what is no regular file, such as a pipe or `/dev/null`.
"""

import errno
import fcntl
import os
import stat
from typing import final


from ..base.process_bound import ProcessBound, bind_to_process, release_from_process


@final
class ClaimedFile(ProcessBound):
    __slots__ = ("_file", "_is_locked")

    def __init__(self, path: str) -> None:
        """Makes the file, or empties it. `BlockingIOError`, and the file is as it was, where another owner writes it; `OSError`."""
        self._file: int = -1
        """-1 once it is closed."""
        self._is_locked = False
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if stat.S_ISREG(os.fstat(file).st_mode):
                self._is_locked = _try_lock(file)
                os.fchmod(file, 0o600)  # also of a file that was there: tokens will be in it
                os.ftruncate(file, 0)
            bind_to_process(self)
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def write(self, data: bytes) -> int:
        """How many of the bytes were written: all, or fewer."""
        return os.write(self._file, data)

    def close(self) -> None:
        """Others may write it from now on. Twice is fine. `OSError` if what was written may be lost; it is closed then, too."""
        file = self._file
        if file < 0:
            return
        self._file = -1
        release_from_process(self)
        try:
            if self._is_locked:
                # A child that was forked without Python's knowledge has a copy of the open file, which would keep the lock.
                fcntl.flock(file, fcntl.LOCK_UN)
        finally:
            os.close(file)

    def become_foreign(self) -> None:
        """The parent's claim stays: only the child's copy of the open file is closed."""
        file = self._file
        self._file = -1
        if file >= 0:
            os.close(file)


def _try_lock(file: int) -> bool:
    """False where the file system has no such locks; `BlockingIOError` where another owner has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
        return False
    return True
