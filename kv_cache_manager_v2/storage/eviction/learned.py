"""Pages by their worth: what keeping them can be expected to yield, learned from what came back (`ReuseRates`).

An admission rule comes out of it: content that has just come for the first time is worth little where such content seldom comes back
soon, and then goes before older content of which more is expected, so that a stream of one-time content passes through.

Lines: YOUNG, content of kind 0 of the first bucket of age; then one for each kind, by recency; FIRST, pages that are to go before
all others. Each line's head is its longest unused page; the next victim is the head with the least worth.

Content that is gone is remembered with its kind and age, for four times as many pages as there are slots (`GhostTable`): if it
comes back, that is learned, and it comes back as the next kind. Of pages that are to go first nothing is learned.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..page_rows import LINKS, NOT_QUEUED, ROW_WORDS, PageRows
from ..victim_queue import NO_VICTIM, ContentKeys
from .ghost_table import NOT_THERE, GhostTable
from .listed_queue import IN_LINE, ListedQueue
from .page_lists import NO_PAGE
from .reuse_rates import NUM_KINDS, PART_SHIFT, ReuseRates

FIRST_OF_KINDS: Final = 0
YOUNG: Final = 2
FIRST: Final = 3
MOST_AGED: Final = 16
_KNOWN: Final = 1
_KIND_SHIFT: Final = 1
_STAMP_SHIFT: Final = 2


@final
@mypyc_attr(native_class=True)
class LearnedQueue(ListedQueue):
    """The note of a page: whether its content is known to be new or not (bit 0), its kind (1), its stamp (from 2 on)."""

    __slots__ = ("rates", "_keys", "_ghosts", "_heads")

    rates: Final[ReuseRates]
    _heads: Final[vec[i64]]
    """Room for the heads of all lines."""

    def __init__(self, rows: PageRows, keys: ContentKeys) -> None:
        super().__init__(rows, FIRST + 1)
        self.rates = ReuseRates()
        self._heads = vec[i64]([0] * (FIRST + 1))
        self._keys: Final = keys
        self._ghosts: Final = GhostTable()

    def push(self, page: i64) -> None:
        lists = self._lists
        note = lists.note(page)
        kind: i64 = 0
        if note != 0:
            kind = (note >> _KIND_SHIFT) & 1
        elif not self._ghosts.is_empty:
            kind = self._ask_ghosts(page)
        stamp = self.rates.note_push(kind)
        lists.push_noted(page, YOUNG if kind == 0 else kind, (stamp << _STAMP_SHIFT) | (kind << _KIND_SHIFT) | _KNOWN)
        self._rows.words[page * ROW_WORDS + LINKS] = IN_LINE
        self.num_pages += 1

    def _ask_ghosts(self, page: i64) -> i64:
        """The kind of new content; what its ghost says, if there is one, is learned."""
        ghost = self._ghosts.take(self._keys.content_key(page), self.rates.clock >> PART_SHIFT)
        if ghost == NOT_THERE:
            return 0
        kind = ghost & 1
        self.rates.note_return(kind, (ghost >> 1) << PART_SHIFT)
        return next_kind(kind)

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
        note = lists.note(page)
        if lists.unlink(page) != FIRST:
            tick = note >> (_STAMP_SHIFT + PART_SHIFT)
            self._ghosts.add(self._keys.content_key(page), (note >> _KIND_SHIFT) & 1, tick)
        lists.set_note(page, 0)
        self._rows.words[page * ROW_WORDS + LINKS] = NOT_QUEUED
        self.num_pages -= 1

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
        rates = self.rates
        heads = self._heads
        lists.find_heads(heads)
        if heads[FIRST] != NO_PAGE:
            return heads[FIRST]
        page = heads[YOUNG]
        if page != NO_PAGE and not rates.is_young(lists.note(page) >> _STAMP_SHIFT):
            self._age(page, lists.priority_of(page))
            lists.find_heads(heads)
        best: i64 = NO_PAGE
        least: i64 = 0
        line: i64 = FIRST_OF_KINDS
        while line <= YOUNG:
            page = heads[line]
            if page != NO_PAGE:
                worth = rates.worth(line if line < NUM_KINDS else 0, lists.note(page) >> _STAMP_SHIFT)
                if best == NO_PAGE or worth < least:
                    best = page
                    least = worth
            line += 1
        return best

    def _age(self, page: i64, priority: i64) -> None:
        """What is not young any more goes on to the line of its kind, each page once; a few at a time, so that a first eviction after
        long does not take long."""
        lists = self._lists
        num_left = MOST_AGED
        while num_left > 0 and page != NO_PAGE and not self.rates.is_young(lists.note(page) >> _STAMP_SHIFT):
            lists.move_last(page, FIRST_OF_KINDS)
            page = lists.first(YOUNG, priority)
            num_left -= 1

    def set_capacity(self, num_slots: i64) -> None:
        self.rates.set_capacity(num_slots)
        self._ghosts.set_num_buckets(num_slots)


def next_kind(kind: i64) -> i64:
    return kind + 1 if kind + 1 < NUM_KINDS else kind
