"""A log of recent memory accesses, from which reports tell a byte range's history.

An `Access` is one operation that touches memory: its component and tick, what it is, its call stack, and its byte ranges. The
log is bounded: it keeps the latest ones, and each holds plain numbers, never memory or kernels.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, final


from ..device.port import MemoryAccess
from .call_stack import CallStack

_HISTORY_LINES: Final = 12


@final
class Access:
    """One operation. ``ranges``: its byte ranges in the order in which it touches them."""

    __slots__ = ("component", "tick", "place", "what", "stack", "ranges", "is_batch")

    def __init__(
        self, component: int, tick: int, place: str, what: str, stack: CallStack, ranges: Sequence[MemoryAccess], is_batch: bool = False
    ) -> None:
        self.component: Final = component
        self.tick: Final = tick
        self.place: Final = place  # "host", "stream 3"
        self.what: Final = what
        self.stack: Final = stack
        self.ranges: Final = ranges
        self.is_batch: Final = is_batch  # its copies may run in any order, so none may depend on another

    def name(self) -> str:
        """The operation and its place, in one line."""
        return f"{self.place}, operation {self.tick}: {self.what}"

    def describe(self, note: str = "") -> str:
        """`name`, a note, and the stack that enqueued it, one line a frame."""
        lines = ["    at " + line for line in self.stack.lines()]
        return "\n".join([self.name() + note, *lines])

    def touches(self, beg: int, end: int) -> str | None:
        """How it touches these bytes (``reads``, ``writes``), or None."""
        reads = False
        writes = False
        for access in self.ranges:
            if access.address < end and beg < access.address + access.num_bytes:
                if access.is_write:
                    writes = True
                else:
                    reads = True
        if reads and writes:
            return "reads and writes"
        if writes:
            return "writes"
        return "reads" if reads else None


@final
class AccessLog:
    """The latest accesses, oldest first."""

    __slots__ = ("_accesses",)

    def __init__(self, max_accesses: int) -> None:
        self._accesses: Final[deque[Access]] = deque(maxlen=max_accesses)

    def add(self, access: Access) -> None:
        self._accesses.append(access)

    def history(self, beg: int, end: int) -> list[str]:
        """One line for each of the latest accesses that touched these bytes, oldest first."""
        lines: list[str] = []
        for access in reversed(self._accesses):
            how = access.touches(beg, end)
            if how is not None and len(lines) < _HISTORY_LINES:
                callers = access.stack.lines()
                lines.append(f"{access.name()} {how}" + (f", from {callers[0]}" if callers else ""))
        lines.reverse()
        return lines
