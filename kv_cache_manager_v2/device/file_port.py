"""The port to the operating system's files: all that the disk tier asks of them, as calls on raw addresses.

Narrow, so that a test can put a disk in its place that is full, slow, or broken. Failures are `OSError` with their number;
what they mean is for the callers to say. `transfer` calls come from several threads at once, the others from one.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from typing import Final

from mypy_extensions import mypyc_attr

MAX_MEMORY_PIECES: Final = 512


@mypyc_attr(native_class=True, allow_interpreted_subclasses=True)
class FilePort(metaclass=ABCMeta):
    """Files are known by the number that `open_file` gives."""

    __slots__ = ()

    @abstractmethod
    def open_file(self, path: str, is_direct: bool) -> int:
        """A new empty file without a name in the folder ``path``; direct: past the page cache, or `OSError`."""

    @abstractmethod
    def close_file(self, file: int) -> None:
        """Close the file; its room on the disk is free."""

    @abstractmethod
    def become_buffered(self, file: int) -> None:
        """From now on transfers go through the page cache, and nothing needs to be aligned."""

    @abstractmethod
    def grow(self, file: int, offset: int, num_bytes: int) -> None:
        """Have room on the disk for these bytes, all of it or nothing."""

    @abstractmethod
    def give_back(self, file: int, offset: int, num_bytes: int, is_last: bool) -> None:
        """The room of these bytes is needed no more; ``is_last``: the file has nothing behind them."""

    @abstractmethod
    def free_bytes(self, path: str) -> int:
        """How much room the file system of that folder has left."""

    @abstractmethod
    def transfer(
        self, file: int, is_write: bool, addresses: Sequence[int], sizes: Sequence[int], offset: int
    ) -> int:
        """One piece of the file, to be read to or written from several pieces of memory, one after the other.

        Returns how many bytes were moved, perhaps fewer than asked for. At most `MAX_MEMORY_PIECES`. Other threads run
        meanwhile.
        """
