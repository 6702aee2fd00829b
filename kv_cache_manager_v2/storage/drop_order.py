"""The drop order finds the page that is dropped where all levels are full: the one of least value, on whatever level it lies.

Where all levels are LEARNED any two pages can be compared (`LevelOrder`). Else each level says what it would drop, and these pages are
compared by priority, and by whether they are evict-first; of equal ones the coldest goes.

Of one path of the tree the leaf goes first, over levels too. The page of least value, `victim`, has a page below it on another level:

    the page below has more value     the victim has as much from now on, and the page of least value is looked for anew
    it has equal value                the level of the page below drops its next one, or, if that has one below it too and so on in a
                                      circle, the page at the end of the path
    it has less value, on a level that is warmer than those on which slots are freed    the victim goes, and what is below goes with it
"""

from typing import Final, final

from mypy_extensions import i64

from .page_owner import ANY_LEVEL
from .page_queues import defer, stands_first
from .page_removal import find_page_below, find_victim
from .page_rows import NO_PAGE
from .page_storage import PageStorage
from .victim_queue import NO_VICTIM

NO_LEVEL: Final = -1
MOST_STEPS: Final = 64
"""Down a path of pages of equal value, on levels by turns; if that is not the end, what is below goes too."""


@final
class DropOrder:
    __slots__ = ("victim", "goes_alone", "_storage")

    def __init__(self, storage: PageStorage) -> None:
        self.victim: i64 = NO_VICTIM
        """The page that the latest `find_level` has found."""
        self.goes_alone = False
        """Not with the next ones of its level: it is not the first there, or pages on other levels go with it."""
        self._storage: Final = storage

    def find_level(self, first: i64, last: i64, pool_group: i64) -> i64:
        """The level, from ``first`` to ``last``, whose next page to drop is of least value, of equal ones the coldest; NO_LEVEL
        where no page can be dropped."""
        while True:
            self.goes_alone = False
            level = self._find_least(first, last, pool_group)
            if level == NO_LEVEL:
                return NO_LEVEL
            if not self._is_deferred(level, first, pool_group):
                return self._storage.rows.level(self.victim)

    def _find_least(self, first: i64, last: i64, pool_group: i64) -> i64:
        storage = self._storage
        found: i64 = NO_LEVEL
        for level in range(first, last + 1):
            index = level * storage.num_pool_groups + pool_group
            if storage.queues[index].num_pages > 0:
                page = find_victim(storage, index, True)
                if found == NO_LEVEL or not self._ranks_under(self.victim, page, pool_group):
                    found = level
                    self.victim = page
        return found

    def _ranks_under(self, page: i64, other: i64, pool_group: i64) -> bool:
        """Whether the page goes before the other one, whatever their levels. False where they are of equal value."""
        storage = self._storage
        if storage.has_one_order:
            return storage.level_orders[pool_group].ranks_under(page, other)
        priority = storage.rows.priority(page)
        other_priority = storage.rows.priority(other)
        if priority != other_priority:
            return priority < other_priority
        return self._goes_first(page, pool_group) and not self._goes_first(other, pool_group)

    def _goes_first(self, page: i64, pool_group: i64) -> bool:
        storage = self._storage
        return stands_first(storage, page, storage.rows.level(page) * storage.num_pool_groups + pool_group)

    def _is_deferred(self, level: i64, first: i64, pool_group: i64) -> bool:
        """Whether the victim has more value now, as a page below it has. If not, the victim is one that may go."""
        storage = self._storage
        num_left = storage.num_levels + MOST_STEPS
        while True:
            below = find_page_below(storage, self.victim, ANY_LEVEL)
            if below == NO_PAGE or storage.rows.num_holds(below) > 0:
                return False
            if self._ranks_under(self.victim, below, pool_group):
                defer(storage, level * storage.num_pool_groups + pool_group, self.victim, below)
                return True
            num_left -= 1
            if storage.rows.level(below) < first or num_left == 0:
                self.goes_alone = True
                return False
            level = storage.rows.level(below)
            if num_left > MOST_STEPS:
                self.victim = find_victim(storage, level * storage.num_pool_groups + pool_group, True)
            else:
                self.victim = below
                self.goes_alone = True
