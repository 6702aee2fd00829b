"""A disk in memory that survives its process, and then has lost, torn or reordered what was not synced.

`LossyDisk` is the disk; `LossyFiles` is the port of one process to it. `LossyFiles.kill` ends the process between two calls: what it
does afterwards has no effect. `LossyDisk.fail_power` then chooses what of the writes since the last sync of each file is there.
"""

import ctypes
import errno
import os
import random
import threading
from collections.abc import Sequence

from kv_cache_manager_v2.device.file_port import FilePort


class LossyFile:
    """``content``: what processes see; ``synced``: what survives a power failure for sure; ``writes``: since then, in order."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.synced = bytearray()
        self.writes: list[tuple[int, bytes]] = []

    def write(self, offset: int, data: bytes) -> None:
        put(self.content, offset, data)
        self.writes.append((offset, data))

    def truncate(self, num_bytes: int) -> None:
        """Takes effect at once, on the disk too: what matters here are the bytes."""
        for content in (self.content, self.synced):
            del content[num_bytes:]
        self.writes = [(offset, data[: max(num_bytes - offset, 0)]) for offset, data in self.writes]

    def extend(self, num_bytes: int) -> None:
        for content in (self.content, self.synced):
            content.extend(bytes(max(num_bytes - len(content), 0)))

    def sync(self) -> None:
        self.synced = bytearray(self.content)
        self.writes = []

    def fail_power(self, choices: random.Random) -> None:
        """Any of the writes since the last sync, in any order, some only in part."""
        left = list(self.writes)
        choices.shuffle(left)
        content = bytearray(self.synced)
        for offset, data in left:
            kind = choices.randrange(4)
            if kind == 0:
                continue
            if kind == 1 and len(data) > 1:
                begin, end = sorted((choices.randrange(len(data)), choices.randrange(len(data) + 1)))
                offset, data = offset + begin, data[begin:end]
            put(content, offset, data)
        self.content = content
        self.sync()


class LossyDisk:
    """Files by path."""

    def __init__(self) -> None:
        self.files: dict[str, LossyFile] = {}
        self.locked: set[str] = set()
        self.guard = threading.Lock()

    def fail_power(self, seed: int) -> None:
        choices = random.Random(seed)
        for path in sorted(self.files):
            self.files[path].fail_power(choices)

    def paths(self, part: str) -> list[str]:
        return sorted(path for path in self.files if part in path)


class LossyFiles(FilePort):
    """The port of one process. ``kill_at``: the number of the write before which the process is killed."""

    def __init__(self, disk: LossyDisk, kill_at: int = 1 << 60) -> None:
        self.disk = disk
        self.kill_at = kill_at
        self.num_writes = 0
        self.is_dead = False
        self.failing_writes: int = 0
        """An error number: writes fail with it."""
        self._open: dict[int, LossyFile] = {}
        self._locks: dict[int, str] = {}
        self._next_file = 100

    def kill(self) -> None:
        self.is_dead = True
        # The operating system closes what the process had open.
        self.disk.locked -= set(self._locks.values())

    def _count_write(self) -> None:
        if not self.is_dead and self.num_writes == self.kill_at:
            self.kill()
        self.num_writes += 1

    def _add(self, file: LossyFile) -> int:
        self._next_file += 1
        self._open[self._next_file] = file
        return self._next_file

    def open_file(self, path: str, is_direct: bool) -> int:
        return self._add(LossyFile())

    def close_file(self, file: int) -> None:
        self._open.pop(file)
        path = self._locks.pop(file, "")
        if not self.is_dead:
            self.disk.locked.discard(path)

    def become_buffered(self, file: int) -> None:
        pass

    def grow(self, file: int, offset: int, num_bytes: int) -> None:
        with self.disk.guard:
            self._open[file].extend(offset + num_bytes)

    def discard(self, file: int, offset: int, num_bytes: int, is_last: bool) -> None:
        with self.disk.guard:
            if is_last and not self.is_dead:
                self._open[file].truncate(offset)

    def free_bytes(self, path: str) -> int:
        return 1 << 40

    def transfer(self, file: int, is_write: bool, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> int:
        with self.disk.guard:
            found = self._open[file]
            if is_write:
                self._count_write()
                if self.failing_writes:
                    raise OSError(self.failing_writes, os.strerror(self.failing_writes))
                data = b"".join(ctypes.string_at(address, size) for address, size in zip(addresses, sizes, strict=True))
                if not self.is_dead:
                    found.write(offset, data)
                return len(data)
            moved = 0
            for address, size in zip(addresses, sizes, strict=True):
                part = bytes(found.content[offset + moved : offset + moved + size])
                ctypes.memmove(address, part, len(part))
                moved += len(part)
            return moved

    def open_named(self, path: str, is_direct: bool) -> int:
        with self.disk.guard:
            if path not in self.disk.files:
                if self.is_dead:
                    return self._add(LossyFile())
                self.disk.files[path] = LossyFile()
            return self._add(self.disk.files[path])

    def length(self, file: int) -> int:
        return len(self._open[file].content)

    def sync(self, file: int) -> None:
        with self.disk.guard:
            self._count_write()
            if not self.is_dead:
                self._open[file].sync()

    def sync_folder(self, path: str) -> None:
        pass

    def make_folder(self, path: str) -> None:
        pass

    def names(self, path: str) -> list[str]:
        return [os.path.basename(name) for name in self.disk.files if os.path.dirname(name) == path]

    def rename(self, path: str, new_path: str) -> None:
        with self.disk.guard:
            self._count_write()
            if not self.is_dead:
                self.disk.files[new_path] = self.disk.files.pop(path)

    def remove(self, path: str) -> None:
        with self.disk.guard:
            self._count_write()
            if not self.is_dead and self.disk.files.pop(path, None) is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def lock(self, path: str) -> int:
        if path in self.disk.locked:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        file = self.open_named(path, False)
        self.disk.locked.add(path)
        self._locks[file] = path
        return file


def put(content: bytearray, offset: int, data: bytes) -> None:
    content.extend(bytes(max(offset + len(data) - len(content), 0)))
    content[offset : offset + len(data)] = data
