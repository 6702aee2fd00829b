"""An extent: one piece of a disk file, and the memory to copy from or to; what one system call moves."""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from .disk_file import DIRECT_ALIGNMENT, DiskFile
from .file_port import MAX_MEMORY_PIECES
from .slot_watch import SlotTicket

MAX_EXTENT_BYTES: Final = 1 << 20
"""Larger extents are split, so that several threads work on them."""


@final
class DiskExtent:
    """``[address, address + num_bytes)`` of the disk; ``addresses`` and ``sizes`` in memory, with as many bytes in total."""

    __slots__ = ("file", "address", "num_bytes", "addresses", "sizes", "ticket")

    def __init__(self, file: DiskFile, address: int) -> None:
        self.file: Final = file
        self.address: Final = address
        self.num_bytes = 0
        self.addresses = vec[i64]()
        self.sizes = vec[i64]()
        self.ticket: SlotTicket | None = None
        """The purpose of the write, for a watched file."""

    def takes(self, address: int, num_bytes: int) -> bool:
        """Whether these bytes of the disk are adjacent, and fit into the extent."""
        return (
            address == self.address + self.num_bytes
            and self.num_bytes + num_bytes <= MAX_EXTENT_BYTES
            and len(self.addresses) < MAX_MEMORY_PIECES
        )

    def add(self, memory: int, num_bytes: int) -> None:
        self.addresses = append(self.addresses, memory)
        self.sizes = append(self.sizes, num_bytes)
        self.num_bytes += num_bytes

    def place(self, memory: int) -> None:
        """Its one piece of memory is there."""
        addresses = self.addresses
        addresses[0] = memory

    def make_ready(self) -> None:
        """Planned by the caller: what is written is for what the file's watch says now."""
        watch = self.file.watch
        if watch is not None:
            self.ticket = watch.current_ticket()
        self.check_alignment()

    def check_alignment(self) -> None:
        """An extent not aligned for direct transfers makes its file use the page cache from now on."""
        if self.file.is_direct:
            misaligned: i64 = self.address - self.file.address
            for index in range(len(self.addresses)):
                misaligned |= self.addresses[index] | self.sizes[index]
            if misaligned % DIRECT_ALIGNMENT != 0:
                self.file.become_buffered()

    def tail(self, moved: int) -> "DiskExtent":
        """The rest of the extent after ``moved`` bytes, fewer than all."""
        left = DiskExtent(self.file, self.address + moved)
        for index in range(len(self.addresses)):
            size = int(self.sizes[index])
            if moved < size:
                left.add(int(self.addresses[index]) + moved, size - moved)
                moved = 0
            else:
                moved -= size
        return left
