"""Several lists of pages, each in one line per priority; every page is in one of them at most.

Doubly linked and circular, with a sentinel per line, in two words per page:

    LINKS  next node (bits 0-31) | previous node (32-63)
    STATE  list + 1, or 0 where the page is in none (bits 0-7) | priority (8-15) | whatever the policy notes (16-62)

Node 0 .. are the sentinels, then the pages.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ...storage.page_rows import LOW_MASK, PLACE, ROW_WORDS, PageRows, WordColumn, priority_of_place
from ...storage.victim_queue import NUM_PRIORITIES

NO_PAGE: Final = -1
NO_LIST: Final = -1
LIST_MASK: Final = 255
_PLACE_MASK: Final = (1 << 16) - 1
NOTE_SHIFT: Final = 16


@final
class PageLists:
    """``counts[l]``: pages in list ``l``. ``lowest``: no page of a lower priority is in any list."""

    __slots__ = ("counts", "num_lists", "num_sentinels", "lowest", "_rows", "_links", "_states")

    def __init__(self, rows: PageRows, num_lists: i64) -> None:
        self._rows: Final = rows
        self.num_lists: Final = num_lists
        self.counts = vec[i64]([0] * num_lists)
        self.num_sentinels: Final[i64] = num_lists * NUM_PRIORITIES
        self._links: Final[WordColumn] = rows.add_words(0, num_before=int(self.num_sentinels))
        self._states: Final[WordColumn] = rows.add_words(0)
        links = self._links.words
        for sentinel in range(self.num_sentinels):
            links[sentinel] = sentinel | (sentinel << 32)
        self.lowest: i64 = NUM_PRIORITIES - 1

    # -- notes --------------------------------------------------------------------------------------------------------

    def note(self, page: i64) -> i64:
        """What `set_note` said last; 0 for a page that was never seen, or was forgotten."""
        return self._states.words[page] >> NOTE_SHIFT

    def set_note(self, page: i64, note: i64) -> None:
        states = self._states.words
        states[page] = (states[page] & _PLACE_MASK) | (note << NOTE_SHIFT)

    def list_of(self, page: i64) -> i64:
        return (self._states.words[page] & LIST_MASK) - 1

    def priority_of(self, page: i64) -> i64:
        """Of the line that the page is in."""
        return (self._states.words[page] >> 8) & LIST_MASK

    # -- lines --------------------------------------------------------------------------------------------------------

    def _enter(self, page: i64, to_list: i64) -> i64:
        """Note the place of a page that is in no list; returns the sentinel of its line."""
        priority = priority_of_place(self._rows.words[page * ROW_WORDS + PLACE])
        if priority < self.lowest:
            self.lowest = priority
        states = self._states.words
        state = states[page]
        assert state & LIST_MASK == 0, "a page was queued twice"
        states[page] = (state & ~_PLACE_MASK) | (to_list + 1) | (priority << 8)
        self.counts[to_list] += 1
        return to_list * NUM_PRIORITIES + priority

    def push_last(self, page: i64, to_list: i64) -> None:
        """At the end of the line of its priority, as `PageRows` has it."""
        sentinel = self._enter(page, to_list)
        self._link_between(self._links.words[sentinel] >> 32, page + self.num_sentinels, sentinel)

    def push_first(self, page: i64, to_list: i64) -> None:
        sentinel = self._enter(page, to_list)
        self._link_between(sentinel, page + self.num_sentinels, self._links.words[sentinel] & LOW_MASK)

    def put_behind(self, page: i64, other: i64) -> None:
        """Right behind ``other`` in its line; at the end of its own line if that is of another priority, or no line."""
        from_list = self.unlink(page)
        to_list = self.list_of(other)
        if to_list == NO_LIST or self.priority_of(other) != priority_of_place(self._rows.words[page * ROW_WORDS + PLACE]):
            self.push_last(page, from_list)
            return
        self._enter(page, to_list)
        node = other + self.num_sentinels
        self._link_between(node, page + self.num_sentinels, self._links.words[node] & LOW_MASK)

    def _link_between(self, previous: i64, node: i64, following: i64) -> None:
        links = self._links.words
        links[node] = following | (previous << 32)
        links[previous] = node | ((links[previous] >> 32) << 32)
        links[following] = (links[following] & LOW_MASK) | (node << 32)

    def unlink(self, page: i64) -> i64:
        """Returns the list that the page was in; its note stays."""
        states = self._states.words
        state = states[page]
        from_list = (state & LIST_MASK) - 1
        assert from_list >= 0, "a page left an eviction queue that it was not in"
        states[page] = state & ~_PLACE_MASK
        links = self._links.words
        both = links[page + self.num_sentinels]
        following = both & LOW_MASK
        previous = both >> 32
        links[previous] = following | ((links[previous] >> 32) << 32)
        links[following] = (links[following] & LOW_MASK) | (previous << 32)
        self.counts[from_list] -= 1
        return from_list

    def lowest_priority(self) -> i64:
        """Of any page; there is one."""
        while True:
            for from_list in range(self.num_lists):
                if self.first(from_list, self.lowest) != NO_PAGE:
                    return self.lowest
            self.lowest += 1

    def first(self, from_list: i64, priority: i64) -> i64:
        """The page at the head of the line, or NO_PAGE."""
        sentinel = from_list * NUM_PRIORITIES + priority
        node = self._links.words[sentinel] & LOW_MASK
        return NO_PAGE if node == sentinel else node - self.num_sentinels

    def collect(self) -> list[int]:
        """By priority, then list, then place in line."""
        pages: list[int] = []
        for priority in range(NUM_PRIORITIES):
            for from_list in range(self.num_lists):
                sentinel = from_list * NUM_PRIORITIES + priority
                node = self._links.words[sentinel] & LOW_MASK
                while node != sentinel:
                    pages.append(node - self.num_sentinels)
                    node = self._links.words[node] & LOW_MASK
        return pages
