"""The simulated device's disks: the folder of each DISK range, and the ranges with a failed write."""

import logging
from typing import Final, final


from ..base.errors import StorageIOError

_logger: Final = logging.getLogger(__name__)


@final
class SimulatedDisks:
    """By the first address of the range. A failure stays until the range is released."""

    __slots__ = ("failed_reads", "_paths", "_failures")

    def __init__(self) -> None:
        self.failed_reads: list[StorageIOError] = []
        """Failed reads until they are taken."""
        self._paths: Final[dict[int, str]] = {}
        self._failures: Final[dict[int, StorageIOError]] = {}

    def add(self, address: int, path: str) -> None:
        self._paths[address] = path

    def remove(self, address: int) -> None:
        del self._paths[address]
        self._failures.pop(address, None)

    def path_of(self, address: int) -> str:
        return self._paths[address]

    def failure_of(self, address: int) -> StorageIOError | None:
        return self._failures.get(address)

    def record_failure(self, address: int, error: StorageIOError) -> None:
        if address in self._paths and address not in self._failures:
            self._failures[address] = error
            _logger.error("%s; the bytes are kept in memory", error)


def make_disk_error(path: str, address: int, num_bytes: int, is_write: bool, reason: BaseException) -> StorageIOError:
    what = "write" if is_write else "read"
    return StorageIOError(
        f"cannot {what} {num_bytes} bytes of the DISK tier in {path} at address {address:#x}: {reason}", path, address, num_bytes, is_write
    )


def copy_error(error: StorageIOError) -> StorageIOError:
    return StorageIOError(str(error), error.path, error.address, error.num_bytes, error.is_write)
