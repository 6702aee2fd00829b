"""One range of the DISK tier: a file, and the addresses of its bytes.

``address + n`` is byte ``n`` of the file. A file that bypasses the page cache (`is_direct`) may change to using it, once: the first
transfer that is not aligned, and every later one, uses the cache. So the two ways never access one block of the disk at the same
time.

A file with a `SlotWatch` has a name and outlives the process: what it has when it is opened stays, and unmapping frees nothing.
"""

import errno
import os
from typing import Final, final


from ..base.errors import OutOfMemoryError, StorageIOError
from ..base.package_log import PackageLog
from .file_port import FilePort
from .interval_set import IntervalSet
from .read_only_files import ReadOnlyFiles
from .slot_watch import SlotWatch
from .striped_files import StripedFiles

DIRECT_ALIGNMENT: Final = 4096
"""Memory, offsets and lengths of direct transfers are multiples of this."""

_NO_DIRECT_FILES: Final = (errno.EINVAL, errno.EOPNOTSUPP)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_logger: Final = PackageLog(__name__)


@final
class DiskFile:
    """The file's space; `DiskTransfers` moves its bytes. Who creates it calls `close`."""

    __slots__ = ("path", "address", "num_bytes", "files", "file", "is_direct", "failure", "watch")

    def __init__(self, files: FilePort, path: str, address: int, num_bytes: int, watch: SlotWatch | None = None) -> None:
        """``path``: a folder; with ``watch`` the file's own path."""
        self.watch: Final = watch
        self.path: Final = path
        self.address: Final = address
        self.num_bytes: Final = num_bytes
        if watch is not None and watch.is_read_only:
            files = ReadOnlyFiles()
        if watch is not None and watch.stripe is not None:
            files = StripedFiles(files, watch.stripe)
        self.files: Final[FilePort] = files
        self.failure: StorageIOError | None = None  # of the first write that failed
        self.is_direct = True
        try:
            is_read_only = watch is not None and watch.is_read_only
            # Through the page cache, as the port for reading knows no other way.
            file = -1 if is_read_only else _try_open_direct(files, path, watch is not None)
            if file < 0:
                self.is_direct = False
                file = files.open_file(path, False) if watch is None else files.open_named(path, False)
        except OSError as error:
            if watch is None and not os.path.isdir(path):
                way_out = "it is a file: name a folder" if os.path.exists(path) else "create it first"
                raise ValueError(f"there is no folder {path!r} for the files of the DISK tier; {way_out}") from error
            raise StorageIOError(
                f"cannot create a file of the DISK tier in {path}: {error}; check the folder's permissions, or choose another one",
                path,
                address,
            ) from error
        self.file: Final[int] = file
        if watch is not None:
            watch.path = path
            watch.files = files
            watch.file = file

    def end(self) -> int:
        return self.address + self.num_bytes

    def become_buffered(self) -> None:
        if self.is_direct:
            self.files.become_buffered(self.file)
            self.is_direct = False

    def grow(self, address: int, num_bytes: int) -> None:
        """Allocate all of it or nothing."""
        if self.watch is not None and self.watch.is_read_only:
            return
        try:
            if self.watch is not None:
                old_bytes = self.files.length(self.file)
                end = address - self.address + num_bytes
                if old_bytes >= end:
                    if old_bytes > end:
                        # The level had a larger quota in the last process.
                        self.files.discard(self.file, end, old_bytes - end, True)
                    return
                address += max(old_bytes - (end - num_bytes), 0)
                num_bytes = end - (address - self.address)
            free_bytes = self.files.free_bytes(self.path)
            if free_bytes < num_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.files.grow(self.file, address - self.address, num_bytes)
        except OSError as error:
            if error.errno in _FULL:
                raise OutOfMemoryError(
                    f"no room for {num_bytes} bytes of the DISK tier in {error.filename or self.path}: {error.strerror};"
                    f" {self._describe_free_bytes()} are free; lower the tier's quota, or {_way_out(error.errno)}"
                ) from error
            raise self.make_error(f"cannot grow the file by {num_bytes} bytes", address, num_bytes, True, error) from error

    def discard(self, address: int, num_bytes: int, mapped: IntervalSet) -> None:
        """Free the space of these bytes. ``mapped``: the file's mapped bytes, these included."""
        if self.watch is not None:
            return
        end = address + num_bytes
        is_last = mapped.end(len(mapped) - 1) == end
        offset = address - self.address
        if is_last and mapped.beg(len(mapped) - 1) == address:
            # The hole in front of them is freed too.
            offset = mapped.end(len(mapped) - 2) - self.address if len(mapped) > 1 else 0
            num_bytes = end - self.address - offset
        try:
            self.files.discard(self.file, offset, num_bytes, is_last)
        except OSError as error:
            raise self.make_error(f"cannot free {num_bytes} bytes of the file", address, num_bytes, True, error) from error

    def begins_unit(self, address: int) -> bool:
        """Whether the bytes before that address may lie in another folder."""
        return self.watch is not None and self.watch.stripe is not None and (address - self.address) % self.watch.stripe.slot_bytes == 0

    def path_at(self, address: int) -> str:
        """The folder or file that has that byte."""
        if self.watch is None or self.watch.stripe is None:
            return self.path
        return self.watch.stripe.path_at(os.path.basename(self.path), address - self.address)

    def close(self) -> None:
        try:
            self.files.close_file(self.file)
        except OSError as error:
            # It is closed nevertheless, and its bytes are no longer needed.
            _logger.warning("closing a file of the DISK tier in %s: %s", self.path, error)

    def make_error(self, what: str, address: int, num_bytes: int, is_write: bool, reason: OSError | str) -> StorageIOError:
        text = reason if isinstance(reason, str) else f"{os.strerror(reason.errno or 0)} (errno {reason.errno})"
        path = self.path_at(address)
        return StorageIOError(
            f"{what} of the DISK tier in {path} at offset {address - self.address}: {text}", path, address, num_bytes, is_write
        )

    def _describe_free_bytes(self) -> str:
        try:
            return str(self.files.free_bytes(self.path))
        except OSError:
            return "an unknown number"


def _try_open_direct(files: FilePort, path: str, is_named: bool) -> int:
    """The opened file; -1 if the file system has no direct transfers."""
    try:
        return files.open_named(path, True) if is_named else files.open_file(path, True)
    except OSError as error:
        if error.errno in _NO_DIRECT_FILES:
            return -1
        raise


def _way_out(number: int | None) -> str:
    return "raise the largest size of a file, `ulimit -f`" if number == errno.EFBIG else "free space on the disk"
