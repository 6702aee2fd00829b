"""Bytes of files through a `FilePort`: read to a bytes object, and written at an offset."""

import ctypes
import errno
import os
from typing import Any

from .file_port import FilePort


def read_named(files: FilePort, path: str) -> bytes:
    """All bytes of a file that is there; `OSError` where they cannot be read."""
    file = files.open_named(path, False)
    try:
        return read_range(files, file, 0, files.length(file))
    finally:
        files.close_file(file)


def read_range(files: FilePort, file: int, offset: int, num_bytes: int) -> bytes:
    """So many bytes from ``offset`` on, fewer where the file ends before."""
    if num_bytes == 0:
        return b""
    memory: Any = (ctypes.c_char * num_bytes)()
    moved = 0
    while moved < num_bytes:
        count = files.transfer(file, False, [ctypes.addressof(memory) + moved], [num_bytes - moved], offset + moved)
        if count <= 0:
            break
        moved += count
    return bytes(memory.raw[:moved])


def write_file(files: FilePort, file: int, data: bytes, offset: int) -> None:
    """All of it, or `OSError`; then some of it may be there."""
    memory: Any = (ctypes.c_char * len(data)).from_buffer_copy(data)
    moved = 0
    while moved < len(data):
        count = files.transfer(file, True, [ctypes.addressof(memory) + moved], [len(data) - moved], offset + moved)
        if count <= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        moved += count
