"""An eviction queue: the pages of one pool group at one level, by priority, then by recency.

One circular doubly linked list per priority, threaded through the LINKS words of the page rows; a sentinel row each. The
page after the sentinel is the next victim of that priority. Push, remove and look at the first cost O(1) and no memory.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from .page_links import NO_ENDS, join_rows, link_run, unlink_run
from .page_rows import LINKS, LOW_MASK, NOT_QUEUED, PLACE, ROW_WORDS, PageRows, priority_of_place
from .victim_queue import NO_VICTIM, NUM_PRIORITIES, VictimQueue


class EvictionQueue(VictimQueue):
    __slots__ = ("_rows", "_first_sentinel", "_lowest")

    def __init__(self, rows: PageRows, first_sentinel: i64) -> None:
        self._rows: Final = rows
        self._first_sentinel: Final = first_sentinel
        self._lowest: i64 = NUM_PRIORITIES - 1  # no page of a lower priority is queued
        self.num_pages = 0
        words = rows.words
        for sentinel in range(first_sentinel, first_sentinel + NUM_PRIORITIES):
            words[sentinel * ROW_WORDS + LINKS] = sentinel | (sentinel << 32)

    def push(self, page: i64) -> None:
        """At the MRU end of its priority."""
        words = self._rows.words
        priority = priority_of_place(words[page * ROW_WORDS + PLACE])
        if priority < self._lowest:
            self._lowest = priority
        sentinel = self._first_sentinel + priority
        at_sentinel = sentinel * ROW_WORDS + LINKS
        links = words[at_sentinel]
        last = links >> 32
        words[page * ROW_WORDS + LINKS] = sentinel | (last << 32)
        words[at_sentinel] = (links & LOW_MASK) | (page << 32)
        at_last = last * ROW_WORDS + LINKS
        words[at_last] = page | ((words[at_last] >> 32) << 32)
        self.num_pages += 1

    def push_first(self, page: i64) -> None:
        """At the LRU end of its priority: the next victim."""
        words = self._rows.words
        sentinel = self._sentinel_of(page)
        following = words[sentinel * ROW_WORDS + LINKS] & LOW_MASK
        join_rows(words, sentinel, page)
        join_rows(words, page, following)
        self.num_pages += 1

    def _sentinel_of(self, page: i64) -> i64:
        """The sentinel of the priority of a page that is about to be queued."""
        priority = priority_of_place(self._rows.words[page * ROW_WORDS + PLACE])
        if priority < self._lowest:
            self._lowest = priority
        return self._first_sentinel + priority

    def use(self, page: i64) -> None:
        self.remove(page)

    def evict(self, page: i64) -> None:
        self.remove(page)

    def forget(self, page: i64) -> None:
        pass

    def requeue(self, page: i64) -> None:
        self.remove(page)
        self.push(page)

    def defer(self, page: i64, below: i64) -> None:
        self.remove(page)
        self.push(page)

    def set_capacity(self, num_slots: i64) -> None:
        pass

    def push_run(self, pages: vec[i64], count: i64) -> None:
        self._link_by_priority(pages, count, False)

    def push_run_first(self, pages: vec[i64], count: i64) -> None:
        self._link_by_priority(pages, count, True)

    def _link_by_priority(self, pages: vec[i64], count: i64, goes_first: bool) -> None:
        words = self._rows.words
        begin: i64 = 0
        while begin < count:
            sentinel = self._sentinel_of(pages[begin])
            begin = link_run(words, sentinel if goes_first else words[sentinel * ROW_WORDS + LINKS] >> 32, pages, begin, count, goes_first)
        self.num_pages += count

    def hold_run(self, pages: vec[i64], count: i64) -> None:
        self._unlink(pages, 0, count)

    def _unlink(self, pages: vec[i64], begin: i64, end: i64) -> None:
        """``pages[begin:end]``, which no segment counts, leave the queue."""
        unlink_run(self._rows.words, pages, begin, end, NO_ENDS)
        self.num_pages -= end - begin

    def evict_run(self, pages: vec[i64], count: i64) -> None:
        self.hold_run(pages, count)

    def remove(self, page: i64) -> None:
        words = self._rows.words
        at_page = page * ROW_WORDS + LINKS
        links = words[at_page]
        assert links != NOT_QUEUED, "a page left an eviction queue that it was not in"
        join_rows(words, links >> 32, links & LOW_MASK)
        words[at_page] = NOT_QUEUED
        self.num_pages -= 1

    def list_following(self, page: i64, pages: vec[i64], begin: i64, end: i64) -> i64:
        words = self._rows.words
        first_page_of_blocks = self._rows.first_page_of_blocks
        position = begin
        while position < end:
            page = words[page * ROW_WORDS + LINKS] & LOW_MASK
            if page < first_page_of_blocks:
                # A sentinel: behind the last page of a priority.
                break
            pages[position] = page
            position += 1
        return position - begin

    def first(self) -> i64:
        """The next victim, or NO_VICTIM."""
        if self.num_pages == 0:
            return NO_VICTIM
        words = self._rows.words
        while True:
            sentinel = self._first_sentinel + self._lowest
            page = words[sentinel * ROW_WORDS + LINKS] & LOW_MASK
            if page != sentinel:
                return page
            self._lowest += 1

    def collect(self) -> list[int]:
        """All queued pages, next victim first, for checks and state dumps."""
        words = self._rows.words
        pages: list[int] = []
        for sentinel in range(self._first_sentinel, self._first_sentinel + NUM_PRIORITIES):
            page = words[sentinel * ROW_WORDS + LINKS] & LOW_MASK
            while page != sentinel:
                pages.append(page)
                page = words[page * ROW_WORDS + LINKS] & LOW_MASK
        return pages
