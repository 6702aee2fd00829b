"""Levels whose disk has failed to take a write: no page goes there any more.

The failed write has lost nothing: the device keeps its bytes in memory, and everything on the level stays readable and is onboarded as
ever. But whatever went there further on would be kept in memory too, or be lost with the disk, so the level is *closed*, for
good: levels above it have nothing below them, and drop what they would move down.

    state      way out
    open       look: a disk says that a write has failed; close_for_writing: the level is only read, from the start
    closed     none

A disk is looked at where room is planned, never between a plan and its execution. A failed disk is a fact from outside, as a
device's error is: managers with equal calls may decide differently after one.
"""

from typing import Final, final

from mypy_extensions import i64

from ..base.ids import CacheTier
from ..base.package_log import PackageLog
from ..device.port import Device
from ..pools.pool_group import PoolGroup

_READ_ONLY: Final = "it is read-only"
_logger: Final = PackageLog("kv_cache_manager_v2")


@final
class ClosedLevels:
    """``first``: the warmest closed level, or the number of levels: what is there or below is out of reach from above."""

    __slots__ = ("first", "has_disks", "_device", "_pool_groups", "_num_pool_groups", "_reasons")

    def __init__(self, device: Device, pool_groups: list[PoolGroup], num_pool_groups: int) -> None:
        """``pool_groups`` of all levels, of which there are as many as there ever will be."""
        self.first: i64 = len(pool_groups) // num_pool_groups
        self.has_disks: Final[bool] = any([group.tier == CacheTier.DISK for group in pool_groups])
        self._device: Final = device
        self._pool_groups: Final = pool_groups
        self._num_pool_groups: Final = num_pool_groups
        self._reasons: Final[dict[int, str]] = {}

    def look(self) -> None:
        """See whether a disk has failed since this was asked last. Waits for nothing."""
        for index, group in enumerate(self._pool_groups):
            level = index // self._num_pool_groups
            if group.tier == CacheTier.DISK and level not in self._reasons:
                for address in group.base_addresses:
                    failure = self._device.disk_failure(address)
                    if failure is not None and level not in self._reasons:
                        self._close(level, str(failure))

    def _close(self, level: int, reason: str) -> None:
        self._reasons[level] = reason
        if level < self.first:
            self.first = level
        _logger.error(
            "level %d (DISK) takes no more pages: %s. What is there stays readable; levels above it drop what would go there", level, reason
        )

    def close_for_writing(self, level: int) -> None:
        """No page ever goes there, but to the copy that it has there."""
        self._reasons[level] = _READ_ONLY
        if level < self.first:
            self.first = level

    def is_closed(self, level: i64) -> bool:
        return int(level) in self._reasons

    def has_failed(self, level: int) -> bool:
        """Whether it is closed as its disk failed, and not as it is only read."""
        return self._reasons.get(level, _READ_ONLY) != _READ_ONLY

    def reason(self, level: int) -> str | None:
        """The disk's error; None while the level is open."""
        return self._reasons.get(level)
