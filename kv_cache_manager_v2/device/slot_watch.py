"""Slot watch: what the worker threads ask and tell about the slots of a file that outlives the process.

A file of slots of equal size. Each slot is cut into *chunks* of `CHUNK_BYTES`, the last one shorter, and each chunk has a checksum: so
that the workers can check what they read while it is in their memory, in whatever pieces it comes. 0: no checksum is known.

    the caller's thread        a worker
    current_ticket, when a
    write is planned           begin_write, then the bytes, then end_write or fail_write; for reads `checksum_of` and report_mismatch

A *ticket* says what the writes of one batch are for. It travels with them, so that a write that never begins, or begins late, cannot be
taken for another one. What it says of a single slot is looked up by the worker, not by the caller.
"""

from abc import ABCMeta, abstractmethod
from typing import Final

from mypy_extensions import i64

from .file_port import FilePort
from .stripe import Stripe

CHUNK_BYTES: Final = 1 << 20
"""Equal to `MAX_EXTENT_BYTES`: no chunk is moved in two pieces."""


class SlotTicket:
    """The purpose of the writes of one batch."""

    __slots__ = ()


class SlotWatch(metaclass=ABCMeta):
    """``file``: the file's number at its port ``files``, once it is open, and ``path`` its path, in the first folder. ``stripe``: None for
    a file in one folder."""

    __slots__ = ("slot_bytes", "chunks_per_slot", "path", "file", "files", "stripe", "is_read_only")

    def __init__(self, slot_bytes: i64) -> None:
        self.slot_bytes: Final = slot_bytes
        self.chunks_per_slot: Final[i64] = (slot_bytes + CHUNK_BYTES - 1) // CHUNK_BYTES
        self.path = ""
        self.file: int = -1
        self.files: FilePort | None = None
        self.stripe: Stripe | None = None
        self.is_read_only = False
        """The file is opened for reading alone, and has to be there."""

    def sync(self) -> None:
        """Return once all bytes that were written to the slots before this call would survive a power failure."""
        if self.files is not None:
            self.files.sync(self.file)

    def chunk_end(self, offset: i64) -> i64:
        """The end of the chunk that has the byte at ``offset`` of the file."""
        slot_begin = offset // self.slot_bytes * self.slot_bytes
        end = slot_begin + ((offset - slot_begin) // CHUNK_BYTES + 1) * CHUNK_BYTES
        slot_end = slot_begin + self.slot_bytes
        return end if end < slot_end else slot_end

    def chunk_of(self, offset: i64) -> i64:
        """The number of the chunk, counted over all slots."""
        slot = offset // self.slot_bytes
        return slot * self.chunks_per_slot + (offset - slot * self.slot_bytes) // CHUNK_BYTES

    @abstractmethod
    def current_ticket(self) -> SlotTicket | None:
        """The purpose of the writes that are being planned; None: for nothing that is kept."""

    @abstractmethod
    def begin_write(self, slot: i64) -> None:
        """The slot's bytes are about to change."""

    @abstractmethod
    def end_write(self, chunk: i64, checksum: i64, ticket: SlotTicket | None) -> None:
        """A chunk was written."""

    @abstractmethod
    def fail_write(self, chunk: i64, ticket: SlotTicket | None) -> None:
        """A chunk was not written, or not all of it."""

    @abstractmethod
    def checksum_of(self, chunk: i64) -> i64:
        """The checksum that the chunk should have."""

    @abstractmethod
    def report_mismatch(self, slot: i64) -> None:
        """A chunk of the slot was read, and is not what was written."""
