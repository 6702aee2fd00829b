"""Named files that are only read: nothing is made, changed or removed, so it works on a folder that is not writable."""

import errno
import os
from collections.abc import Sequence
from typing import Final, final


from .file_lock import open_locked
from .file_port import FilePort
from .os_files import OsFiles
from .private_files import open_private


@final
class ReadOnlyFiles(FilePort):
    """Every call that would change something raises `OSError` with the number EROFS."""

    __slots__ = ("_files",)

    def __init__(self) -> None:
        self._files: Final = OsFiles()

    def open_named(self, path: str, is_direct: bool) -> int:
        return open_private(path, os.O_RDONLY, is_read_only=True)

    def close_file(self, file: int) -> None:
        self._files.close_file(file)

    def length(self, file: int) -> int:
        return self._files.length(file)

    def names(self, path: str) -> list[str]:
        return self._files.names(path)

    def lock(self, path: str) -> int:
        """The file must be there; otherwise as in the port."""
        return open_locked(path, os.O_RDONLY, is_read_only=True)

    def transfer(self, file: int, is_write: bool, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> int:
        if is_write:
            raise _refuse("")
        return self._files.transfer(file, False, addresses, sizes, offset)

    def free_bytes(self, path: str) -> int:
        return self._files.free_bytes(path)

    def open_file(self, path: str, is_direct: bool) -> int:
        raise _refuse(path)

    def become_buffered(self, file: int) -> None:
        raise _refuse("")

    def grow(self, file: int, offset: int, num_bytes: int) -> None:
        raise _refuse("")

    def discard(self, file: int, offset: int, num_bytes: int, is_last: bool) -> None:
        raise _refuse("")


def _refuse(path: str) -> OSError:
    return OSError(errno.EROFS, os.strerror(errno.EROFS), path)
