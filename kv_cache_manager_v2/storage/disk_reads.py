"""Pages whose bytes come from a disk: no caller may rely on them until the read is known to have succeeded.

A read without a waiter may fail long after the page got its new slot, and the slot on the disk may have another page by
then. So every such page is *doubtful* until its read is known to be done, and *lost* if it failed: lost pages are not matched,
no sequence that needs one goes on, and they are dropped as soon as no sequence holds them.

    state      way out
    doubtful   settle: the read is done, or failed -> lost; forget: the page is gone
    lost       forget: the page is gone, or its bytes were replaced

A page of this list goes on under its id wherever it is moved or copied meanwhile; only where it lies again in the slot that it was
read from, that read does not matter any more (`forget_read`). Which pages exist, and where, never depends
on whether a read is done, only on whether one has failed.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.change_count import ChangeCount
from ..base.errors import StorageIOError
from ..base.package_log import PackageLog
from ..device.port import Device
from ..device.stream_order import StreamOrder
from ..pools.pool_group import PoolGroup


_logger: Final = PackageLog("kv_cache_manager_v2")
_FIRST_COPY: Final = -1
"""A copy of the page that was read from slot ``s`` has ``_FIRST_COPY - s`` in place of a slot."""


@final
class _Read:
    """Pages that one call brought from one disk, and the slots that they came from."""

    __slots__ = ("point", "pages", "level", "source", "slots")

    def __init__(self, point: i64, level: i64, source: PoolGroup) -> None:
        self.point: Final[int] = point
        self.pages: Final[dict[int, int]] = {}
        """Each with the slot that it was read from, or less than 0 for a copy of such a page."""
        self.level: Final[int] = level
        self.source: Final = source
        self.slots: Final[list[int]] = []

    def list_failed(self, error: StorageIOError) -> list[int]:
        """Its pages that may not have their bytes: those in the slots of the failed read, and copies of these; all, if the error does
        not say where it was."""
        if error.num_bytes == 0:
            return list(self.pages)
        slots = [slot for slot in self.slots if self._is_in(error, slot)]
        if not slots:
            return []
        return [page for page, slot in self.pages.items() if slot in slots or _FIRST_COPY - slot in slots]

    def _is_in(self, error: StorageIOError, slot: int) -> bool:
        source = self.source
        for pool in range(len(source.slot_bytes)):
            num_bytes: int = source.slot_bytes[pool]
            address: int = source.base_addresses[pool] + slot * num_bytes
            if address < error.address + error.num_bytes and error.address < address + num_bytes:
                return True
        return False


@final
class DiskReads:
    """See the module. ``is_idle``: nothing is doubtful or lost, as nearly always; then nothing else here need be asked."""

    __slots__ = ("is_idle", "lost", "repairs", "counted", "_uncounted", "_told", "_device", "_order", "_changes", "_reads", "_corrupt")

    def __init__(self, device: Device, order: StreamOrder, changes: ChangeCount) -> None:
        self.is_idle = True
        self.lost: Final[dict[int, str]] = {}
        """Each lost page, and where it could not be read from and why."""
        self.repairs: Final[dict[int, int]] = {}
        """By timeline, the point after the latest copy there that gave a doubtful or lost page its bytes: a sequence that awaited reads
        waits for these too, before it goes on with the page."""
        self.counted: Final[set[int]] = set()
        """Pages of which a failed read was counted: they are not once more when they are dropped. Some are on their disk still."""
        self._uncounted: dict[int, int] = {}
        """By page, the level that could not read it; until `take_uncounted`."""
        self._told: Final[set[int]] = set()
        """Levels whose failure is in the log."""
        self._device: Final = device
        self._order: Final = order
        self._changes: Final = changes
        self._reads: list[_Read] = []
        self._corrupt: Final[set[int]] = set()
        """Of the lost pages, those that the disk gave other bytes for: it has no better ones, so reading again is of no use."""

    def record(self, point: i64, level: i64, source: PoolGroup, pages: vec[i64], slots: vec[i64], count: i64) -> None:
        """These pages are read from those slots of a disk; done or failed at ``point``."""
        read = _Read(point, level, source)
        for position in range(count):
            read.pages[int(pages[position])] = int(slots[position])
            read.slots.append(int(slots[position]))
        self._reads.append(read)
        self.is_idle = False

    def settle(self) -> None:
        """See which reads are done by now, and which have failed. Waits for nothing."""
        left = [read for read in self._reads if not self._is_over(read.point)]
        # The device tells each failure once: interrupted before it is recorded, a lost page would be taken for a good one.
        with self._changes:
            # After the look at what is over: what is done has told its failures.
            for error in self._device.take_failed_reads():
                for read in self._reads:
                    for page in read.list_failed(error):
                        self.lost[page] = f"level {read.level} (DISK): {error}"
                        if page not in self.counted:
                            self._uncounted[page] = read.level
                        if error.is_corrupt:
                            self._corrupt.add(page)
                        else:
                            self._tell(read.level, error)
            self._reads = left
            self.is_idle = len(left) == 0 and len(self.lost) == 0

    def _tell(self, level: int, error: StorageIOError) -> None:
        """Once for each level. Of wrong bytes the durable level tells."""
        if level not in self._told:
            self._told.add(level)
            _logger.error(
                "level %d (DISK) could not read pages back: %s. Requests that need them raise LoadFailed; statistics count further pages",
                level,
                error,
            )

    def take_uncounted(self) -> dict[int, int]:
        """Pages whose reads have failed since the last time, each with the level: they are counted from now on."""
        taken = self._uncounted
        self._uncounted = {}
        self.counted.update(taken)
        return taken

    def wait_for(self, pages: list[int]) -> None:
        """Block the host until none of these pages is doubtful."""
        for read in self._reads:
            if any([page in read.pages for page in pages]):
                self.wait(read.point)
        self.settle()

    def points_of(self, pages: list[int]) -> list[int]:
        """After which those of the pages that are doubtful have their bytes, or are lost."""
        return [read.point for read in self._reads if any([page in read.pages for page in pages])]

    def wait(self, point: i64) -> None:
        """Block the host until the point is passed. What failed before it is not raised: `settle` finds out what it was."""
        try:
            self._order.synchronize(point)
        except StorageIOError:
            self.is_idle = False

    def has_lost(self, first_page: i64, count: i64) -> bool:
        """Whether one of ``count`` pages is lost."""
        for page in range(first_page, first_page + count):
            if page in self.lost:
                return True
        return False

    def knows(self, page: int) -> bool:
        """Whether it is doubtful or lost."""
        return not self.is_idle and (page in self.lost or self.is_doubtful(page))

    def is_corrupt(self, page: int) -> bool:
        """Whether it is lost for good: reading it again gives the same wrong bytes."""
        return page in self._corrupt

    def is_doubtful(self, page: int) -> bool:
        for read in self._reads:
            if page in read.pages:
                return True
        return False

    def _is_over(self, point: i64) -> bool:
        try:
            return self._order.is_done(point)
        except StorageIOError:
            return True

    # -- pages come and go --------------------------------------------------------------------------------------------

    def forget(self, page: i64) -> None:
        """The page is gone, or has other bytes."""
        if len(self.counted) > 0:
            self.counted.discard(int(page))
        self.put_back(page)

    def put_back(self, page: i64) -> None:
        """The page is where it was before it was read, and may be read again."""
        if self.is_idle:
            return
        self.lost.pop(int(page), None)
        self._corrupt.discard(int(page))
        for read in self._reads:
            read.pages.pop(int(page), None)

    def forget_read(self, page: i64, level: i64, slot: i64) -> None:
        """The page lies in that slot of that level again, as it did before it was read from there."""
        if self.is_idle:
            return
        for read in self._reads:
            if read.level == level and read.pages.get(int(page)) == int(slot):
                del read.pages[int(page)]

    def record_repair(self, page: i64, timeline: i64, point: i64) -> None:
        """The page has other bytes after ``point``, a mark of ``timeline``."""
        self.forget(page)
        self.repairs[int(timeline)] = int(point)

    def record_copy(self, source_page: i64, target_page: i64) -> None:
        """The target gets the bytes of the source, and is as good as they are."""
        if self.is_idle:
            return
        source = int(source_page)
        target = int(target_page)
        if source in self.lost:
            self.lost[target] = self.lost[source]
        for read in self._reads:
            if source in read.pages:
                slot = read.pages[source]
                read.pages[target] = _FIRST_COPY - slot if slot >= 0 else slot
