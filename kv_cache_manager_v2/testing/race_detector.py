"""The race detector: decides for each access, when it is enqueued, whether it is ordered after the earlier ones.

Owns the host's clock, the shadow memory, the log of recent accesses and the list of races. A refused access is
not recorded; its `RaceError` is kept in `races` and raised. Knows streams only by their clocks.
"""

from collections.abc import Sequence
from typing import Final, final


from ..base.ids import CacheTier
from ..device.port import MemoryAccess
from .access_log import Access, AccessLog
from .call_stack import capture_stack
from .happens_before import HOST, VectorClock
from .race_error import RaceError
from .shadow_memory import ShadowMemory
from .simulated_memory import AddressRange, AddressRanges
from .stream_scheduler import StreamQueue


@final
class RaceDetector:
    """Detects races; see the module's docstring. Every operation first takes its tick (`begin_operation`), then is checked."""

    __slots__ = ("races", "_log", "_shadow", "host_clock", "_host_version")

    def __init__(self, ranges: AddressRanges, log_length: int) -> None:
        self.races: Final[list[RaceError]] = []
        self._log: Final = AccessLog(log_length)
        self._shadow: Final = ShadowMemory(ranges, self._log)
        self.host_clock: Final = VectorClock([0])
        self._host_version = 0  # changes with the host's clock, so that a stream joins it only after a change

    # -- clocks -------------------------------------------------------------------------------------------------------

    def begin_operation(self, stream: StreamQueue) -> int:
        """The tick of a stream's next operation; the stream's clock joins the host's."""
        if stream.host_version != self._host_version:
            stream.clock.join(self.host_clock)
            stream.host_version = self._host_version
        return stream.clock.advance(stream.component)

    def join_host(self, clock: VectorClock) -> None:
        """The host has waited for everything under ``clock``."""
        self.host_clock.join(clock)
        self._host_version += 1

    # -- operations of streams ----------------------------------------------------------------------------------------

    def check_copies(
        self, stream: StreamQueue, tick: int, dst_tier: CacheTier, src_tier: CacheTier, copies: Sequence[MemoryAccess]
    ) -> None:
        """``copies`` are pairs of equal length, the read and then the write; none may depend on another."""
        stream.record_access()
        access = Access(stream.component, tick, stream.place, "copy batch", capture_stack(), copies, is_batch=True)
        shadow = self._shadow
        try:
            for position in range(0, len(copies), 2):
                num_bytes = copies[position].num_bytes
                src_address = copies[position].address
                dst_address = copies[position + 1].address
                shadow.require_tier(access, src_tier, src_address, src_address + num_bytes)
                shadow.require_tier(access, dst_tier, dst_address, dst_address + num_bytes)
                shadow.copy(access, stream.clock, dst_address, src_address, num_bytes)
        except RaceError as race:
            self.races.append(race)
            raise
        self._log.add(access)

    def check_fill(self, stream: StreamQueue, tick: int, address: int, num_bytes: int) -> None:
        ranges = [MemoryAccess(address, num_bytes, True)]
        stream.record_access()
        access = Access(stream.component, tick, stream.place, "fill", capture_stack(), ranges)
        try:
            self._shadow.require_tier(access, CacheTier.GPU_MEM, address, address + num_bytes)
        except RaceError as race:
            self.races.append(race)
            raise
        self._check(access, stream.clock)

    def check_kernel(self, stream: StreamQueue, tick: int, name: str, ranges: Sequence[MemoryAccess]) -> None:
        stream.record_access()
        what = "kernel " + name
        self._check(Access(stream.component, tick, stream.place, what, capture_stack(), ranges), stream.clock)

    # -- operations of the host ---------------------------------------------------------------------------------------

    def record_map(self, beg: int, end: int) -> None:
        self._log.add(self._begin_host_operation("map", beg, end - beg, True))
        self._shadow.map(beg, end)

    def record_unmap(self, beg: int, end: int) -> None:
        """Record the unmapping of bytes; an error while an access may still be running."""
        access = self._begin_host_operation("unmap", beg, end - beg, True)
        try:
            self._shadow.unmap(access, self.host_clock, beg, end)
        except RaceError as race:
            self.races.append(race)
            raise
        self._log.add(access)

    def note_release(self, address_range: AddressRange) -> None:
        self._log.add(self._begin_host_operation("release of the range", address_range.address, address_range.num_bytes, True))

    def check_host_access(self, address: int, num_bytes: int, is_write: bool) -> None:
        self._check(self._begin_host_operation("access", address, num_bytes, is_write), self.host_clock)

    def record_expected_write(self, address: int, num_bytes: int) -> None:
        access = self._begin_host_operation("expectation of a write", address, num_bytes, True)
        try:
            self._shadow.expect_write(access, address, address + num_bytes)
        except RaceError as race:
            self.races.append(race)
            raise

    # -- inside -------------------------------------------------------------------------------------------------------

    def _check(self, access: Access, clock: VectorClock) -> None:
        shadow = self._shadow
        try:
            for one in access.ranges:
                if one.num_bytes > 0:
                    if one.is_write:
                        shadow.write(access, clock, one.address, one.address + one.num_bytes)
                    else:
                        shadow.read(access, clock, one.address, one.address + one.num_bytes)
        except RaceError as race:
            self.races.append(race)
            raise
        self._log.add(access)

    def _begin_host_operation(self, what: str, address: int, num_bytes: int, is_write: bool) -> Access:
        tick = self.host_clock.advance(HOST)
        self._host_version += 1
        return Access(HOST, tick, "the host", what, capture_stack(), [MemoryAccess(address, num_bytes, is_write)])
