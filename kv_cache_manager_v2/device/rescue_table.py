"""Bytes that a disk did not take, kept in memory in its stead.

A write that failed leaves its bytes here, by disk address; a later copy from there finds them, until another write covers
them or the range is unmapped. Intervals are disjoint and sorted. Worker threads and the device's caller share the table,
each call takes its lock; as long as it is empty, which is nearly always, `is_empty` is all that anybody reads.
"""

import ctypes
from bisect import bisect_right
from threading import Lock
from typing import Final, final

from mypy_extensions import mypyc_attr


@final
@mypyc_attr(native_class=True)
class RescueTable:
    """Law: ``begs[i] + len(bytes[i]) <= begs[i + 1]``."""

    __slots__ = ("is_empty", "_lock", "_begs", "_contents")

    is_empty: bool
    _lock: Final[Lock]
    _begs: Final[list[int]]
    _contents: Final[list[bytes]]

    def __init__(self) -> None:
        self.is_empty = True
        self._lock = Lock()
        self._begs = []
        self._contents = []

    def num_bytes(self) -> int:
        with self._lock:
            return sum([len(content) for content in self._contents])

    def keep(self, address: int, memory: int, num_bytes: int) -> None:
        """The bytes at ``memory`` are those of ``[address, address + num_bytes)`` from now on."""
        content = ctypes.string_at(memory, num_bytes)
        with self._lock:
            self._cut(address, address + num_bytes)
            index = bisect_right(self._begs, address)
            self._begs.insert(index, address)
            self._contents.insert(index, content)
            self.is_empty = False

    def forget(self, address: int, num_bytes: int) -> None:
        """These bytes are on the disk now, or nobody wants them."""
        if self.is_empty:
            return
        with self._lock:
            self._cut(address, address + num_bytes)
            self.is_empty = len(self._begs) == 0

    def load(self, address: int, memory: int, num_bytes: int) -> list[tuple[int, int]]:
        """Bring what is kept of ``[address, address + num_bytes)`` to ``memory``; returns what is not kept, as intervals."""
        end = address + num_bytes
        missing: list[tuple[int, int]] = []
        if self.is_empty:
            missing.append((address, end))
            return missing
        with self._lock:
            position = address
            for index in range(self._first_behind(address), len(self._begs)):
                beg = max(self._begs[index], address)
                until = min(self._begs[index] + len(self._contents[index]), end)
                if beg < until:
                    if position < beg:
                        missing.append((position, beg))
                    first = beg - self._begs[index]
                    ctypes.memmove(
                        memory + beg - address, self._contents[index][first : first + until - beg], until - beg
                    )
                    position = until
            if position < end:
                missing.append((position, end))
        return missing

    def _first_behind(self, address: int) -> int:
        """The index of the first interval that may reach beyond ``address``."""
        return max(bisect_right(self._begs, address) - 1, 0)

    def _cut(self, beg: int, end: int) -> None:
        """Nothing of ``[beg, end)`` is kept any more; what lies around it stays."""
        index = self._first_behind(beg)
        while index < len(self._begs) and self._begs[index] < end:
            old_beg = self._begs[index]
            content = self._contents[index]
            old_end = old_beg + len(content)
            if old_end > beg:
                self._begs.pop(index)
                self._contents.pop(index)
                if old_beg < beg:
                    self._begs.insert(index, old_beg)
                    self._contents.insert(index, content[: beg - old_beg])
                    index += 1
                if old_end > end:
                    self._begs.insert(index, end)
                    self._contents.insert(index, content[end - old_beg :])
                    index += 1
            else:
                index += 1
