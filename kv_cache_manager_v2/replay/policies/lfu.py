"""Least frequently used: the page with the fewest uses goes first, the longest unused of those.

A page counts how often it was reused while it was there, up to `MOST_USES`; a line per count.
"""

from typing import Final, final

from mypy_extensions import i64

from ...storage.page_rows import PageRows
from ...storage.victim_queue import NO_VICTIM
from .listed_queue import ListedQueue
from .page_lists import NO_PAGE

MOST_USES: Final = 31


@final
class LfuQueue(ListedQueue):
    """The note of a page is its number of uses; the list is the same."""

    __slots__ = ()

    def __init__(self, rows: PageRows) -> None:
        super().__init__(rows, MOST_USES + 1)

    def push(self, page: i64) -> None:
        self._lists.push_last(page, self._lists.note(page))
        self._note_queued(page)

    def push_first(self, page: i64) -> None:
        self._lists.set_note(page, 0)
        self._lists.push_first(page, 0)
        self._note_queued(page)

    def use(self, page: i64) -> None:
        uses = self._lists.unlink(page)
        self._lists.set_note(page, uses + 1 if uses < MOST_USES else uses)
        self._note_left(page)

    def evict(self, page: i64) -> None:
        self.remove(page)

    def first(self) -> i64:
        if self.num_pages == 0:
            return NO_VICTIM
        lists = self._lists
        priority = lists.lowest_priority()
        uses: i64 = 0
        while True:
            page = lists.first(uses, priority)
            if page != NO_PAGE:
                return page
            uses += 1

    def set_capacity(self, num_slots: i64) -> None:
        pass
