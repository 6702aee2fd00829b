"""Onboarding of held pages to a level, in waves: what fits is onboarded in batches, which frees slots below, and so on.

Where nothing is free on any level, a page swaps with one of level 0 through the bounce slots. `RoomCount` has said before that
all of it fits. The caller has taken the pages, and those of its own that must not be chosen as victims, out of their
queues; they stay out.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.errors import PageMoveError, StorageIOError
from ..base.ids import CacheTier
from ..device.stream_order import StreamOrder
from ..events.removal_cause import CAPACITY
from ..stats.page_counters import PageCounters
from .decision_digest import VICTIM
from .page_mover import PageMover, describe_lost_copies
from .page_queues import put_back, take_out
from .page_removal import count_failed_reads, place_page
from .page_storage import PageStorage
from .slot_reclaimer import SlotReclaimer

_TOP: Final = 0


@final
class OnboardList:
    """Held pages that a sequence needs: where they are now."""

    __slots__ = (
        "num_pool_groups", "target_level", "first_closed", "pages", "here", "num_here", "num_below", "num_freed", "points"
    )  # fmt: skip

    def __init__(self, storage: PageStorage, target_level: i64) -> None:
        num_pool_groups = storage.num_pool_groups
        num_levels = storage.num_levels
        self.num_pool_groups: Final[i64] = num_pool_groups
        self.target_level: Final = target_level
        self.first_closed: Final[i64] = storage.closed.first
        self.pages: Final[list[vec[i64]]] = [vec[i64]() for _ in range(num_pool_groups * num_levels)]
        """By index (level and pool group): those below the target level."""
        self.here: Final[list[vec[i64]]] = [vec[i64]() for _ in range(num_pool_groups)]
        """By pool group: those on the target level already, in a queue of victims."""
        self.num_here = vec[i64]([0] * int(num_pool_groups))
        self.num_below = vec[i64]([0] * int(num_pool_groups))
        self.num_freed = vec[i64]([0] * int(num_pool_groups))
        """Of ``num_below``, those whose slots others can go to once they are free: not on or below a closed level."""
        self.points = vec[i64]()
        """After which all onboarded pages are there."""

    def add(self, page: i64, level: i64, pool_group: i64, is_queued: bool) -> None:
        if level > self.target_level:
            index = level * self.num_pool_groups + pool_group
            self.pages[index] = append(self.pages[index], page)
            self.num_below[pool_group] += 1
            if level < self.first_closed:
                self.num_freed[pool_group] += 1
        elif level == self.target_level and is_queued:
            self.here[pool_group] = append(self.here[pool_group], page)
            self.num_here[pool_group] += 1

    def needs_work(self, extra: vec[i64]) -> bool:
        """Whether any page must be onboarded, or room made beside pages that must stay."""
        for pool_group in range(self.num_pool_groups):
            if self.num_below[pool_group] > 0 or extra[pool_group] > 0:
                return True
        return False


@final
class Onboarding:
    __slots__ = ("failed", "_storage", "_room", "_mover", "_order")

    def __init__(self, storage: PageStorage, room: SlotReclaimer, mover: PageMover) -> None:
        self.failed: list[int] = []
        """Pages that a disk could not read when the latest `bring_up` raised its error."""
        self._storage: Final = storage
        self._room: Final = room
        self._mover: Final = mover
        self._order: Final[StreamOrder] = storage.order

    def bring_up(self, wanted: OnboardList, extra: vec[i64], verify: bool, account: PageCounters | None) -> None:
        """Bring all listed pages to the target level and have ``extra`` slots per pool group free there besides.

        ``verify``: wait for what a disk reads, so that an error of its is raised here. `PageMoveError` or the disk's error
        leaves every page whole, some on the target level already, and all of the list in their queues again. Without an
        error none of them is in a queue. ``account``: counters of the sequence whose call it is.
        """
        self.failed = []
        self._take_out(wanted)
        try:
            for pool_group in range(wanted.num_pool_groups):
                self._bring_up_group(wanted, pool_group, extra[pool_group], verify, account)
        except BaseException:
            self.put_back(wanted)
            raise

    def _take_out(self, wanted: OnboardList) -> None:
        index: i64 = 0
        for pages in wanted.pages + wanted.here:  # both go through the pool groups in turn
            for page in pages:
                take_out(self._storage, page, index % wanted.num_pool_groups)
            index += 1

    def put_back(self, wanted: OnboardList) -> None:
        """The pages of the list that are not locked belong in their queues again."""
        index: i64 = 0
        for pages in wanted.pages + wanted.here:  # both go through the pool groups in turn
            for page in pages:
                put_back(self._storage, page, index % wanted.num_pool_groups)
            index += 1

    def _bring_up_group(self, wanted: OnboardList, pool_group: i64, extra: i64, verify: bool, account: PageCounters | None) -> None:
        storage = self._storage
        target_level = wanted.target_level
        allocator = storage.allocators[target_level * wanted.num_pool_groups + pool_group]
        remaining = wanted.num_below[pool_group]
        level = target_level + 1
        position: i64 = 0
        while True:
            if allocator.num_free < remaining + extra:
                self._room.free_slots(target_level, pool_group, remaining + extra, CAPACITY, account)
            if remaining == 0:
                assert allocator.num_free >= extra, "no room where it was counted"
                return
            pages = wanted.pages[level * wanted.num_pool_groups + pool_group]
            if position == len(pages):
                level += 1
                position = 0
                continue
            count = len(pages) - position
            if count > allocator.num_free:
                count = allocator.num_free
            if count > 0:
                self._move_up(wanted, pages, position, count, level, pool_group, verify, account)
            else:
                self._swap_up(wanted, pages[position], level, pool_group, verify, account)
                count = 1
            position += count
            remaining -= count

    def _move_up(
        self,
        wanted: OnboardList,
        pages: vec[i64],
        first: i64,
        count: i64,
        level: i64,
        pool_group: i64,
        verify: bool,
        account: PageCounters | None,
    ) -> None:
        moves = self._room.moves
        target_level = wanted.target_level
        source_index = level * wanted.num_pool_groups + pool_group
        moves.begin()
        try:
            for position in range(count):
                moves.add(pages[first + position], target_level * wanted.num_pool_groups + pool_group)
            point = moves.enqueue(pool_group, level, target_level)
            if verify and self._storage.pool_groups[source_index].tier == CacheTier.DISK:
                self._verify([int(page) for page in moves.pages], level, pool_group, account)
        except BaseException:
            moves.undo(level, pool_group, target_level)
            raise
        with self._storage.changes:
            for position in range(count):
                moves.settle(position, source_index, target_level, pool_group, point, account)
        wanted.points = append(wanted.points, point)

    def _verify(self, pages: list[int], level: i64, pool_group: i64, account: PageCounters | None) -> None:
        """Wait until these pages of a move are there; if the disk lost one they stay where they are, all of them."""
        reads = self._storage.reads
        was_lost = [page in reads.lost for page in pages]
        reads.wait_for(pages)
        count_failed_reads(self._storage, account)
        failed = [pages[position] for position in range(len(pages)) if pages[position] in reads.lost and not was_lost[position]]
        has_failed = len(failed) > 0
        for position in range(len(pages)):
            if has_failed and not was_lost[position] and not reads.is_corrupt(pages[position]):
                # The disk still has it, and may give it another time.
                reads.put_back(pages[position])
        if has_failed:
            self.failed = failed
            num_damaged = len([page for page in failed if reads.is_corrupt(page)])
            if num_damaged == 0:
                text = "they are there still, and resume() may be tried again"
            elif num_damaged == len(failed):
                text = "they are not what was written, and are lost"
            else:
                text = f"{num_damaged} of these are not what was written, and are lost; the others are there still"
            raise StorageIOError(
                f"reading {len(failed)} of {len(pages)} pages of pool group {pool_group} from level {level} (DISK) failed; {text}"
            )

    def _swap_up(self, wanted: OnboardList, page: i64, level: i64, pool_group: i64, verify: bool, account: PageCounters | None) -> None:
        """Every level is full of pages that must stay: a held page of level 0 goes where ``page`` comes from."""
        storage = self._storage
        assert wanted.target_level == _TOP, "pages are swapped with level 0 only"
        assert level < wanted.first_closed, "a page was to go to a closed level"
        held = storage.held_queues[pool_group]
        assert held.num_pages > 0, "nothing to swap with where it was counted"
        victim = held.first()
        storage.copies.forget(victim)
        storage.copies.forget(page)
        held.remove(victim)
        low_slot = storage.rows.slot(page)
        high_slot = storage.rows.slot(victim)
        low_ready = storage.allocators[level * wanted.num_pool_groups + pool_group].ready
        high_ready = storage.allocators[pool_group].ready
        low = storage.pool_groups[level * wanted.num_pool_groups + pool_group]
        is_disk = low.tier == CacheTier.DISK
        try:
            point = self._mover.swap(pool_group, level, low_slot, high_slot, verify, page, victim)
        except BaseException as failure:
            held.push_first(victim)
            timeline = self._mover.timeline(1, 0)
            try:
                mark = self._order.mark(timeline)
                low_ready[low_slot] = self._order.advance(low_ready[low_slot], timeline, mark)
                high_ready[high_slot] = self._order.advance(high_ready[high_slot], timeline, mark)
                if is_disk:
                    # What was read is written back, and it may not be known yet whether it could be read.
                    storage.reads.record(mark, level, low, vec[i64]([page]), vec[i64]([low_slot]), 1)
            except Exception as error:
                raise describe_lost_copies(error) from error
            if is_disk and verify and isinstance(failure, PageMoveError):
                self._verify([int(page)], level, pool_group, account)
            raise
        storage.digest.record(VICTIM, victim)
        storage.num_evicted[pool_group] += 1
        storage.counters.record_copied(level, _TOP, pool_group, 1, account)
        storage.counters.record_copied(_TOP, level, pool_group, 1, account)
        if is_disk and not verify:
            storage.reads.record(point, level, low, vec[i64]([page]), vec[i64]([low_slot]), 1)
        place_page(storage, page, _TOP, high_slot)
        place_page(storage, victim, level, low_slot)
        low_ready[low_slot] = point
        high_ready[high_slot] = point
        put_back(storage, victim, pool_group)
        wanted.points = append(wanted.points, point)
