"""Writes a command's result to the file that an option names."""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Final, final

from mypy_extensions import mypyc_attr

_NO_ROOM: Final = frozenset([errno.ENOSPC, errno.EDQUOT])
_NOT_OPENED: Final = frozenset([errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG])
"""The text says all: nothing was written."""


def write_result(path: str, text: str) -> None:
    """Write all of the text; if the disk is full or Ctrl-C comes, the file stays as it was: missing, or an older result.

    An `OSError` names the file. A device is written to directly.
    """
    data = text.encode("utf-8")
    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target.resolve(), data)
    except OSError as failure:
        if failure.errno is None:
            raise
        if failure.errno in _NOT_OPENED:
            raise OSError(failure.errno, failure.strerror, path) from failure
        raise OSError(failure.errno, f"{failure.strerror}; {_explain(target, failure.errno, len(data))}", path) from failure


@final
@mypyc_attr(native_class=True)
class StreamedResult:
    """A file that takes its name when it is whole; after an error nothing has changed. For results too large to be made at once."""

    __slots__ = ("_target", "_beside", "_file")

    def __init__(self, path: str) -> None:
        self._target: Final = Path(path)
        self._beside: Final = Path(path).resolve().with_name(f".{Path(path).name}.{os.getpid()}.part")
        self._file: IO[bytes] | None = None

    def __enter__(self) -> IO[bytes]:
        # A device is written to directly.
        opened = open(self._beside if self._is_file() else self._target, "wb")
        self._file = opened
        return opened

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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
        beside.write_bytes(data)
        if target.exists():
            shutil.copymode(target, beside)
        os.replace(beside, target)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _explain(target: Path, number: int, num_bytes: int) -> str:
    wanted = f"{num_bytes:,} bytes were to be written"
    if number in _NO_ROOM:
        return f"{wanted}, {shutil.disk_usage(target.parent).free:,} are free there: free some space, or name a file elsewhere"
    if number == errno.EFBIG:
        return f"{wanted}: raise the largest size of a file, `ulimit -f`"
    return wanted
