"""Writing what a command has found into the file that an option names."""

import errno
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

_NO_ROOM: Final = frozenset([errno.ENOSPC, errno.EDQUOT])


def write_result(path: str, text: str) -> None:
    """An `OSError` names the file, also where the disk was full; no half of a result is left behind then."""
    data = text.encode("utf-8")
    target = Path(path)
    try:
        target.write_bytes(data)
    except OSError as failure:
        if failure.errno is None or failure.filename is not None:
            raise  # It could not even be opened.
        raise OSError(failure.errno, f"{failure.strerror}; {_explain(target, failure.errno, len(data))}", path) from failure


def _explain(target: Path, number: int, num_bytes: int) -> str:
    if target.is_file():  # and no device
        with suppress(OSError):
            target.resolve().unlink()
    wanted = f"{num_bytes:,} bytes were to be written"
    if number in _NO_ROOM:
        return f"{wanted}, {shutil.disk_usage(target.parent).free:,} are free there: make room, or name a file elsewhere"
    if number == errno.EFBIG:
        return f"{wanted}: raise the largest size of a file, `ulimit -f`"
    return wanted
