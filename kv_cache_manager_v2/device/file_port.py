"""The port to the operating system's files: all calls that the disk tier makes, on raw addresses.

Narrow, so that a test can replace the disk by one that is full, slow, or broken. Failures are `OSError` with their number;
callers interpret them. `transfer` and `sync` are called by several threads at once, the other methods by one at a time.

The methods from `open_named` on are for files that outlive the process. A port without them has no durable level: they raise
`OSError` with the number EOPNOTSUPP.
"""

import errno
import os
from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final

from mypy_extensions import mypyc_attr

from ..base.handle import Handle

MAX_MEMORY_PIECES: Final = 512


@mypyc_attr(allow_interpreted_subclasses=True)
class FilePort(Handle, metaclass=ABCMeta):
    """Files, named by the number that `open_file` returns."""

    __slots__ = ()

    _NAMES: ClassVar[str] = "open files of this process"

    @abstractmethod
    def open_file(self, path: str, is_direct: bool) -> int:
        """Open a new empty file without a name in the folder ``path``; direct: bypassing the page cache, or `OSError`."""
        raise NotImplementedError("FilePort.open_file is for subclasses to define")

    @abstractmethod
    def close_file(self, file: int) -> None:
        """Close the file; its space on the disk is freed."""
        raise NotImplementedError("FilePort.close_file is for subclasses to define")

    @abstractmethod
    def become_buffered(self, file: int) -> None:
        """Use the page cache for transfers from now on; nothing needs to be aligned then."""
        raise NotImplementedError("FilePort.become_buffered is for subclasses to define")

    @abstractmethod
    def grow(self, file: int, offset: int, num_bytes: int) -> None:
        """Allocate disk space for these bytes, all of it or nothing."""
        raise NotImplementedError("FilePort.grow is for subclasses to define")

    @abstractmethod
    def discard(self, file: int, offset: int, num_bytes: int, is_last: bool) -> None:
        """Free the disk space of these bytes; ``is_last``: they are the file's last ones."""
        raise NotImplementedError("FilePort.discard is for subclasses to define")

    @abstractmethod
    def free_bytes(self, path: str) -> int:
        """The free bytes of the folder's file system."""
        raise NotImplementedError("FilePort.free_bytes is for subclasses to define")

    @abstractmethod
    def transfer(self, file: int, is_write: bool, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> int:
        """Read one piece of the file into several pieces of memory, one after another, or write it from them.

        Returns how many bytes were moved, perhaps fewer than requested. At most `MAX_MEMORY_PIECES`. Releases the GIL
        meanwhile.
        """
        raise NotImplementedError("FilePort.transfer is for subclasses to define")

    # -- files that outlive the process -------------------------------------------------------------------------------

    def open_named(self, path: str, is_direct: bool) -> int:
        """Open the file of that name for reading and writing, made if it is not there; direct: as in `open_file`."""
        raise _no_named_files(path)

    def length(self, file: int) -> int:
        """The file's bytes."""
        raise _no_named_files("")

    def sync(self, file: int) -> None:
        """Return once all bytes that were written to the file before this call would survive a power failure."""
        raise _no_named_files("")

    def sync_folder(self, path: str) -> None:
        """`sync` for the names in a folder."""
        raise _no_named_files(path)

    def make_folder(self, path: str) -> None:
        """Make the folder if it is not there; its parent is."""
        raise _no_named_files(path)

    def remove_folder(self, path: str) -> None:
        """Remove the folder, which is empty."""
        raise _no_named_files(path)

    def names(self, path: str) -> list[str]:
        """The names in a folder, in any order."""
        raise _no_named_files(path)

    def rename(self, path: str, new_path: str) -> None:
        """Give the file another name, at once; a file that had that name is gone."""
        raise _no_named_files(path)

    def remove(self, path: str) -> None:
        """Remove the file."""
        raise _no_named_files(path)

    def lock(self, path: str) -> int:
        """Open and lock the file, made if it is not there, until `close_file` or the end of the process; `BlockingIOError` if another
        process, or another manager of this one, has locked it."""
        raise _no_named_files(path)


def _no_named_files(path: str) -> OSError:
    return OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
