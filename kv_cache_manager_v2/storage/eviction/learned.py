"""Pages by their worth: what keeping them can be expected to yield, learned from what came back (`ReuseRates`).

An admission rule comes out of it: content that has just come for the first time is worth little where such content seldom comes back
soon, and then goes before older content of which more is expected, so that a stream of one-time content passes through.

Lines: YOUNG, content of kind 0 of the first bucket of age; then one for each kind, by recency; FIRST, pages that are to go before
all others. Each line's head is its longest unused page; the next victim is the head with the least worth.

Content that is gone is remembered with its kind and age, for four times as many pages as there are slots (`GhostTable`): if it
comes back, that is learned, and it comes back as the next kind. Of pages that are to go first nothing is learned.
"""

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from ..page_rows import PageRows
from ..victim_queue import NO_VICTIM, ContentKeys
from .ghost_table import NOT_THERE, GhostTable
from .listed_queue import ListedQueue
from .page_lists import NO_PAGE
from .reuse_rates import NUM_KINDS, PART_SHIFT, ReuseRates

FIRST_OF_KINDS: Final = 0
YOUNG: Final = 2
FIRST: Final = 3
_KNOWN: Final = 1
_KIND_SHIFT: Final = 1
_STAMP_SHIFT: Final = 2


@final
@mypyc_attr(native_class=True)
class LearnedQueue(ListedQueue):
    """The note of a page: whether its content is known to be new or not (bit 0), its kind (1), its stamp (from 2 on)."""

    __slots__ = ("rates", "_keys", "_ghosts")

    rates: Final[ReuseRates]

    def __init__(self, rows: PageRows, keys: ContentKeys) -> None:
        super().__init__(rows, FIRST + 1)
        self.rates = ReuseRates()
        self._keys: Final = keys
        self._ghosts: Final = GhostTable()

    def push(self, page: i64) -> None:
        lists = self._lists
        note = lists.note(page)
        kind = (note >> _KIND_SHIFT) & 1 if note != 0 else self._ask_ghosts(page)
        stamp = self.rates.note_push(kind)
        lists.set_note(page, (stamp << _STAMP_SHIFT) | (kind << _KIND_SHIFT) | _KNOWN)
        lists.push_last(page, YOUNG if kind == 0 else kind)
        self._note_queued(page)
        self._age(lists.priority_of(page))

    def _ask_ghosts(self, page: i64) -> i64:
        """The kind of new content; what its ghost says, if there is one, is learned."""
        ghost = self._ghosts.take(self._keys.content_key(page), self.rates.clock >> PART_SHIFT)
        if ghost == NOT_THERE:
            return 0
        kind = ghost & 1
        self.rates.note_return(kind, (ghost >> 1) << PART_SHIFT)
        return next_kind(kind)

    def _age(self, priority: i64) -> None:
        """What is not young any more goes on to the line of its kind. Each page does so once."""
        lists = self._lists
        page = lists.first(YOUNG, priority)
        while page != NO_PAGE and not self.rates.is_young(lists.note(page) >> _STAMP_SHIFT):
            lists.unlink(page)
            lists.push_last(page, FIRST_OF_KINDS)
            page = lists.first(YOUNG, priority)

    def push_first(self, page: i64) -> None:
        self._lists.push_first(page, FIRST)
        self._note_queued(page)

    def use(self, page: i64) -> None:
        lists = self._lists
        note = lists.note(page)
        kind = (note >> _KIND_SHIFT) & 1
        if lists.unlink(page) != FIRST:
            self.rates.note_return(kind, note >> _STAMP_SHIFT)
        lists.set_note(page, (next_kind(kind) << _KIND_SHIFT) | _KNOWN)
        self._note_left(page)

    def evict(self, page: i64) -> None:
        lists = self._lists
        if lists.list_of(page) != FIRST:
            note = lists.note(page)
            tick = note >> (_STAMP_SHIFT + PART_SHIFT)
            self._ghosts.add(self._keys.content_key(page), (note >> _KIND_SHIFT) & 1, tick)
        self.remove(page)

    def defer(self, page: i64, below: i64) -> None:
        """It takes over when the other was pushed, and keeps its kind."""
        lists = self._lists
        lists.put_behind(page, below)
        stamp = lists.note(below) >> _STAMP_SHIFT
        lists.set_note(page, (stamp << _STAMP_SHIFT) | (lists.note(page) & ((1 << _STAMP_SHIFT) - 1)) | _KNOWN)

    def first(self) -> i64:
        if self.num_pages == 0:
            return NO_VICTIM
        lists = self._lists
        priority = lists.lowest_priority()
        page = lists.first(FIRST, priority)
        if page != NO_PAGE:
            return page
        self._age(priority)
        best: i64 = NO_PAGE
        least: i64 = 0
        line: i64 = FIRST_OF_KINDS
        while line <= YOUNG:
            page = lists.first(line, priority)
            if page != NO_PAGE:
                worth = self.rates.worth(line if line < NUM_KINDS else 0, lists.note(page) >> _STAMP_SHIFT)
                if best == NO_PAGE or worth < least:
                    best = page
                    least = worth
            line += 1
        return best

    def set_capacity(self, num_slots: i64) -> None:
        self.rates.set_capacity(num_slots)
        self._ghosts.set_num_buckets(num_slots)


def next_kind(kind: i64) -> i64:
    return kind + 1 if kind + 1 < NUM_KINDS else kind
