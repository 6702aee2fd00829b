"""The files of a durable level's index, read: the newest whole snapshot, and then all logs from its number on."""

import os
from collections.abc import Iterator
from typing import Final, final


from ..base.package_log import PackageLog
from ..device.file_bytes import read_range
from ..device.file_port import FilePort
from .index_state import IndexState
from .record_format import MAGIC, BadRecordError, split_frames

_READ_BYTES: Final = 1 << 20
_MOST_ATTEMPTS: Final = 4

_logger: Final = PackageLog("kv_cache_manager_v2")


def number_of(name: str) -> int:
    """Number of a log or a snapshot; -1 for other files."""
    for kind in ("log-", "snapshot-"):
        if name.startswith(kind) and name[len(kind) :].isdecimal():
            return int(name[len(kind) :])
    return -1


def load_state(files: FilePort, folder: str, names: list[str]) -> tuple[IndexState, list[int]]:
    """The state that the files describe, and their numbers."""
    numbers = sorted({number_of(name) for name in names if number_of(name) >= 0})
    state = IndexState()
    first = 0
    for number in reversed([number for number in numbers if f"snapshot-{number}" in names]):
        found = IndexState()
        _read_into(files, os.path.join(folder, f"snapshot-{number}"), found)
        if found.is_whole:
            state = found
            first = number
            break
        _logger.warning("%s is cut or damaged; the durable level goes back to what is older", os.path.join(folder, f"snapshot-{number}"))
    for number in numbers:
        if number >= first and f"log-{number}" in names:
            _read_into(files, os.path.join(folder, f"log-{number}"), state)
    return state, numbers


def load_present(files: FilePort, folder: str) -> IndexState:
    """The state of this moment, while a manager may be writing, which removes what its new snapshot replaces."""
    for _attempt in range(_MOST_ATTEMPTS):
        try:
            return load_state(files, folder, files.names(folder))[0]
        except FileNotFoundError:
            pass
    return load_state(files, folder, files.names(folder))[0]


def _read_into(files: FilePort, path: str, state: IndexState) -> None:
    try:
        for _step in apply_file(files, path, _READ_BYTES, state):
            pass
    except BadRecordError as error:
        _logger.warning("%s: %s; what comes after that is not used", path, error)


def apply_file(files: FilePort, path: str, num_bytes: int, state: IndexState) -> Iterator[None]:
    """Add the records of a log or a snapshot to the state, so many bytes a step. `BadRecordError` where it is damaged."""
    file = IndexFile(files, path)
    try:
        frames = file.read(num_bytes)
        while frames is not None:
            for records in frames:
                state.apply(records)
            yield
            frames = file.read(num_bytes)
    finally:
        file.close()


@final
class IndexFile:
    """A log or a snapshot that is read piece by piece; `close` it."""

    __slots__ = ("_files", "_file", "_num_bytes", "_offset", "_unread", "_is_torn")

    def __init__(self, files: FilePort, path: str) -> None:
        self._files: Final = files
        self._file: int = files.open_named(path, False)
        self._num_bytes: Final[int] = files.length(self._file)
        self._offset = 0
        self._unread = b""
        """The beginning of a frame whose end was not read yet."""
        self._is_torn = False

    def read(self, num_bytes: int) -> list[bytes] | None:
        """The records of the frames that end in the next so many bytes; None behind the last one. `BadRecordError` where it is damaged."""
        if self._is_torn:
            raise BadRecordError(
                f"it ends inside a record, or is damaged, {self._num_bytes - self._offset + len(self._unread)} bytes before its end"
            )
        if self._offset >= self._num_bytes:
            return None
        data = read_range(self._files, self._file, self._offset, min(num_bytes, self._num_bytes - self._offset))
        if len(data) == 0:
            raise BadRecordError("it became shorter")
        is_first = self._offset == 0
        self._offset += len(data)
        if is_first:
            if data[: len(MAGIC)] != MAGIC:
                raise BadRecordError("it does not begin like an index")
            data = data[len(MAGIC) :]
        data = self._unread + data
        frames, num_left, self._is_torn = split_frames(data, self._num_bytes - self._offset)
        self._unread = data[len(data) - num_left :]
        return frames

    def close(self) -> None:
        """Twice is fine."""
        file = self._file
        self._file = -1
        if file >= 0:
            self._files.close_file(file)
