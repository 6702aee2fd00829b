"""Moving the bytes of disk files, to the last one: short transfers go on, interrupted ones are tried again.

Called by worker threads; the only state they share is the `RescueTable`. What goes wrong is returned, not raised. A direct
transfer needs aligned memory: where a caller's is not, the bytes go through the worker's own `Staging`.
"""

import ctypes
import errno
import os
from typing import Final, final

from mypy_extensions import mypyc_attr

from ..base.errors import StorageIOError
from .disk_file import DIRECT_ALIGNMENT, DiskFile
from .host_memory import PAGE_BYTES, commit_memory, decommit_memory, release_addresses, reserve_addresses
from .rescue_table import RescueTable

MAX_TRANSFER_BYTES: Final = 1 << 20
"""More than this is moved in several pieces, so that several threads work on it."""

_MAX_RETRIES: Final = 1000


@final
@mypyc_attr(native_class=True)
class Staging:
    """Aligned memory for one piece, taken from the operating system when first needed. One per worker."""

    __slots__ = ("_address",)

    _address: int

    def __init__(self) -> None:
        self._address = 0

    def address(self) -> int:
        if self._address == 0:
            address = reserve_addresses(MAX_TRANSFER_BYTES, max(PAGE_BYTES, DIRECT_ALIGNMENT))
            commit_memory(address, MAX_TRANSFER_BYTES)
            self._address = address
        return self._address

    def close(self) -> None:
        if self._address != 0:
            decommit_memory(self._address, MAX_TRANSFER_BYTES)
            release_addresses(self._address, MAX_TRANSFER_BYTES)
            self._address = 0


@final
@mypyc_attr(native_class=True)
class DiskTransfers:
    """See the module's docstring."""

    __slots__ = ("rescued",)

    rescued: Final[RescueTable]

    def __init__(self) -> None:
        self.rescued = RescueTable()

    def read(
        self, file: DiskFile, address: int, memory: int, num_bytes: int, staging: Staging
    ) -> StorageIOError | None:
        """Up to `MAX_TRANSFER_BYTES`."""
        if self.rescued.is_empty:
            return _read(file, address, memory, num_bytes, staging)
        for beg, end in self.rescued.load(address, memory, num_bytes):
            if beg % DIRECT_ALIGNMENT != 0 or end % DIRECT_ALIGNMENT != 0:
                file.become_buffered()
            error = _read(file, beg, memory + beg - address, end - beg, staging)
            if error is not None:
                return error
        return None

    def write(
        self, file: DiskFile, address: int, memory: int, num_bytes: int, staging: Staging
    ) -> StorageIOError | None:
        """Up to `MAX_TRANSFER_BYTES`. What the disk does not take is kept in memory."""
        source = memory
        if file.is_direct and memory % DIRECT_ALIGNMENT != 0:
            source = staging.address()
            ctypes.memmove(source, memory, num_bytes)
        moved, reason = _transfer(file, True, address, source, num_bytes)
        self.rescued.forget(address, moved)
        if moved == num_bytes:
            return None
        self.rescued.keep(address + moved, memory + moved, num_bytes - moved)
        return file.make_error(f"cannot write {num_bytes} bytes", address, num_bytes, True, reason)


def _read(file: DiskFile, address: int, memory: int, num_bytes: int, staging: Staging) -> StorageIOError | None:
    is_staged = file.is_direct and memory % DIRECT_ALIGNMENT != 0
    target = staging.address() if is_staged else memory
    moved, reason = _transfer(file, False, address, target, num_bytes)
    if moved < num_bytes:
        return file.make_error(f"cannot read {num_bytes} bytes", address, num_bytes, False, reason)
    if is_staged:
        ctypes.memmove(memory, target, num_bytes)
    return None


def _transfer(file: DiskFile, is_write: bool, address: int, memory: int, num_bytes: int) -> tuple[int, str]:
    """How many bytes were moved, and why not all of them."""
    offset = address - file.address
    moved = 0
    num_retries = 0
    while moved < num_bytes:
        count = _try_transfer(file, is_write, memory + moved, num_bytes - moved, offset + moved)
        if count > 0:
            moved += count
            num_retries = 0
        elif count == 0:
            return moved, f"only {moved} of {num_bytes} bytes could be moved, and no reason was given"
        elif count == -errno.EINVAL and file.is_direct:
            # The disk wants more alignment than we know of.
            file.become_buffered()
        elif (count == -errno.EINTR or count == -errno.EAGAIN) and num_retries < _MAX_RETRIES:
            num_retries += 1
        else:
            return moved, f"{os.strerror(-count)} (errno {-count}) after {moved} bytes"
    return moved, ""


def _try_transfer(file: DiskFile, is_write: bool, memory: int, num_bytes: int, offset: int) -> int:
    """The number of bytes moved, or minus the number of the error."""
    try:
        return file.files.transfer(file.file, is_write, memory, num_bytes, offset)
    except OSError as error:
        return -(error.errno or errno.EIO)
