"""Files in memory, with every way to go wrong: held transfers, short ones, errors, a disk that is full."""

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Sequence

from kv_cache_manager_v2.device.file_port import FilePort

Answer = Callable[[bool, int, int], int]
"""(is_write, offset, bytes asked for) -> how many bytes to move; raises OSError for an error."""


def all_of_it(is_write: bool, offset: int, num_bytes: int) -> int:
    return num_bytes


class FakeFiles(FilePort):
    """``answer`` decides what becomes of each transfer; `hold` lets none of them through until `let_go`."""

    def __init__(self, *, room_bytes: int = 1 << 30, takes_direct: bool = True) -> None:
        self.contents: dict[int, bytearray] = {}
        self.direct: set[int] = set()
        self.room_bytes = room_bytes
        self.used_bytes = 0
        self.takes_direct = takes_direct
        self.answer: Answer = all_of_it
        self.transfers: list[tuple[bool, int, int, int]] = []  # is_write, offset, bytes, pieces of memory
        self._next_file = 100
        self._gate = threading.Condition()
        self._is_held = False
        self._num_allowed = 0
        self._num_waiting = 0

    # -- for tests ----------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        with self._gate:
            self._is_held = True

    def let_go(self) -> None:
        with self._gate:
            self._is_held = False
            self._gate.notify_all()

    def wait_until_held(self, count: int) -> None:
        """Block until that many transfers are at the gate."""
        with self._gate:
            assert self._gate.wait_for(lambda: self._num_waiting >= count, timeout=60)

    def wait_for_transfers(self, count: int) -> None:
        """Block until that many transfers were made."""
        with self._gate:
            assert self._gate.wait_for(lambda: len(self.transfers) >= count, timeout=60)

    def fail(self, number: int, *, writes: bool = False, reads: bool = False) -> None:
        """From now on these fail."""

        def answer(is_write: bool, offset: int, num_bytes: int) -> int:
            if writes if is_write else reads:
                raise OSError(number, os.strerror(number))
            return num_bytes

        self.answer = answer

    # -- the port -----------------------------------------------------------------------------------------------------

    def open_file(self, path: str, is_direct: bool) -> int:
        if is_direct and not self.takes_direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._next_file += 1
        self.contents[self._next_file] = bytearray()
        if is_direct:
            self.direct.add(self._next_file)
        return self._next_file

    def close_file(self, file: int) -> None:
        self.used_bytes -= len(self.contents.pop(file))

    def become_buffered(self, file: int) -> None:
        self.direct.discard(file)

    def grow(self, file: int, offset: int, num_bytes: int) -> None:
        content = self.contents[file]
        self.used_bytes += max(offset + num_bytes - len(content), 0)
        content.extend(bytes(max(offset + num_bytes - len(content), 0)))

    def discard(self, file: int, offset: int, num_bytes: int, is_last: bool) -> None:
        content = self.contents[file]
        if is_last:
            self.used_bytes -= len(content) - offset
            del content[offset:]
        else:
            content[offset : offset + num_bytes] = bytes(num_bytes)

    def free_bytes(self, path: str) -> int:
        return self.room_bytes - self.used_bytes

    def transfer(self, file: int, is_write: bool, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> int:
        with self._gate:
            self._num_waiting += 1
            self._gate.notify_all()
            self._gate.wait_for(lambda: not self._is_held)
            self._num_waiting -= 1
            num_bytes = sum(sizes)
            self.transfers.append((is_write, offset, num_bytes, len(addresses)))
            self._gate.notify_all()
            if file in self.direct:
                aligned = [offset, *addresses, *sizes]
                if any(value % 4096 for value in aligned):
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            moved = self.answer(is_write, offset, num_bytes)
            content = self.contents[file]
            moved = min(moved, len(content) - offset)
            done = 0
            for address, size in zip(addresses, sizes, strict=True):
                part = min(size, moved - done)
                if part <= 0:
                    break
                beg = offset + done
                if is_write:
                    content[beg : beg + part] = ctypes.string_at(address, part)
                else:
                    ctypes.memmove(address, bytes(content[beg : beg + part]), part)
                done += part
            return moved
