"""The lock of a folder of a durable level: held by one process at a time, with its number in it."""

import os
from typing import Final

from ..device.file_bytes import read_named, write_file
from ..device.file_port import FilePort

LOCK_NAME: Final = "lock"


def take_lock(files: FilePort, folder: str) -> int:
    """The open file, which holds the lock until it is closed. `BlockingIOError` while another process, or another manager, has it."""
    lock = files.lock(os.path.join(folder, LOCK_NAME))
    try:
        files.discard(lock, 0, files.length(lock), True)
        write_file(files, lock, str(os.getpid()).encode(), 0)
    except BaseException:
        files.close_file(lock)
        raise
    return lock


def name_holder(files: FilePort, folder: str) -> str:
    """The process that has locked the folder, as it has written down."""
    try:
        number = read_named(files, os.path.join(folder, LOCK_NAME)).decode(errors="replace").strip()
    except OSError:
        number = ""
    return f"process {number}" if number else "another process"
