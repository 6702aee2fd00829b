"""One piece of one disk file and the pieces of memory that its bytes come from or go to: what one system call moves."""

from typing import Final, final

from mypy_extensions import mypyc_attr

from .disk_file import DIRECT_ALIGNMENT, DiskFile
from .file_port import MAX_MEMORY_PIECES

MAX_EXTENT_BYTES: Final = 1 << 20
"""More than this is moved in several pieces, so that several threads work on it."""


@final
@mypyc_attr(native_class=True)
class DiskExtent:
    """``[address, address + num_bytes)`` of the disk; ``addresses`` and ``sizes`` of memory, together as many bytes."""

    __slots__ = ("file", "address", "num_bytes", "addresses", "sizes")

    file: Final[DiskFile]
    address: Final[int]
    num_bytes: int
    addresses: Final[list[int]]
    sizes: Final[list[int]]

    def __init__(self, file: DiskFile, address: int) -> None:
        self.file = file
        self.address = address
        self.num_bytes = 0
        self.addresses = []
        self.sizes = []

    def takes(self, address: int, num_bytes: int) -> bool:
        """Whether these bytes of the disk follow on, and are not too many."""
        return (
            address == self.address + self.num_bytes
            and self.num_bytes + num_bytes <= MAX_EXTENT_BYTES
            and len(self.addresses) < MAX_MEMORY_PIECES
        )

    def add(self, memory: int, num_bytes: int) -> None:
        self.addresses.append(memory)
        self.sizes.append(num_bytes)
        self.num_bytes += num_bytes

    def make_ready(self) -> None:
        """Where something is not aligned as direct transfers want it, the file goes through the page cache from now on."""
        if self.file.is_direct:
            misaligned = self.address - self.file.address
            for index in range(len(self.addresses)):
                misaligned |= self.addresses[index] | self.sizes[index]
            if misaligned % DIRECT_ALIGNMENT != 0:
                self.file.become_buffered()

    def tail(self, moved: int) -> "DiskExtent":
        """What is left when ``moved`` bytes, fewer than all, are done."""
        left = DiskExtent(self.file, self.address + moved)
        for index in range(len(self.addresses)):
            size = self.sizes[index]
            if moved < size:
                left.add(self.addresses[index] + moved, size - moved)
                moved = 0
            else:
                moved -= size
        return left
