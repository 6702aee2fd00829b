"""Files of Linux: `O_TMPFILE` and `O_DIRECT` if the file system has them, `fallocate` to allocate and free space.

Transfers go to the C library by raw address, with the GIL released. If a file system lacks a call, the next best one is used: a named
file that is unlinked at once, a longer file without space of its own (the free bytes were checked before), space that is
freed only when the file ends or is closed.
"""

import ctypes
import errno
import fcntl
import os
from collections.abc import Sequence
from typing import Final, final


from .file_lock import open_locked, unlock_file
from .file_port import FilePort
from .private_files import open_private, open_private_folder

_NO_UNNAMED_FILES: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)
_NO_ALLOCATION: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2
_MAX_NAMES: Final = 100

_libc: Final = ctypes.CDLL(None)
_one: Final = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, use_errno=True)
_some: Final = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, use_errno=True)
_space: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64, use_errno=True)
_pread: Final = _one(("pread", _libc))
_pwrite: Final = _one(("pwrite", _libc))
_preadv: Final = _some(("preadv", _libc))
_pwritev: Final = _some(("pwritev", _libc))
_fallocate: Final = _space(("fallocate", _libc))


@final
class OsFiles(FilePort):
    """The operating system's files; see the module's docstring. A file is its descriptor."""

    __slots__ = ()

    def open_file(self, path: str, is_direct: bool) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_DIRECT if is_direct else 0)
        try:
            return os.open(path, flags | os.O_TMPFILE, 0o600)
        except OSError as error:
            if error.errno not in _NO_UNNAMED_FILES:
                raise
        for number in range(_MAX_NAMES):
            name = os.path.join(path, f".kv_cache_{os.getpid()}_{number}")
            try:
                file = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                continue
            os.unlink(name)
            return file
        raise OSError(errno.EEXIST, f"{_MAX_NAMES} leftover files .kv_cache_{os.getpid()}_* are in the way", path)

    def close_file(self, file: int) -> None:
        try:
            unlock_file(file)
        finally:
            os.close(file)

    def become_buffered(self, file: int) -> None:
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) & ~os.O_DIRECT)

    def grow(self, file: int, offset: int, num_bytes: int) -> None:
        old_bytes = os.fstat(file).st_size
        if _fallocate(file, 0, offset, num_bytes) == 0:
            return
        number = ctypes.get_errno()
        if number in _NO_ALLOCATION:
            if offset + num_bytes > old_bytes:
                os.ftruncate(file, offset + num_bytes)
            return
        # A full disk may have allocated a part.
        _fallocate(file, _KEEP_SIZE | _PUNCH_HOLE, offset, num_bytes)
        if os.fstat(file).st_size > old_bytes:
            os.ftruncate(file, old_bytes)
        raise OSError(number, os.strerror(number))

    def discard(self, file: int, offset: int, num_bytes: int, is_last: bool) -> None:
        if is_last:
            os.ftruncate(file, offset)
        elif _fallocate(file, _KEEP_SIZE | _PUNCH_HOLE, offset, num_bytes) != 0:
            number = ctypes.get_errno()
            if number not in _NO_ALLOCATION:
                raise OSError(number, os.strerror(number))

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    # -- files that outlive the process -------------------------------------------------------------------------------

    def open_named(self, path: str, is_direct: bool) -> int:
        return open_private(path, os.O_RDWR | os.O_CREAT | (os.O_DIRECT if is_direct else 0))

    def length(self, file: int) -> int:
        return os.fstat(file).st_size

    def sync(self, file: int) -> None:
        os.fdatasync(file)

    def sync_folder(self, path: str) -> None:
        folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def make_folder(self, path: str) -> None:
        os.makedirs(path, 0o700, True)
        os.close(open_private_folder(path))

    def remove_folder(self, path: str) -> None:
        os.rmdir(path)

    def names(self, path: str) -> list[str]:
        return os.listdir(path)

    def rename(self, path: str, new_path: str) -> None:
        os.replace(path, new_path)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def lock(self, path: str) -> int:
        return open_locked(path, os.O_RDWR | os.O_CREAT)

    # -- transfers ----------------------------------------------------------------------------------------------------

    def transfer(self, file: int, is_write: bool, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> int:
        if len(addresses) == 1:
            moved: int = (_pwrite if is_write else _pread)(file, addresses[0], sizes[0], offset)
        else:
            # The C library's iovec: an address and a length for each piece.
            words: list[int] = []
            for index in range(len(addresses)):
                words.append(addresses[index])
                words.append(sizes[index])
            # Passed as an object, not as its address: compiled code drops a variable after its last use.
            vector = (ctypes.c_int64 * len(words))(*words)
            moved = (_pwritev if is_write else _preadv)(file, vector, len(addresses), offset)
        if moved < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return moved
