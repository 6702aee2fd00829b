"""Pages by their worth: what keeping them can be expected to yield, learned from what came back (`ReuseRates`).

An admission rule comes out of it: content that has just come for the first time is worth little where such content seldom comes back
soon, and then goes before older content of which more is expected, so that a stream of one-time content passes through.

Lines: YOUNG, content of kind 0 of the first bucket of age; then one for each kind, by recency; FIRST, pages that are to go before
all others. Each line's head is its longest unused page; the next victim is the head with the least worth.

Content that is gone is remembered with its kind and age, four times as many pages as there are slots: if it comes back, that is
learned, and it comes back as the next kind.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from ..page_rows import LINKS, NOT_QUEUED, ROW_WORDS, PageRows
from ..victim_queue import NO_VICTIM, ContentKeys, VictimQueue
from .arc import fold_key
from .ghost_list import NOT_THERE, GhostList
from .page_lists import NO_PAGE, PageLists
from .reuse_rates import NUM_KINDS, ReuseRates

FIRST_OF_KINDS: Final = 0
YOUNG: Final = 2
FIRST: Final = 3
GHOSTS_PER_SLOT: Final = 4
_IN_LINE: Final = 0
_KIND_MASK: Final = 3
_KEY_SHIFT: Final = 2


@final
@mypyc_attr(native_class=True)
class LearnedQueue(VictimQueue):
    """The note of a page: its kind (2 bits), then 44 bits of its content key, 0 before its first push."""

    __slots__ = ("rates", "_rows", "_keys", "_lists", "_ghosts", "_stamps")

    rates: Final[ReuseRates]
    _stamps: vec[i64]
    """When each page was pushed."""

    def __init__(self, rows: PageRows, keys: ContentKeys) -> None:
        self.num_pages = 0
        self.rates = ReuseRates()
        self._rows: Final = rows
        self._keys: Final = keys
        self._lists: Final = PageLists(rows, FIRST + 1)
        self._ghosts: Final = GhostList()
        self._stamps = vec[i64]()

    def push(self, page: i64) -> None:
        note = self._note_of(page)
        kind = note & _KIND_MASK
        self._stamp(page, self.rates.note_push(kind))
        self._lists.push_last(page, YOUNG if kind == 0 else kind)
        self._rows.words[page * ROW_WORDS + LINKS] = _IN_LINE
        self.num_pages += 1
        self._age(self._lists.priority_of(page))

    def _note_of(self, page: i64) -> i64:
        """The page's note; made where the page is new, when its ghost, if there is one, is learned from."""
        note = self._lists.note(page)
        if note != 0:
            return note
        key = fold_key(self._keys.content_key(page))
        ghost = self._ghosts.take(key)
        note = key << _KEY_SHIFT
        if ghost != NOT_THERE:
            kind = ghost & _KIND_MASK
            self.rates.note_return(kind, ghost >> _KEY_SHIFT)
            note |= next_kind(kind)
        self._lists.set_note(page, note)
        return note

    def _stamp(self, page: i64, stamp: i64) -> None:
        stamps = self._stamps
        known: i64 = len(stamps)
        while known <= page:
            stamps = append(stamps, 0)
            known += 1
        stamps[page] = stamp
        self._stamps = stamps

    def _age(self, priority: i64) -> None:
        """What is not young any more goes on to the line of its kind. Each page does so once."""
        lists = self._lists
        page = lists.first(YOUNG, priority)
        while page != NO_PAGE and not self.rates.is_young(self._stamps[page]):
            lists.unlink(page)
            lists.push_last(page, FIRST_OF_KINDS)
            page = lists.first(YOUNG, priority)

    def push_first(self, page: i64) -> None:
        note = self._note_of(page)
        self._stamp(page, self.rates.note_push(note & _KIND_MASK))
        self._lists.push_first(page, FIRST)
        self._rows.words[page * ROW_WORDS + LINKS] = _IN_LINE
        self.num_pages += 1

    def use(self, page: i64) -> None:
        self._lists.unlink(page)
        note = self._lists.note(page)
        kind = note & _KIND_MASK
        self.rates.note_return(kind, self._stamps[page])
        self._lists.set_note(page, (note & ~_KIND_MASK) | next_kind(kind))
        self._rows.words[page * ROW_WORDS + LINKS] = NOT_QUEUED
        self.num_pages -= 1

    def remove(self, page: i64) -> None:
        self._lists.unlink(page)
        self._lists.set_note(page, 0)
        self._rows.words[page * ROW_WORDS + LINKS] = NOT_QUEUED
        self.num_pages -= 1

    def evict(self, page: i64) -> None:
        note = self._lists.note(page)
        self._ghosts.add(note >> _KEY_SHIFT, (self._stamps[page] << _KEY_SHIFT) | (note & _KIND_MASK))
        self.remove(page)

    def forget(self, page: i64) -> None:
        self._lists.set_note(page, 0)

    def requeue(self, page: i64) -> None:
        self._lists.push_last(page, self._lists.unlink(page))

    def defer(self, page: i64, below: i64) -> None:
        self._lists.put_behind(page, below)
        self._stamps[page] = self._stamps[below] if below < len(self._stamps) else self._stamps[page]

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
                worth = self.rates.worth(line if line < NUM_KINDS else 0, self._stamps[page])
                if best == NO_PAGE or worth < least:
                    best = page
                    least = worth
            line += 1
        return best

    def set_capacity(self, num_slots: i64) -> None:
        self.rates.set_capacity(num_slots)
        self._ghosts.set_limit(num_slots * GHOSTS_PER_SLOT)

    def collect(self) -> list[int]:
        return self._lists.collect()


def next_kind(kind: i64) -> i64:
    return kind + 1 if kind + 1 < NUM_KINDS else kind
