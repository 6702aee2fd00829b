"""One file of slots in several folders, as a file port that has just this file, of the number 0.

What `Stripe` says about offsets is carried out here; all else is the port below. A transfer ends where its bytes go on in another
folder, so it may move fewer bytes than it was asked for, as any transfer may.
"""

import os
from collections.abc import Sequence
from typing import Final, final


from .file_port import FilePort
from .stripe import Stripe


@final
class StripedFiles(FilePort):
    """See the module. ``path`` of `open_named`: the file in the first folder; its name is the same in all."""

    __slots__ = ("_port", "_stripe", "_parts", "_name")

    def __init__(self, port: FilePort, stripe: Stripe) -> None:
        self._port: Final = port
        self._stripe: Final = stripe
        self._parts: list[int] = []
        self._name = ""

    def open_named(self, path: str, is_direct: bool) -> int:
        self._name = os.path.basename(path)
        parts: list[int] = []
        try:
            for folder in self._stripe.folders:
                parts.append(self._port.open_named(os.path.join(folder, self._name), is_direct))
        except BaseException:
            for part in parts:
                self._port.close_file(part)
            raise
        self._parts = parts
        return 0

    def open_file(self, path: str, is_direct: bool) -> int:
        raise AssertionError("a file without a name in several folders")

    def close_file(self, file: int) -> None:
        while self._parts:
            self._port.close_file(self._parts.pop())

    def become_buffered(self, file: int) -> None:
        for part in self._parts:
            self._port.become_buffered(part)

    def length(self, file: int) -> int:
        return min([self._stripe.first_missing(index, self._port.length(part)) for index, part in enumerate(self._parts)])

    def grow(self, file: int, offset: int, num_bytes: int) -> None:
        """A folder that is full leaves the others as long as they are by then: the next process uses that space or frees it."""
        for index, part in enumerate(self._parts):
            beg = self._stripe.count_bytes(index, offset)
            end = self._stripe.count_bytes(index, offset + num_bytes)
            beg = max(beg, min(self._port.length(part), end))
            if end > beg:
                try:
                    self._port.grow(part, beg, end - beg)
                except OSError as error:
                    path = os.path.join(self._stripe.folders[index], self._name)
                    raise OSError(error.errno, error.strerror, path) from error

    def discard(self, file: int, offset: int, num_bytes: int, is_last: bool) -> None:
        assert is_last, "a hole in a file that outlives the process"
        for index, part in enumerate(self._parts):
            beg = self._stripe.count_bytes(index, offset)
            length = self._port.length(part)
            if length > beg:
                self._port.discard(part, beg, length - beg, True)

    def free_bytes(self, path: str) -> int:
        """As many as the whole file can grow by: the folder with the least room decides."""
        folders = self._stripe.folders
        return min([self._port.free_bytes(folder) for folder in folders]) * len(folders)

    def sync(self, file: int) -> None:
        for part in self._parts:
            self._port.sync(part)

    def transfer(self, file: int, is_write: bool, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> int:
        part, there, room = self._stripe.find(offset)
        if sum(sizes) <= room:
            return self._port.transfer(self._parts[part], is_write, addresses, sizes, there)
        pieces: list[int] = []
        for size in sizes:
            pieces.append(min(size, room))
            room -= pieces[-1]
            if room == 0:
                break
        return self._port.transfer(self._parts[part], is_write, list(addresses)[: len(pieces)], pieces, there)
