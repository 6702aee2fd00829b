"""Reading pages of a durable level and comparing them with their checksums, without a manager."""

import errno
import os
from typing import Final, final


from ..device.checksum import hash_bytes
from ..device.file_bytes import read_range
from ..device.file_port import FilePort
from ..device.slot_watch import CHUNK_BYTES
from ..device.striped_files import StripedFiles
from .folder_contents import FolderContents
from .stored_index import StoredPage


@final
class SlotCheck:
    """The data files of a folder. The caller has locked it, and closes this."""

    __slots__ = ("_files", "_contents", "_open")

    def __init__(self, files: FilePort, contents: FolderContents) -> None:
        self._files: Final = files
        self._contents: Final = contents
        self._open: Final[dict[tuple[int, int], tuple[FilePort, int]]] = {}
        """By pool group and pool; -1 for a file that is not there."""

    def find_fault(self, pool_group: int, slot: int, page: StoredPage) -> str:
        """The fault of the page in that slot; empty if there is none."""
        if pool_group >= len(self._contents.slot_bytes):
            return f"there is no pool group {pool_group}"
        position = 0
        for pool, slot_bytes in enumerate(self._contents.slot_bytes[pool_group]):
            for begin in range(0, slot_bytes, CHUNK_BYTES):
                if position == len(page.checksums):
                    return "its record has too few checksums"
                fault = self._check_chunk(pool_group, pool, slot * slot_bytes + begin, min(CHUNK_BYTES, slot_bytes - begin), page, position)
                if fault:
                    return fault
                position += 1
        return "" if position == len(page.checksums) else "its record has too many checksums"

    def _check_chunk(self, pool_group: int, pool: int, offset: int, num_bytes: int, page: StoredPage, position: int) -> str:
        name = f"data-{pool_group}-{pool}"
        files, file = self._find_file(pool_group, pool, name)
        if file < 0:
            return f"{name} is not there"
        try:
            data = read_range(files, file, offset, num_bytes)
        except OSError as error:
            return f"{num_bytes} bytes at offset {offset} of {name} cannot be read: {os.strerror(error.errno or errno.EIO)}"
        if len(data) < num_bytes:
            return f"{name} ends before its slot"
        if hash_bytes(data) != page.checksums[position]:
            stripe = self._contents.stripe(self._contents.slot_bytes[pool_group][pool])
            path = name if stripe is None else stripe.path_at(name, offset)
            return f"{num_bytes} bytes at offset {offset} of {path} are not what was written"
        return ""

    def _find_file(self, pool_group: int, pool: int, name: str) -> tuple[FilePort, int]:
        place = (pool_group, pool)
        if place not in self._open:
            stripe = self._contents.stripe(self._contents.slot_bytes[pool_group][pool])
            files = self._files if stripe is None else StripedFiles(self._files, stripe)
            try:
                self._open[place] = files, files.open_named(os.path.join(self._contents.path, name), False)
            except FileNotFoundError:
                self._open[place] = files, -1
        return self._open[place]

    def close(self) -> None:
        for files, file in self._open.values():
            if file >= 0:
                files.close_file(file)
        self._open.clear()
