"""The port to the operating system's files: all that the disk tier asks of them, as calls on raw addresses.

Narrow, so that a test can put a disk in its place that is full, slow, or broken. Failures are `OSError` with their number;
what they mean is for the callers to say. `transfer` calls come from several threads at once, the others from one.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final

from mypy_extensions import mypyc_attr

from ..base.handle import Handle

MAX_MEMORY_PIECES: Final = 512


@mypyc_attr(native_class=True, allow_interpreted_subclasses=True)
class FilePort(Handle, metaclass=ABCMeta):
    """Files are known by the number that `open_file` gives."""

    __slots__ = ()

    _NAMES: ClassVar[str] = "open files of this process"

    @abstractmethod
    def open_file(self, path: str, is_direct: bool) -> int:
        """A new empty file without a name in the folder ``path``; direct: past the page cache, or `OSError`."""
        raise NotImplementedError("FilePort.open_file is for subclasses to define")

    @abstractmethod
    def close_file(self, file: int) -> None:
        """Close the file; its room on the disk is free."""
        raise NotImplementedError("FilePort.close_file is for subclasses to define")

    @abstractmethod
    def become_buffered(self, file: int) -> None:
        """From now on transfers go through the page cache, and nothing needs to be aligned."""
        raise NotImplementedError("FilePort.become_buffered is for subclasses to define")

    @abstractmethod
    def grow(self, file: int, offset: int, num_bytes: int) -> None:
        """Have room on the disk for these bytes, all of it or nothing."""
        raise NotImplementedError("FilePort.grow is for subclasses to define")

    @abstractmethod
    def discard(self, file: int, offset: int, num_bytes: int, is_last: bool) -> None:
        """The room of these bytes is needed no more; ``is_last``: the file has nothing behind them."""
        raise NotImplementedError("FilePort.discard is for subclasses to define")

    @abstractmethod
    def free_bytes(self, path: str) -> int:
        """How much room the file system of that folder has left."""
        raise NotImplementedError("FilePort.free_bytes is for subclasses to define")

    @abstractmethod
    def transfer(
        self, file: int, is_write: bool, addresses: Sequence[int], sizes: Sequence[int], offset: int
    ) -> int:
        """One piece of the file, to be read to or written from several pieces of memory, one after the other.

        Returns how many bytes were moved, perhaps fewer than asked for. At most `MAX_MEMORY_PIECES`. Other threads run
        meanwhile.
        """
        raise NotImplementedError("FilePort.transfer is for subclasses to define")
