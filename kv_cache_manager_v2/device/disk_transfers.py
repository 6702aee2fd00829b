"""Transfers of extents from and to disk files: short ones are continued, interrupted ones repeated.

Called by worker threads, whose only shared state is the `FailedWrites`. Errors are returned, not raised.
"""

import errno
import os
from typing import Final, final


from ..base.errors import StorageIOError
from .disk_extent import DiskExtent
from .failed_writes import FailedWrites
from .watched_slots import begin_write, end_write, fail_write, find_mismatches

_MAX_RETRIES: Final = 1000


@final
class DiskTransfers:
    """Reads and writes of extents; see the module's docstring."""

    __slots__ = ("rescued",)

    def __init__(self) -> None:
        self.rescued: Final = FailedWrites()

    def read_and_verify(self, extent: DiskExtent) -> list[StorageIOError]:
        """All that is wrong with the bytes: an error for each piece of memory that they do not come to."""
        error = self.read(extent)
        if error is not None:
            return [error] if len(extent.addresses) == 1 else self._read_pieces(extent)
        watch = extent.file.watch
        return [] if watch is None else find_mismatches(extent, watch)

    def _read_pieces(self, extent: DiskExtent) -> list[StorageIOError]:
        """A read of several pages has failed: read each of them alone, so that only those are lost that cannot be read."""
        errors: list[StorageIOError] = []
        address = extent.address
        for index in range(len(extent.addresses)):
            piece = DiskExtent(extent.file, address)
            piece.add(extent.addresses[index], extent.sizes[index])
            piece.make_ready()
            errors.extend(self.read_and_verify(piece))
            address += extent.sizes[index]
        return errors

    def read(self, extent: DiskExtent) -> StorageIOError | None:
        if self.rescued.is_empty:
            return _read(extent)
        if self.rescued.has_lost(extent.address, extent.num_bytes):
            return extent.file.make_error(
                f"cannot read {extent.num_bytes} bytes", extent.address, extent.num_bytes, False, "they were never written"
            )
        # A rare case, so speed does not matter: each piece of memory by itself, in part from the table.
        address = extent.address
        for index in range(len(extent.addresses)):
            memory: int = extent.addresses[index]
            for beg, end in self.rescued.load(address, memory, extent.sizes[index]):
                missing = DiskExtent(extent.file, beg)
                missing.add(memory + beg - address, end - beg)
                missing.make_ready()
                error = _read(missing)
                if error is not None:
                    return error
            address += extent.sizes[index]
        return None

    def lose(self, extent: DiskExtent, reason: str) -> StorageIOError:
        """Mark the write as never made: later reads of these bytes fail; returns the error of the write."""
        self.rescued.lose(extent.address, extent.num_bytes)
        if extent.file.watch is not None:
            fail_write(extent, extent.file.watch)
        return extent.file.make_error(f"{extent.num_bytes} bytes were never written", extent.address, extent.num_bytes, True, reason)

    def write(self, extent: DiskExtent) -> StorageIOError | None:
        """Write an extent. Bytes that the disk does not accept are kept in memory."""
        watch = extent.file.watch
        if watch is not None:
            begin_write(extent, watch)
        moved, reason = _transfer(extent, True)
        self.rescued.forget(extent.address, moved)
        if moved == extent.num_bytes:
            if watch is not None:
                end_write(extent, watch)
            return None
        if watch is not None:
            fail_write(extent, watch)
        lost = extent.tail(moved)
        address = lost.address
        for index in range(len(lost.addresses)):
            self.rescued.keep(address, lost.addresses[index], lost.sizes[index])
            address += lost.sizes[index]
        return extent.file.make_error(f"cannot write {extent.num_bytes} bytes", extent.address, extent.num_bytes, True, reason)


def _read(extent: DiskExtent) -> StorageIOError | None:
    moved, reason = _transfer(extent, False)
    if moved == extent.num_bytes:
        return None
    return extent.file.make_error(f"cannot read {extent.num_bytes} bytes", extent.address, extent.num_bytes, False, reason)


def _transfer(extent: DiskExtent, is_write: bool) -> tuple[int, str]:
    """The number of bytes moved, and the reason if not all were."""
    file = extent.file
    left = extent
    moved = 0
    num_retries = 0
    while moved < extent.num_bytes:
        # Read first: another thread may make the file buffered while this transfer is refused.
        was_direct = file.is_direct
        count = _try_transfer(left, is_write)
        if count > 0:
            moved += count
            num_retries = 0
            if moved < extent.num_bytes:
                left = extent.tail(moved)
        elif count == 0:
            return moved, f"only {moved} of {extent.num_bytes} bytes could be moved, and no reason was given"
        elif count == -errno.EINVAL and was_direct:
            # The disk needs more alignment than we know of, or a short transfer has lost it.
            file.become_buffered()
        elif (count == -errno.EINTR or count == -errno.EAGAIN) and num_retries < _MAX_RETRIES:
            num_retries += 1
        else:
            return moved, f"{os.strerror(-count)} (errno {-count}) after {moved} bytes"
    return moved, ""


def _try_transfer(extent: DiskExtent, is_write: bool) -> int:
    """The number of bytes moved, or the negative error number."""
    file = extent.file
    try:
        return file.files.transfer(
            file.file,
            is_write,
            [int(memory) for memory in extent.addresses],
            [int(size) for size in extent.sizes],
            extent.address - file.address,
        )
    except OSError as error:
        return -(error.errno or errno.EIO)
