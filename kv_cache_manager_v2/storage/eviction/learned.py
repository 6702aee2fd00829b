"""Pages by their worth: what keeping them can be expected to yield, learned from what came back (`ReuseRates`).

An admission rule comes out of it: content that has just come for the first time is worth little where such content seldom comes back
soon, and then goes before older content of which more is expected, so that a stream of one-time content passes through.

Lines, each by recency: ONCE and AGAIN, content of kind 0 and 1; FIRST, pages that are to go before all others. ONCE is old
content and then young content, of the first bucket of age; a mark says which page is the first young one. The next victim is the page
with the least worth of three: the longest unused old one of ONCE, the longest unused of AGAIN, and the longest unused young one.
Where recency would have done better (`RecencyShadow`), it is the longest unused of these.

Content that is gone is remembered with its kind and age, for four times as many pages as there are slots (`GhostTable`): if it
comes back, that is learned, and it comes back as the next kind. Of pages that are to go first nothing is learned.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..page_rows import LINKS, LOW_MASK, NOT_QUEUED, ROW_WORDS, PageRows
from ..victim_queue import NO_VICTIM, NUM_PRIORITIES, ContentKeys
from .ghost_table import NOT_THERE, GhostTable
from .listed_queue import IN_LINE, ListedQueue
from .page_lists import LIST_MASK, NOTE_SHIFT
from .recency_shadow import RecencyShadow
from .reuse_rates import ReuseRates

ONCE: Final = 0
AGAIN: Final = 1
FIRST: Final = 2
MOST_AGED: Final = 16
_IN_FIRST: Final = FIRST + 1
_KNOWN: Final = 1
_KIND_SHIFT: Final = 1
_STAMP_SHIFT: Final = 2
_STATE_KIND_SHIFT: Final = NOTE_SHIFT + _KIND_SHIFT
_STATE_STAMP_SHIFT: Final = NOTE_SHIFT + _STAMP_SHIFT


@final
@mypyc_attr(native_class=True)
class LearnedQueue(ListedQueue):
    """The note of a page: whether its content is known to be new or not (bit 0), its kind (1), its stamp (from 2 on)."""

    __slots__ = ("rates", "shadow", "_keys", "_ghosts", "_young")

    rates: Final[ReuseRates]
    shadow: Final[RecencyShadow]
    _young: Final[vec[i64]]
    """By priority: the node of the first young page of ONCE, or the sentinel of the line. Some before it may not be known to be old."""

    def __init__(self, rows: PageRows, keys: ContentKeys) -> None:
        super().__init__(rows, FIRST + 1)
        self.rates = ReuseRates()
        self.shadow = RecencyShadow()
        self._keys: Final = keys
        self._ghosts: Final = GhostTable()
        # The sentinels of the first line are the nodes from 0 on.
        self._young = vec[i64](list(range(NUM_PRIORITIES)))

    def push(self, page: i64) -> None:
        note = self._lists.note(page)
        kind: i64 = ONCE
        if note != 0:
            kind = (note >> _KIND_SHIFT) & 1
        elif not self._ghosts.is_empty:
            kind = self._ask_ghosts(page)
        rates = self.rates
        stamp = rates.note_push(kind)
        self._enter(page, kind, stamp)
        self._rows.words[page * ROW_WORDS + LINKS] = IN_LINE
        self.num_pages += 1
        shadow = self.shadow
        shadow.is_behind = True
        if rates.num_in_part == 0:
            shadow.end_part(stamp, rates.num_pushed)

    def _enter(self, page: i64, kind: i64, stamp: i64) -> None:
        """At the end of its line; the content is young."""
        node = self._lists.push_noted(page, kind, (stamp << _STAMP_SHIFT) | (kind << _KIND_SHIFT) | _KNOWN)
        if kind == ONCE:
            priority = self._lists.priority_of(page)
            young = self._young
            if young[priority] < NUM_PRIORITIES:
                young[priority] = node

    def _leave(self, page: i64) -> i64:
        """Returns the page's state as it was; now it is in no line, and has no note."""
        node = page + self._lists.num_sentinels
        following = self._lists.links[node] & LOW_MASK
        state = self._lists.take_out(page)
        priority = (state >> 8) & LIST_MASK
        young = self._young
        if young[priority] == node:
            # The next one is as young; the line's sentinel where there is none.
            young[priority] = following
        return state

    def _ask_ghosts(self, page: i64) -> i64:
        """The kind of new content; what its ghost says, if there is one, is learned."""
        ghost = self._ghosts.take(self._keys.content_key(page), self.rates.clock)
        if ghost == NOT_THERE:
            return ONCE
        stamp = ghost >> 1
        self.rates.note_return(ghost & 1, stamp)
        self.shadow.note_miss(stamp)
        return AGAIN

    def push_first(self, page: i64) -> None:
        self._lists.push_first(page, FIRST)
        self._note_queued(page)

    def use(self, page: i64) -> None:
        state = self._leave(page)
        if state & LIST_MASK != _IN_FIRST:
            stamp = state >> _STATE_STAMP_SHIFT
            self.rates.note_return((state >> _STATE_KIND_SHIFT) & 1, stamp)
            self.shadow.note_hit(stamp)
        self._lists.set_note(page, (AGAIN << _KIND_SHIFT) | _KNOWN)
        self._note_left(page)

    def remove(self, page: i64) -> None:
        state = self._leave(page)
        if state & LIST_MASK != _IN_FIRST:
            self.shadow.note_left(state >> _STATE_STAMP_SHIFT)
        self._note_left(page)

    def evict(self, page: i64) -> None:
        shadow = self.shadow
        if shadow.is_behind:
            rates = self.rates
            shadow.trim(self.num_pages - self._lists.counts[FIRST] - rates.num_in_part, rates.clock)
        state = self._leave(page)
        if state & LIST_MASK != _IN_FIRST:
            self._ghosts.add(self._keys.content_key(page), (state >> _STATE_KIND_SHIFT) & 1, state >> _STATE_STAMP_SHIFT)
        self._rows.words[page * ROW_WORDS + LINKS] = NOT_QUEUED
        self.num_pages -= 1

    def requeue(self, page: i64) -> None:
        """As if it were pushed now, but nothing is learned of it."""
        state = self._leave(page)
        if state & LIST_MASK == _IN_FIRST:
            self._lists.push_noted(page, FIRST, state >> NOTE_SHIFT)
            return
        self.shadow.note_left(state >> _STATE_STAMP_SHIFT)
        stamp = self.rates.clock
        self._enter(page, (state >> _STATE_KIND_SHIFT) & 1, stamp)
        self.shadow.note_come(stamp)

    def defer(self, page: i64, below: i64) -> None:
        """It takes over when the other was pushed, and keeps its kind."""
        lists = self._lists
        node = page + lists.num_sentinels
        young = self._young
        priority = lists.priority_of(page)
        if young[priority] == node:
            young[priority] = lists.links[node] & LOW_MASK
        if lists.list_of(page) != FIRST:
            self.shadow.note_left(lists.note(page) >> _STAMP_SHIFT)
        lists.put_behind(page, below)
        stamp = lists.note(below) >> _STAMP_SHIFT
        lists.set_note(page, (stamp << _STAMP_SHIFT) | (lists.note(page) & ((1 << _STAMP_SHIFT) - 1)) | _KNOWN)
        if lists.list_of(page) != FIRST:
            self.shadow.note_come(stamp)

    def first(self) -> i64:
        if self.num_pages == 0:
            return NO_VICTIM
        lists = self._lists
        links = lists.links
        priority = lists.lowest
        while True:
            sentinel = FIRST * NUM_PRIORITIES + priority
            node = links[sentinel] & LOW_MASK
            if node != sentinel:
                lists.lowest = priority
                return node - lists.num_sentinels
            old = links[priority] & LOW_MASK
            again = links[AGAIN * NUM_PRIORITIES + priority] & LOW_MASK
            if old != priority or again != AGAIN * NUM_PRIORITIES + priority:
                lists.lowest = priority
                return self._least(priority, old, again)
            priority += 1

    def _least(self, priority: i64, old: i64, again: i64) -> i64:
        """``old`` and ``again`` are the first nodes of their lines, or sentinels."""
        rates = self.rates
        lists = self._lists
        states = lists.states
        num_sentinels = lists.num_sentinels
        by_recency = self.shadow.rules
        young = self._young[priority]
        if young >= NUM_PRIORITIES:
            young = self._age(young)
            self._young[priority] = young
        best: i64 = NO_VICTIM
        least: i64 = 0
        if old != priority and old != young:
            best = old - num_sentinels
            stamp = states[best] >> _STATE_STAMP_SHIFT
            least = stamp if by_recency else rates.worth(ONCE, stamp)
        if again >= num_sentinels:
            page = again - num_sentinels
            stamp = states[page] >> _STATE_STAMP_SHIFT
            worth = stamp if by_recency else rates.worth(AGAIN, stamp)
            if best == NO_VICTIM or worth < least:
                best = page
                least = worth
        if young >= NUM_PRIORITIES:
            page = young - num_sentinels
            stamp = states[page] >> _STATE_STAMP_SHIFT
            worth = stamp if by_recency else rates.worth(ONCE, stamp)
            if best == NO_VICTIM or worth < least:
                return page
        return best

    def _age(self, young: i64) -> i64:
        """The first young node from there on, or the sentinel; a few at a time, so that a first eviction after long does not take long."""
        lists = self._lists
        states = lists.states
        num_sentinels = lists.num_sentinels
        last_old = self.rates.last_old
        num_left: i64 = MOST_AGED
        while num_left > 0 and young >= num_sentinels and states[young - num_sentinels] >> _STATE_STAMP_SHIFT <= last_old:
            young = lists.links[young] & LOW_MASK
            num_left -= 1
        return young

    def set_capacity(self, num_slots: i64) -> None:
        self.rates.set_capacity(num_slots)
        self.shadow.set_capacity(num_slots)
        self._ghosts.set_num_buckets(num_slots)
