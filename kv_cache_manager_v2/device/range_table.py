"""The range table of a device's tier: the reserved address ranges, and their mapped parts.

Both real devices record their ranges here, so that a wrong address is a clear error rather than a crash of the process.
The table only records: `require_` and `validate_` raise on the caller's mistake and change nothing; the device then
makes the call and records it, with `add` and `remove` and in `ReservedRange.mapped`.
"""

from bisect import bisect_right
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.errors import LogicError
from ..base.ids import CacheTier
from .interval_set import IntervalSet


@final
class ReservedRange:
    """``[address, address + num_bytes)``, reserved as a whole and mapped in parts."""

    __slots__ = ("address", "num_bytes", "mapped")

    def __init__(self, address: int, num_bytes: int) -> None:
        self.address: Final = address
        self.num_bytes: Final = num_bytes
        self.mapped: Final = IntervalSet()  # of addresses


@final
class RangeTable:
    """The table. Law: ranges do not overlap; mapped bytes are within their range."""

    __slots__ = ("granularity_bytes", "_tier", "_addresses", "_ranges")

    def __init__(self, tier: CacheTier, granularity_bytes: int) -> None:
        self._tier: Final = tier
        self.granularity_bytes: Final = granularity_bytes
        self._addresses: Final[list[int]] = []  # sorted, the first address of each range
        self._ranges: Final[list[ReservedRange]] = []  # in the same order

    def num_ranges(self) -> int:
        return len(self._ranges)

    def reserved_bytes(self) -> int:
        return sum([reserved.num_bytes for reserved in self._ranges])

    # -- reserved ranges ----------------------------------------------------------------------------------------------

    def validate_num_bytes(self, num_bytes: int) -> None:
        if num_bytes <= 0 or num_bytes % self.granularity_bytes != 0:
            raise ValueError(
                f"{num_bytes} bytes of {self._tier.name}: it must be a positive multiple of the granularity, {self.granularity_bytes}"
            )

    def add(self, address: int, num_bytes: int) -> None:
        index = bisect_right(self._addresses, address)
        self._addresses.insert(index, address)
        self._ranges.insert(index, ReservedRange(address, num_bytes))

    def require_releasable(self, address: int, num_bytes: int) -> None:
        reserved = self._find(address)
        if reserved is None or reserved.address != address:
            raise LogicError(f"no range of {self._tier.name} begins at {address:#x}: never reserved, or released already")
        if reserved.num_bytes != num_bytes:
            raise LogicError(
                f"the range of {self._tier.name} at {address:#x} has {reserved.num_bytes} bytes, not {num_bytes}; release it whole"
            )
        mapped_bytes = reserved.mapped.num_covered()
        if mapped_bytes > 0:
            raise LogicError(
                f"the range of {self._tier.name} at {address:#x} still has {mapped_bytes} bytes of memory; unmap_memory them first"
            )

    def remove(self, address: int) -> None:
        index = bisect_right(self._addresses, address) - 1
        assert self._addresses[index] == address
        self._addresses.pop(index)
        self._ranges.pop(index)

    # -- mapped parts -------------------------------------------------------------------------------------------------

    def require_unmapped(self, address: int, num_bytes: int) -> ReservedRange:
        """The range that contains these bytes, none of which is mapped."""
        reserved = self._require_within(address, num_bytes)
        if reserved.mapped.overlaps(address, address + num_bytes):
            raise LogicError(
                f"some of the {num_bytes} bytes of {self._tier.name} at {address:#x} are mapped already; unmap_memory them first"
            )
        return reserved

    def require_mapped(self, address: int, num_bytes: int) -> ReservedRange:
        """The range that contains these bytes, all of which are mapped."""
        reserved = self._require_within(address, num_bytes)
        if not reserved.mapped.covers(address, address + num_bytes):
            raise LogicError(f"not all of the {num_bytes} bytes of {self._tier.name} at {address:#x} are mapped")
        return reserved

    def require_accessible(self, addresses: vec[i64], count: i64, num_bytes: i64) -> None:
        """Each of the first ``count`` addresses begins ``num_bytes`` mapped bytes, all in one range."""
        beg: i64 = 0
        end: i64 = 0
        if count > 1 and self._is_one_interval(addresses, count, num_bytes):
            return
        for index in range(count):
            address = addresses[index]
            # Written so that no address of a caller can make the sum overflow.
            if address < beg or address >= end or num_bytes > end - address:
                reserved = self._find(address)
                interval: i64 = -1 if reserved is None else reserved.mapped.find(address)
                if reserved is None or interval < 0 or num_bytes > reserved.mapped.end(interval) - address:
                    raise LogicError(
                        f"copy {index} of {count}: not all of the {num_bytes} bytes of {self._tier.name} at {address:#x} are mapped"
                    )
                beg = reserved.mapped.beg(interval)
                end = reserved.mapped.end(interval)

    def _is_one_interval(self, addresses: vec[i64], count: i64, num_bytes: i64) -> bool:
        """Whether all of them lie in one mapped part, as those of a pool do."""
        least = addresses[0]
        most = least
        for index in range(1, count):
            address = addresses[index]
            if address < least:
                least = address
            elif address > most:
                most = address
        reserved = self._find(least)
        interval: i64 = -1 if reserved is None else reserved.mapped.find(least)
        if reserved is None or interval < 0:
            return False
        end: i64 = reserved.mapped.end(interval)
        return most < end and num_bytes <= end - most

    def require_bytes(self, address: int, num_bytes: int, what: str) -> None:
        """Check ``num_bytes`` mapped bytes at ``address``; neither needs to be a multiple of anything. ``what``: "a fill"."""
        if num_bytes <= 0:
            raise ValueError(f"{what} of {num_bytes} bytes: it must be positive")
        reserved = self._find(address)
        if reserved is None or not reserved.mapped.covers(address, address + num_bytes):
            raise LogicError(f"not all of the {num_bytes} bytes of {self._tier.name} at {address:#x} are mapped")

    def require_reserved(self, address: int) -> None:
        if self._find(address) is None:
            raise LogicError(f"no reserved range of {self._tier.name} contains {address:#x}; reserve one first")

    def mapped_interval(self, address: int) -> tuple[i64, i64]:
        """The beginning and end of the mapped bytes around ``address``, which is mapped; never beyond its range."""
        reserved = self._find(address)
        assert reserved is not None
        interval = reserved.mapped.find(address)
        return reserved.mapped.beg(interval), reserved.mapped.end(interval)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _find(self, address: int) -> ReservedRange | None:
        index = bisect_right(self._addresses, address) - 1
        if index < 0:
            return None
        reserved = self._ranges[index]
        return reserved if address < reserved.address + reserved.num_bytes else None

    def _require_within(self, address: int, num_bytes: int) -> ReservedRange:
        self.validate_num_bytes(num_bytes)
        if address % self.granularity_bytes != 0:
            raise ValueError(f"address {address:#x} of {self._tier.name} is no multiple of the granularity, {self.granularity_bytes}")
        reserved = self._find(address)
        if reserved is None:
            raise LogicError(f"no reserved range of {self._tier.name} contains {address:#x}; reserve_range first")
        if num_bytes > reserved.address + reserved.num_bytes - address:
            raise LogicError(
                f"{num_bytes} bytes at {address:#x} reach beyond their range, {reserved.num_bytes} bytes at {reserved.address:#x}"
            )
        return reserved
