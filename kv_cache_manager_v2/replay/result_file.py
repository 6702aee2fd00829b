"""Writes a command's result to the file that an option names."""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Final, final


_NO_ROOM: Final = frozenset([errno.ENOSPC, errno.EDQUOT])
WRITE_ERRORS: Final = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
"""Of a file that is written, never of one that is read."""
_NOT_OPENED: Final = frozenset([errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG])
"""The text says all: nothing was written."""


def write_result(path: str, text: str) -> None:
    """Write all of the text; if the disk is full or Ctrl-C comes, the file stays as it was: missing, or an older result.

    An `OSError` names the file. A device is written to directly.
    """
    data = text.encode("utf-8", "backslashreplace")  # names of files may be no text
    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target.resolve(), data)
    except OSError as failure:
        if failure.errno is None:
            raise
        raise _name(path, failure.errno, f"{len(data):,} bytes were to be written") from failure


@final
class StreamedResult:
    """A file that takes its name when it is whole; after an error nothing has changed. For results too large to be made at once."""

    __slots__ = ("_target", "_beside", "_file")

    def __init__(self, path: str) -> None:
        self._target: Final = Path(path)
        self._beside: Final = Path(path).resolve().with_name(f".{Path(path).name}.{os.getpid()}.part")
        self._file: IO[bytes] | None = None

    def __enter__(self) -> IO[bytes]:
        # A device is written to directly.
        try:
            opened = open(self._beside if self._is_file() else self._target, "wb", opener=_open_private)
        except OSError as failure:
            if failure.errno is None:
                raise
            raise _name(str(self._target), failure.errno, "") from failure
        self._file = opened
        return opened

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._finish(kind)
        except OSError as failure:
            if failure.errno is None:
                raise
            raise _name(str(self._target), failure.errno, "") from failure
        if isinstance(error, OSError) and error.filename is None and error.errno in WRITE_ERRORS:
            raise _name(str(self._target), error.errno, "") from error

    def _finish(self, kind: type[BaseException] | None) -> None:
        assert self._file is not None
        try:
            self._file.close()
            if kind is None and self._is_file():
                if self._target.exists():
                    shutil.copymode(self._target, self._beside)
                os.replace(self._beside, self._target.resolve())
        finally:
            if self._is_file():
                with suppress(OSError):
                    self._beside.unlink(missing_ok=True)

    def _is_file(self) -> bool:
        return self._target.is_file() or not self._target.exists()


def _replace(target: Path, data: bytes) -> None:
    """Write beside the target first, then take its name."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb", opener=_open_private) as file:
            file.write(data)
        if target.exists():
            shutil.copymode(target, beside)
        os.replace(beside, target)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _open_private(path: str, flags: int) -> int:
    """Results may hold tokens: other users do not read a new one."""
    return os.open(path, flags, 0o600)


def _name(path: str, number: int, wanted: str) -> OSError:
    """The error with the file's name and the way out."""
    if number in _NOT_OPENED:
        return OSError(number, os.strerror(number), path)
    return OSError(number, "; ".join([part for part in (os.strerror(number), _explain(Path(path), number, wanted)) if part]), path)


def _explain(target: Path, number: int, wanted: str) -> str:
    begin = f"{wanted}, " if wanted else ""
    if number in _NO_ROOM:
        return f"{begin}{shutil.disk_usage(target.parent).free:,} bytes are free there: free some space, or name a file elsewhere"
    if number == errno.EFBIG:
        return f"{begin.replace(', ', ': ')}raise the largest size of a file, `ulimit -f`"
    return wanted
