"""What policies with several lines have in common: pages in `PageLists`, of which the row says only that it is queued.

A page's note is the policy's own; 0 is that of a page that is new, or has left its slot.
"""

from typing import Final

from mypy_extensions import i64, mypyc_attr

from ...storage.page_rows import LINKS, NOT_QUEUED, ROW_WORDS, PageRows
from ...storage.victim_queue import VictimQueue
from .page_lists import PageLists

IN_LINE: Final = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class ListedQueue(VictimQueue):
    """``evict``, ``push``, ``push_first``, ``use``, ``first`` and ``set_capacity`` are the policy."""

    __slots__ = ("_rows", "_lists")

    def __init__(self, rows: PageRows, num_lists: i64) -> None:
        self.num_pages = 0
        self._rows: Final = rows
        self._lists: Final = PageLists(rows, num_lists)

    def _note_queued(self, page: i64) -> None:
        self._rows.words[page * ROW_WORDS + LINKS] = IN_LINE
        self.num_pages += 1

    def _note_left(self, page: i64) -> None:
        self._rows.words[page * ROW_WORDS + LINKS] = NOT_QUEUED
        self.num_pages -= 1

    def remove(self, page: i64) -> None:
        self._lists.unlink(page)
        self._lists.set_note(page, 0)
        self._note_left(page)

    def forget(self, page: i64) -> None:
        self._lists.set_note(page, 0)

    def requeue(self, page: i64) -> None:
        self._lists.push_last(page, self._lists.unlink(page))

    def defer(self, page: i64, below: i64) -> None:
        self._lists.put_behind(page, below)

    def collect(self) -> list[int]:
        return self._lists.collect()

    def check(self) -> None:
        in_lists = sum([int(count) for count in self._lists.counts])
        assert in_lists == self.num_pages, f"{in_lists} pages in the lists, counted {self.num_pages}"
