"""A snapshot on its way to the disk: it gets its name once it is whole and safe.

    state    way out
    open     finish: named; abandon: gone
"""

import os
from typing import Final, final


from ..base.package_log import PackageLog
from ..device.file_bytes import write_file
from ..device.file_port import FilePort
from .record_format import MAGIC, frame

_SYNC_BYTES: Final = 4 << 20
"""At once: the log's own syncs wait for no more."""

_logger: Final = PackageLog("kv_cache_manager_v2")


@final
class SnapshotFile:
    """``num_bytes``: written so far. Of one thread."""

    __slots__ = ("num_bytes", "_files", "_folder", "_path", "_file", "_synced_bytes")

    def __init__(self, files: FilePort, folder: str, number: int) -> None:
        self._files: Final = files
        self._folder: Final = folder
        self._path: Final[str] = os.path.join(folder, f"snapshot-{number}")
        self._file: int = files.open_named(self._path + ".new", False)
        self.num_bytes: int = len(MAGIC)
        self._synced_bytes = 0
        try:
            files.discard(self._file, 0, files.length(self._file), True)
            write_file(files, self._file, MAGIC, 0)
        except BaseException:
            self.abandon()
            raise

    def write(self, records: bytes) -> None:
        data = frame(records)
        write_file(self._files, self._file, data, self.num_bytes)
        self.num_bytes += len(data)
        if self.num_bytes - self._synced_bytes >= _SYNC_BYTES:
            self._files.sync(self._file)
            self._synced_bytes = self.num_bytes

    def finish(self) -> None:
        """From its return on the snapshot counts, whatever happens."""
        self._files.sync(self._file)
        self._close()
        self._files.rename(self._path + ".new", self._path)
        self._files.sync_folder(self._folder)

    def abandon(self) -> None:
        """Free its space, if the disk lets it."""
        try:
            self._close()
            self._files.remove(self._path + ".new")
        except FileNotFoundError:
            pass
        except OSError as error:
            _logger.warning("removing %s.new: %s", self._path, error)

    def _close(self) -> None:
        file = self._file
        self._file = -1
        if file >= 0:
            self._files.close_file(file)
