"""The findings of the simulated device: two accesses without an order, or an access to bytes that must not be touched.

A `RaceError` is a finding about the program under test, not a condition that a program could recover from. It is
therefore no `KVCacheManagerError`: code that catches the library's own errors must not swallow it.
`SimulatedDevice.races` keeps all of them, for the case that one was swallowed nevertheless.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any

from mypy_extensions import mypyc_attr


class RaceKind(Enum):
    """The kind of error; the value is the report's text."""

    WRITE_AFTER_WRITE = "written again while an earlier write may still be running"
    WRITE_AFTER_READ = "written while an earlier reader may still be running"
    READ_AFTER_WRITE = "read while the write of these bytes may still be running"
    UNWRITTEN = "read, but not written since the memory was mapped, or since a write was announced"
    UNMAPPED = "touched, but there is no memory behind this address"
    FREED = "touched, but the address range was released"
    UNMAP_IN_USE = "unmapped while an access may still be running"
    BATCH_OVERLAP = "copied in one batch with a copy that depends on it"
    WRONG_TIER = "copied or filled as memory of a tier that this address does not belong to"


@mypyc_attr(native_class=False)
class RaceError(Exception):
    """An access that may go wrong in some legal order of the streams, whatever order this run happened to take.

    ``address`` and ``num_bytes``: the bytes in question; ``current`` describes the refused access,
    ``earlier`` the one it conflicts with (None if there is none), both with the stack that enqueued them;
    ``history``: the accesses to these bytes before, oldest first, as far back as the device's log reaches.
    """

    def __init__(self, kind: RaceKind, address: int, num_bytes: int, current: str, earlier: str | None, history: Sequence[str]) -> None:
        self.kind = kind
        self.address = address
        self.num_bytes = num_bytes
        self.current = current
        self.earlier = earlier
        self.history = tuple(history)
        lines = [f"bytes [{address:#x}, {address + num_bytes:#x}) {kind.value}", "now: " + current]
        if earlier is not None:
            lines.append("earlier: " + earlier)
        if self.history:
            lines.append("history of these bytes, oldest first:")
            lines.extend(["  " + line for line in self.history])
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.address, self.num_bytes, self.current, self.earlier, self.history)
