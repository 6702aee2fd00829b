"""A file that one owner writes, from its beginning: no other owner of this process or another one may write it meanwhile.

The claim is a lock on the open file (`flock`), so another name of the file is no way in. It ends with `close`, or with the process. A
forked child closes its copy of the file, and so keeps no claim of its parent's. On a file system without such locks nothing is claimed, nor
is what is no regular file, such as a pipe or `/dev/null`.
"""

import os
import stat
from typing import final

from .file_lock import keep_from_children, lock_file, unlock_file


@final
class ClaimedFile:
    __slots__ = ("_file",)

    def __init__(self, path: str) -> None:
        """Makes the file, or empties it. `BlockingIOError`, and the file is as it was, where another owner writes it; `OSError`."""
        self._file: int = -1
        """-1 once it is closed."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if stat.S_ISREG(os.fstat(file).st_mode):
                try:
                    lock_file(file)
                except BlockingIOError:
                    raise
                except OSError:  # the file system has no such locks
                    pass
                os.fchmod(file, 0o600)  # also of a file that was there: tokens will be in it
                os.ftruncate(file, 0)
            keep_from_children(file)
        except BaseException:
            unlock_file(file)
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
        try:
            unlock_file(file)
        finally:
            os.close(file)
