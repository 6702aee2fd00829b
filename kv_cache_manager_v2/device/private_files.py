"""Files and folders with predictable names, opened: never through a symbolic link, and never another user's.

They hold tokens, keys and values. In a folder that others may write, another user could have put a link to a victim's file, or a file of
their own, under a name that this process is going to use.
"""

import errno
import os
import stat
from typing import Final

_OTHERS: Final = 0o077
_OTHERS_WRITE: Final = 0o022


def open_private(path: str, flags: int, is_read_only: bool = False) -> int:
    """A file, opened or made with mode 600, in a folder that `open_private_folder` opens. `PermissionError` for a link, and for what is
    another user's or open to others; ``is_read_only``: root's is fine, and what others may only read, and root reads everyone's."""
    folder = open_private_folder(os.path.dirname(path), is_read_only)
    try:
        return _open(path, os.path.basename(path), flags, folder, is_read_only)
    finally:
        os.close(folder)


def open_private_folder(path: str, is_read_only: bool = False) -> int:
    return _open(path, path, os.O_RDONLY | os.O_DIRECTORY, None, is_read_only)


def _open(path: str, name: str, flags: int, folder: int | None, is_read_only: bool) -> int:
    """``name``: below ``folder``, of the whole ``path``."""
    try:
        # Without waiting for the other end of a pipe.
        file = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.islink(path):
            raise _refused(path, f"it is a symbolic link to {os.readlink(path)!r}; remove it") from error
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from error
    try:
        _require_private(path, os.fstat(file), bool(flags & os.O_DIRECTORY), is_read_only)
    except BaseException:
        os.close(file)
        raise
    return file


def _require_private(path: str, status: os.stat_result, is_folder: bool, is_read_only: bool) -> None:
    if not is_folder and not stat.S_ISREG(status.st_mode):
        raise _refused(path, "it is no regular file; remove it")
    user = os.geteuid()
    if status.st_uid != user and not (is_read_only and 0 in (user, status.st_uid)):
        raise _refused(path, f"it belongs to user {status.st_uid}, and this process is user {user}'s; give another path, or `chown` it")
    if status.st_mode & (_OTHERS_WRITE if is_read_only else _OTHERS):
        mode = "700" if is_folder else "600"
        raise _refused(path, f"its mode is {stat.S_IMODE(status.st_mode):o}, which lets others in; if it is yours, chmod {mode}")


def _refused(path: str, reason: str) -> PermissionError:
    return PermissionError(errno.EPERM, reason, path)
