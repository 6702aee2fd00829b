"""A slot ledger: what the resizes of a batch have taken and released by then, while the batch is only asked about.

Evictions need no simulation: they turn droppable pages into free slots and move held pages down, and `RoomCount` adds these up. Pages
that sequences of the batch share are free or evictable once the last of them has released them, so each planned release is counted.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from .shared_state import SharedState


@final
class SlotLedger:
    """Empty at first; slots are per pool group."""

    __slots__ = ("taken", "num_released", "num_left", "_shared", "_newly_held", "_gone_on")

    def __init__(self, shared: SharedState) -> None:
        self.taken: Final = vec[i64]([0] * shared.storage.num_pool_groups)
        """Slots that the resizes take, less those that they make free or evictable."""
        self.num_released: Final[dict[int, int]] = {}
        """By page, how many sequences have released it by then."""
        self.num_left: Final[dict[int, int]] = {}
        """By first page, how many sequences that had a shared block as their own have left it by then."""
        self._shared: Final = shared
        self._newly_held: Final = vec[i64]([0] * shared.storage.num_pool_groups)
        """Pages that suspended sequences hold and that nothing locks any more then."""
        self._gone_on: Final[dict[int, int]] = {}
        """By twin, the published page that it goes on as by then."""

    def find_refusal(self, peak: vec[i64]) -> bool:
        """`RoomCount.find_refusal` of ``peak`` slots beyond those that are taken by then."""
        nothing = vec[i64]([0] * len(peak))
        needed = vec[i64]([self.taken[index] + peak[index] for index in range(len(peak))])
        held_less = vec[i64]([-count for count in self._newly_held])
        return self._shared.traffic.room_count.find_onboard_refusal(needed, held_less, nothing, nothing)

    def is_last(self, page: i64) -> bool:
        """Whether no sequence has the page any more once one more has released it."""
        page = self._page_by_then(page)
        num_holds, _num_locks = self._count_users(page)
        return num_holds == self.num_released.get(int(page), 0) + 1

    def release(self, page: i64, pool_group: i64) -> None:
        page = self._page_by_then(page)
        count = self.num_released.get(int(page), 0) + 1
        self.num_released[int(page)] = count
        num_holds, num_locks = self._count_users(page)
        if num_locks == count and self._let_twin_go_on(page):
            self.taken[pool_group] -= 1
        elif num_holds == count:
            self.taken[pool_group] -= 1
        elif num_locks == count and self._shared.storage.last_level > 0:
            self._newly_held[pool_group] += 1

    def _page_by_then(self, page: i64) -> i64:
        """The published page that a twin goes on as by then, or the page itself."""
        return self._gone_on.get(int(page), int(page))

    def _count_users(self, page: i64) -> tuple[int, int]:
        """Holds and locks of now, with those of the twins that went on as that page by then."""
        rows = self._shared.storage.rows
        num_holds, num_locks = int(rows.num_holds(page)), int(rows.num_locks(page))
        for twin, published in self._gone_on.items():
            if published == int(page):
                num_holds += int(rows.num_holds(twin))
                num_locks += int(rows.num_locks(twin))
        return num_holds, num_locks

    def _let_twin_go_on(self, page: i64) -> bool:
        """The page has lost its last lock: its oldest twin, if it has one, takes its place, and its slot is free."""
        twin_pages = self._shared.claims.twin_pages
        if twin_pages is not None:
            for twin in twin_pages.twins_of(page):
                if twin not in self._gone_on:
                    self._gone_on[twin] = int(page)
                    return True
        return False

