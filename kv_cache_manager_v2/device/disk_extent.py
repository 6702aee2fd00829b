"""An extent: one piece of a disk file, and the memory to copy from or to; what one system call moves."""

from typing import Final, final

from mypy_extensions import mypyc_attr

from .disk_file import DIRECT_ALIGNMENT, DiskFile
from .file_port import MAX_MEMORY_PIECES
from .slot_watch import SlotTicket

MAX_EXTENT_BYTES: Final = 1 << 20
"""Larger extents are split, so that several threads work on them."""


@final
@mypyc_attr(native_class=True)
class DiskExtent:
    """``[address, address + num_bytes)`` of the disk; ``addresses`` and ``sizes`` in memory, with as many bytes in total."""

    __slots__ = ("file", "address", "num_bytes", "addresses", "sizes", "tickets")

    file: Final[DiskFile]
    address: Final[int]
    num_bytes: int
    addresses: Final[list[int]]
    sizes: Final[list[int]]
    tickets: list[SlotTicket | None]
    """Of a watched file: what the write of each chunk is for."""

    def __init__(self, file: DiskFile, address: int) -> None:
        self.file = file
        self.address = address
        self.num_bytes = 0
        self.addresses = []
        self.sizes = []
        self.tickets = []

    def takes(self, address: int, num_bytes: int) -> bool:
        """Whether these bytes of the disk are adjacent, and fit into the extent."""
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
        """Check the alignment: an extent not aligned for direct transfers makes its file use the page cache from now on."""
        watch = self.file.watch
        if watch is not None:
            offset = self.address - self.file.address
            end = offset + self.num_bytes
            while offset < end:
                self.tickets.append(watch.ticket_of(offset // watch.slot_bytes))
                offset = int(watch.chunk_end(offset))
        if self.file.is_direct:
            misaligned = self.address - self.file.address
            for index in range(len(self.addresses)):
                misaligned |= self.addresses[index] | self.sizes[index]
            if misaligned % DIRECT_ALIGNMENT != 0:
                self.file.become_buffered()

    def tail(self, moved: int) -> "DiskExtent":
        """The rest of the extent after ``moved`` bytes, fewer than all."""
        left = DiskExtent(self.file, self.address + moved)
        for index in range(len(self.addresses)):
            size = self.sizes[index]
            if moved < size:
                left.add(self.addresses[index] + moved, size - moved)
                moved = 0
            else:
                moved -= size
        return left
