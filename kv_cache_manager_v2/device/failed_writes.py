"""Failed writes: bytes that a disk did not accept, kept in memory instead, or known to be lost.

The bytes of a failed write are kept here, by disk address; a later copy from there finds them, until another write covers
them or the range is unmapped. A write that never began, because a gate or job before it failed, has no bytes to keep: then its part of
the disk is *lost*, and a copy from there fails. Intervals are disjoint and sorted. While the table is empty, which is nearly always,
callers read only `is_empty`.

Worker threads share the table and take its lock. The device's caller changes it only while no worker is busy, and takes no lock, so an
interruption leaves none taken: a change makes new lists and replaces the old ones at once.
"""

import ctypes
from bisect import bisect_right
from threading import Lock
from typing import Final, final



@final
class _Intervals:
    """Law: ``begs[i] < ends[i] <= begs[i + 1]``; ``contents[i]`` has the bytes, None if they are lost. Immutable once shared."""

    __slots__ = ("begs", "ends", "contents")

    def __init__(self) -> None:
        self.begs: Final[list[int]] = []
        self.ends: Final[list[int]] = []
        self.contents: Final[list[bytes | None]] = []

    def add(self, beg: int, end: int, content: bytes | None) -> None:
        """Append an interval behind all others."""
        self.begs.append(beg)
        self.ends.append(end)
        self.contents.append(content)

    def first_behind(self, address: int) -> int:
        """The index of the first interval that may reach beyond ``address``."""
        return max(bisect_right(self.begs, address) - 1, 0)

    def replaced(self, beg: int, end: int, is_kept: bool, content: bytes | None) -> "_Intervals":
        """A copy with ``content`` for ``[beg, end)``, or with nothing there unless ``is_kept``."""
        result = _Intervals()
        is_open = is_kept
        for index in range(len(self.begs)):
            old_beg = self.begs[index]
            old_end = self.ends[index]
            old = self.contents[index]
            if old_end <= beg:
                result.add(old_beg, old_end, old)
            else:
                if old_beg < beg:
                    result.add(old_beg, beg, None if old is None else old[: beg - old_beg])
                if is_open:
                    result.add(beg, end, content)
                    is_open = False
                if old_beg >= end:
                    result.add(old_beg, old_end, old)
                elif old_end > end:
                    result.add(end, old_end, None if old is None else old[end - old_beg :])
        if is_open:
            result.add(beg, end, content)
        return result


@final
class FailedWrites:
    """The table of failed writes; see the module."""

    __slots__ = ("is_empty", "_lock", "_intervals")

    def __init__(self) -> None:
        self.is_empty = True
        self._lock: Final = Lock()
        self._intervals = _Intervals()

    def num_bytes(self) -> int:
        """Bytes kept in memory."""
        return sum([len(content) for content in self._intervals.contents if content is not None])

    # -- by worker threads --------------------------------------------------------------------------------------------

    def keep(self, address: int, memory: int, num_bytes: int) -> None:
        """Keep a copy of the bytes at ``memory`` as those of ``[address, address + num_bytes)``."""
        content = ctypes.string_at(memory, num_bytes)
        with self._lock:
            self._replace(address, address + num_bytes, True, content)

    def lose(self, address: int, num_bytes: int) -> None:
        """Mark ``[address, address + num_bytes)`` as lost: never written, and nowhere else."""
        with self._lock:
            self._replace(address, address + num_bytes, True, None)

    def forget(self, address: int, num_bytes: int) -> None:
        """Remove these bytes: they are on the disk now."""
        if self.is_empty:
            return
        with self._lock:
            self._replace(address, address + num_bytes, False, None)

    def has_lost(self, address: int, num_bytes: int) -> bool:
        """Whether any byte of ``[address, address + num_bytes)`` is lost."""
        intervals = self._intervals
        end = address + num_bytes
        for index in range(intervals.first_behind(address), len(intervals.begs)):
            if intervals.contents[index] is None and intervals.begs[index] < end and intervals.ends[index] > address:
                return True
        return False

    def load(self, address: int, memory: int, num_bytes: int) -> list[tuple[int, int]]:
        """Copy the kept bytes of ``[address, address + num_bytes)`` to ``memory``; returns the intervals that are not kept."""
        intervals = self._intervals
        end = address + num_bytes
        missing: list[tuple[int, int]] = []
        position = address
        for index in range(intervals.first_behind(address), len(intervals.begs)):
            beg = max(intervals.begs[index], address)
            until = min(intervals.ends[index], end)
            content = intervals.contents[index]
            if beg < until and content is not None:
                if position < beg:
                    missing.append((position, beg))
                first = beg - intervals.begs[index]
                ctypes.memmove(memory + beg - address, content[first : first + until - beg], until - beg)
                position = until
        if position < end:
            missing.append((position, end))
        return missing

    # -- by the device's caller, while no worker is busy --------------------------------------------------------------

    def forget_unmapped(self, address: int, num_bytes: int) -> None:
        """Remove these bytes: they are unmapped."""
        if not self.is_empty:
            self._replace(address, address + num_bytes, False, None)

    def _replace(self, beg: int, end: int, is_kept: bool, content: bytes | None) -> None:
        intervals = self._intervals.replaced(beg, end, is_kept, content)
        if len(intervals.begs) > 0:
            # First, so that a thread that finds the table empty misses nothing.
            self.is_empty = False
        self._intervals = intervals
        self.is_empty = len(intervals.begs) == 0
