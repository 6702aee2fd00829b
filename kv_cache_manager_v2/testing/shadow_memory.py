"""Shadow memory: the last writer and the readers of every mapped byte, and whether it was ever written.
Mapped memory is divided into *segments*, runs of bytes with the same state; they are kept sorted by address and never overlap,
and the gaps between them are memory that is not mapped. Accesses must be given in an order in which an earlier one
never happens after a later one (the order of the enqueueing calls is one). Each access is checked against the
segments, under the accessor's vector clock, and then recorded:

    access    must have happened before it                          recorded
    read      the last write                                        one more reader
    write     the last write, all readers since                     the last writer; no readers; written
    copy      like a read of the source and a write of the target   the target is written where the source is
    unmap     the last write, all readers since                     a gap

A read of bytes that were never written is an error; a copy of them is not (a page that is only partly filled is copied
whole), but the target then counts as never written. Bytes that a write is expected for count as never written until it comes.
"""

from bisect import bisect_left, bisect_right
from typing import Final, NoReturn, final


from ..base.ids import CacheTier
from .access_log import Access, AccessLog
from .happens_before import VectorClock
from .race_error import RaceError, RaceKind
from .simulated_memory import AddressRanges


@final
class _Segment:
    __slots__ = ("beg", "end", "writer", "is_written", "readers")

    def __init__(self, beg: int, end: int) -> None:
        self.beg = beg
        self.end = end
        self.writer: Access | None = None
        self.is_written = False
        self.readers: tuple[Access, ...] = ()


@final
class ShadowMemory:
    """The segments. Conservation: they cover exactly the mapped bytes, each byte once."""

    __slots__ = ("_ranges", "_log", "_begs", "_segments", "_reader", "_readers")

    def __init__(self, ranges: AddressRanges, log: AccessLog) -> None:
        self._ranges: Final = ranges
        self._log: Final = log
        self._begs: Final[list[int]] = []  # of `_segments`, for bisection
        self._segments: Final[list[_Segment]] = []
        self._reader: Access | None = None
        self._readers: tuple[Access, ...] = ()  # `_reader` alone: made once per access, stored in most segments that it reads

    # -- mapping ------------------------------------------------------------------------------------------------------

    def map(self, beg: int, end: int) -> None:
        """Map ``[beg, end)``, none of it mapped so far, as unwritten memory."""
        position = bisect_left(self._begs, beg)
        self._begs.insert(position, beg)
        self._segments.insert(position, _Segment(beg, end))

    def unmap(self, access: Access, clock: VectorClock, beg: int, end: int) -> None:
        """Unmap ``[beg, end)``, all of it mapped; raises unless all accesses to it happened before."""
        first, last = self._cut(access, beg, end)
        for position in range(first, last):
            segment = self._segments[position]
            writer = segment.writer
            if writer is not None and not clock.includes(writer.component, writer.tick):
                self._report(RaceKind.UNMAP_IN_USE, access, writer, segment.beg, segment.end)
            for reader in segment.readers:
                if not clock.includes(reader.component, reader.tick):
                    self._report(RaceKind.UNMAP_IN_USE, access, reader, segment.beg, segment.end)
        del self._begs[first:last]
        del self._segments[first:last]

    # -- accesses -----------------------------------------------------------------------------------------------------

    def read(self, access: Access, clock: VectorClock, beg: int, end: int) -> None:
        """Check and record a read that uses the bytes: they must have been written."""
        first, last = self._cut(access, beg, end)
        for position in range(first, last):
            segment = self._segments[position]
            self._read_segment(segment, access, clock)
            if not segment.is_written:
                self._report(RaceKind.UNWRITTEN, access, segment.writer, segment.beg, segment.end)

    def write(self, access: Access, clock: VectorClock, beg: int, end: int) -> None:
        """Check and record a write of all these bytes."""
        first, last = self._cut(access, beg, end)
        for position in range(first, last):
            self._check_write(self._segments[position], access, clock)
        self._become_one(first, last, access, True)

    def expect_write(self, access: Access, beg: int, end: int) -> None:
        """What is in these bytes is not to be read; when it was read or written before still counts."""
        first, last = self._cut(access, beg, end)
        for segment in self._segments[first:last]:
            segment.is_written = False

    def require_tier(self, access: Access, tier: CacheTier, beg: int, end: int) -> None:
        """Raise unless these bytes, mapped or not, belong to that tier."""
        owner = self._ranges.find(beg)
        if owner is None or owner.is_released:
            self._report_missing(access, beg, end)
        if owner.tier != tier:
            raise RaceError(
                RaceKind.WRONG_TIER,
                beg,
                end - beg,
                access.describe(f", which names tier {tier.name} but touches {owner.describe()}"),
                None,
                self._log.history(beg, end),
            )

    def copy(self, access: Access, clock: VectorClock, dst: int, src: int, num_bytes: int) -> None:
        """A read of the source that uses nothing, and a write of the target that copies what is written."""
        first, last = self._cut(access, src, src + num_bytes)
        # Offsets at which the source changes between written and not; it begins as `is_written`.
        is_written = self._segments[first].is_written
        changes: list[int] = []
        was_written = is_written
        for position in range(first, last):
            segment = self._segments[position]
            self._read_segment(segment, access, clock)
            if segment.is_written != was_written:
                changes.append(segment.beg - src)
                was_written = segment.is_written
        first, last = self._cut(access, dst, dst + num_bytes)
        for position in range(first, last):
            self._check_write(self._segments[position], access, clock)
        if not changes:
            self._become_one(first, last, access, is_written)
            return
        changes.append(num_bytes)
        beg = dst
        for change in changes:
            first, last = self._cut(access, beg, dst + change)
            self._become_one(first, last, access, is_written)
            beg = dst + change
            is_written = not is_written

    # -- inside -------------------------------------------------------------------------------------------------------

    def _cut(self, access: Access, beg: int, end: int) -> tuple[int, int]:
        """Positions of the segments that make up ``[beg, end)`` exactly, split if need be; raises if not all of it is mapped."""
        first = bisect_right(self._begs, beg) - 1
        if first < 0:
            self._report_missing(access, beg, end)
        segment = self._segments[first]
        if segment.beg == beg and segment.end == end:
            return first, first + 1
        if segment.end <= beg:
            self._report_missing(access, beg, end)
        if segment.beg < beg:
            first += 1
            segment = self._split(first - 1, beg)
        last = first
        while segment.end < end:
            reached = segment.end
            last += 1
            if last == len(self._segments):
                self._report_missing(access, reached, end)
            segment = self._segments[last]
            if segment.beg != reached:
                self._report_missing(access, reached, end)
        if segment.end > end:
            self._split(last, end)
        return first, last + 1

    def _split(self, position: int, address: int) -> _Segment:
        """Split a segment at ``address``; returns the second part, which follows it."""
        left = self._segments[position]
        right = _Segment(address, left.end)
        right.writer = left.writer
        right.is_written = left.is_written
        right.readers = left.readers
        left.end = address
        self._begs.insert(position + 1, address)
        self._segments.insert(position + 1, right)
        return right

    def _read_segment(self, segment: _Segment, access: Access, clock: VectorClock) -> None:
        writer = segment.writer
        if writer is access:
            if access.is_batch:
                self._report(RaceKind.BATCH_OVERLAP, access, None, segment.beg, segment.end)
        elif writer is not None and not clock.includes(writer.component, writer.tick):
            self._report(RaceKind.READ_AFTER_WRITE, access, writer, segment.beg, segment.end)
        if access is not self._reader:
            self._reader = access
            self._readers = (access,)
        readers = segment.readers
        if readers is self._readers:
            return
        # Readers that happened before this one need no record: an access after this one is after them too.
        still_open = [reader for reader in readers if not clock.includes(reader.component, reader.tick)]
        segment.readers = (access, *still_open) if still_open else self._readers

    def _check_write(self, segment: _Segment, access: Access, clock: VectorClock) -> None:
        writer = segment.writer
        if writer is access:
            if access.is_batch:
                self._report(RaceKind.BATCH_OVERLAP, access, None, segment.beg, segment.end)
        elif writer is not None and not clock.includes(writer.component, writer.tick):
            self._report(RaceKind.WRITE_AFTER_WRITE, access, writer, segment.beg, segment.end)
        for reader in segment.readers:
            if reader is access:
                if access.is_batch:
                    self._report(RaceKind.BATCH_OVERLAP, access, None, segment.beg, segment.end)
            elif not clock.includes(reader.component, reader.tick):
                self._report(RaceKind.WRITE_AFTER_READ, access, reader, segment.beg, segment.end)

    def _become_one(self, first: int, last: int, writer: Access, is_written: bool) -> None:
        """Merge segments ``[first, last)``, which one access wrote, and their left neighbour if it is the same."""
        segments = self._segments
        segment = segments[first]
        end = segments[last - 1].end
        if first > 0:
            left = segments[first - 1]
            if left.writer is writer and left.end == segment.beg and left.is_written == is_written:
                left.end = end
                del self._begs[first:last]
                del segments[first:last]
                return
        segment.end = end
        segment.writer = writer
        segment.is_written = is_written
        segment.readers = ()
        if last - first > 1:
            del self._begs[first + 1 : last]
            del segments[first + 1 : last]

    # -- reports ------------------------------------------------------------------------------------------------------

    def _report(self, kind: RaceKind, access: Access, earlier: Access | None, beg: int, end: int) -> NoReturn:
        raise RaceError(
            kind, beg, end - beg, access.describe(), None if earlier is None else earlier.describe(), self._log.history(beg, end)
        )

    def _report_missing(self, access: Access, beg: int, end: int) -> NoReturn:
        owner = self._ranges.find(beg)
        if owner is not None and not owner.is_released:
            kind = RaceKind.UNMAPPED
            place = f"{owner.describe()}; nothing is mapped at this place of it"
        elif owner is not None:
            kind = RaceKind.FREED
            place = f"{owner.describe()}, which was released"
        else:
            kind = RaceKind.UNMAPPED
            place = "an address that was never reserved"
        current = access.describe(f", which touches {place}")
        raise RaceError(kind, beg, end - beg, current, None, self._log.history(beg, end))
