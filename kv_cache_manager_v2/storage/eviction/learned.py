"""Pages by their worth: what keeping them can be expected to yield, learned from what came back (`ReuseRates`).

An admission rule comes out of it: content that has just come for the first time is worth little where such content seldom comes back
soon, and then goes before older content of which more is expected, so that a stream of one-time content passes through.

Lines, each by recency (`LearnedLines`): ONCE and AGAIN, content of kind 0 and 1; FIRST, pages that are to go before all others. ONCE is
old content and then young content, of the first bucket of age. The next victim is the page with the least worth of three: the longest
unused old one of ONCE, the longest unused of AGAIN, and the longest unused young one. Where recency would have done better
(`RecencyShadow`), it is the longest unused of these.

Content that is gone is remembered with its kind and age, for several times as many pages as there are slots (`GhostTable`): if it
comes back, that is learned, and it comes back as the next kind. Of pages that are to go first nothing is learned.

A prompt's pages come and go together, with one stamp or a few, so that what depends on the stamp is done once for all of them.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..page_rows import PageRows
from ..victim_queue import NO_VICTIM, NUM_PRIORITIES, ContentKeys, VictimQueue
from .ghost_table import NOT_THERE, GhostTable
from .learned_lines import AGAIN, FIRST, ONCE, LearnedLines
from .page_notes import (
    KIND_BIT,
    KNOWN,
    LINE_BITS,
    LINE_SHIFT,
    PageNotes,
    kind_of_note,
    line_of_note,
    pack_note,
    stamp_of_note,
)
from .recency_shadow import RecencyShadow
from .reuse_rates import ReuseRates

_IN_USE: Final = KNOWN | KIND_BIT
"""The note of a page that came back: it is in no line now."""
_IN_FIRST: Final = KNOWN | ((FIRST + 1) << LINE_SHIFT)


@final
@mypyc_attr(native_class=True)
class LearnedQueue(VictimQueue):
    __slots__ = ("rates", "shadow", "_rows", "_keys", "_ghosts", "_lines", "_pages", "_page_keys")

    rates: Final[ReuseRates]
    shadow: Final[RecencyShadow]
    _rows: Final[PageRows]
    _pages: vec[i64]
    """Room for the pages of a run whose content is asked for, and for its keys."""
    _page_keys: vec[i64]

    def __init__(self, rows: PageRows, first_sentinel: i64, keys: ContentKeys, notes: PageNotes) -> None:
        self.num_pages = 0
        self.rates = ReuseRates()
        self.shadow = RecencyShadow()
        self._rows = rows
        self._keys: Final = keys
        self._ghosts: Final = GhostTable()
        self._lines: Final = LearnedLines(rows, first_sentinel, notes)
        self._pages = vec[i64]()
        self._page_keys = vec[i64]()

    # -- coming -------------------------------------------------------------------------------------------------------

    def push(self, page: i64) -> None:
        note = self._lines.note(page)
        kind: i64 = ONCE
        if note != 0:
            kind = kind_of_note(note)
        elif not self._ghosts.is_empty:
            kind = self._ask_ghosts(self._keys.content_key(page))
        self._lines.enter(page, pack_note(kind, kind, self.rates.clock))
        self.num_pages += 1
        self._count_pushes(1, kind)

    def push_run(self, pages: vec[i64], count: i64) -> None:
        num_known: i64 = 0
        begin: i64 = 0
        while begin < count:
            end = begin + self.rates.num_left_in_part
            if end > count:
                end = count
            some = self._note_pushes(pages, begin, end)
            self._count_pushes(end - begin, some)
            num_known += some
            begin = end
        self._lines.enter_run(pages, count, count - num_known)
        self.num_pages += count

    def _count_pushes(self, count: i64, num_known: i64) -> None:
        stamp = self.rates.note_pushes(count, num_known)
        self.shadow.is_behind = True
        if self.rates.num_in_part == 0:
            self.shadow.end_part(stamp, self.rates.num_pushed)

    def _note_pushes(self, pages: vec[i64], begin: i64, end: i64) -> i64:
        """Make the notes of pages that get the stamp of now; how many are of kind 1."""
        lines = self._lines
        clock = self.rates.clock
        once = pack_note(ONCE, ONCE, clock)
        again = pack_note(AGAIN, AGAIN, clock)
        asks = not self._ghosts.is_empty
        if asks:
            self._reserve(end - begin)
        fresh = self._pages
        notes = lines.notes.notes
        num_known: i64 = 0
        num_fresh: i64 = 0
        position = begin
        while position < end:
            page = pages[position]
            if page >= len(notes):
                lines.notes.reach(page)
                notes = lines.notes.notes
            note = i64(notes[page])
            packed: int = once
            if note != 0:
                if kind_of_note(note) == AGAIN:
                    packed = again
                    num_known += 1
            elif asks:
                fresh[num_fresh] = page
                num_fresh += 1
            notes[page] = packed
            position += 1
        if num_fresh == 0:
            return num_known
        keys = self._page_keys
        self._keys.fill_keys(fresh, num_fresh, keys)
        packed = again
        position = 0
        while position < num_fresh:
            if self._ask_ghosts(keys[position]) == AGAIN:
                notes[fresh[position]] = packed
                num_known += 1
            position += 1
        return num_known

    def _ask_ghosts(self, key: i64) -> i64:
        """The kind of new content; what its ghost says, if there is one, is learned."""
        ghost = self._ghosts.take(key, self.rates.clock)
        if ghost == NOT_THERE:
            return ONCE
        stamp = ghost >> 1
        self.rates.note_return(ghost & 1, stamp)
        self.shadow.note_miss(stamp)
        return AGAIN

    def _reserve(self, count: i64) -> None:
        if len(self._pages) < count:
            self._pages = vec[i64]([0] * count)
            self._page_keys = vec[i64]([0] * count)

    def push_first(self, page: i64) -> None:
        self._lines.set_note(page, _IN_FIRST | (self._lines.note(page) & KIND_BIT))
        self._lines.first.push_first(page)
        self.num_pages += 1

    def push_run_first(self, pages: vec[i64], count: i64) -> None:
        self._lines.enter_first(pages, count, _IN_FIRST)
        self.num_pages += count

    # -- going --------------------------------------------------------------------------------------------------------

    def use(self, page: i64) -> None:
        note = self._lines.leave(page)
        self._learn_use(note, 1)
        self._lines.set_note(page, _IN_USE)
        self.num_pages -= 1

    def use_run(self, pages: vec[i64], count: i64) -> None:
        notes = self._lines.notes.notes
        begin: i64 = 0
        while begin < count:
            note = i64(notes[pages[begin]])
            end = begin + 1
            while end < count and i64(notes[pages[end]]) == note:
                end += 1
            self._learn_use(note, end - begin)
            begin = end
        self._lines.leave_run(pages, count, _IN_USE, True)
        self.num_pages -= count

    def _learn_use(self, note: i64, count: i64) -> None:
        if line_of_note(note) != FIRST:
            stamp = stamp_of_note(note, self.rates.clock)
            self.rates.note_return(kind_of_note(note), stamp, count)
            self.shadow.note_hit(stamp, count)

    def remove(self, page: i64) -> None:
        note = self._lines.leave(page)
        if line_of_note(note) != FIRST:
            self.shadow.note_left(stamp_of_note(note, self.rates.clock))
        self.num_pages -= 1

    def evict(self, page: i64) -> None:
        self._trim_shadow()
        note = self._lines.leave(page)
        if line_of_note(note) != FIRST:
            stamp = stamp_of_note(note, self.rates.clock)
            self.shadow.note_gone(stamp)
            self._ghosts.add(self._keys.content_key(page), kind_of_note(note), stamp)
        self.num_pages -= 1

    def evict_run(self, pages: vec[i64], count: i64) -> None:
        self._trim_shadow()
        self._reserve(count)
        gone = self._pages
        notes = self._lines.notes.notes
        num_gone: i64 = 0
        position: i64 = 0
        while position < count:
            if i64(notes[pages[position]]) & LINE_BITS != (FIRST + 1) << LINE_SHIFT:
                gone[num_gone] = pages[position]
                num_gone += 1
            position += 1
        if num_gone > 0:
            keys = self._page_keys
            self._keys.fill_keys(gone, num_gone, keys)
            ghosts = self._ghosts
            shadow = self.shadow
            clock = self.rates.clock
            position = 0
            while position < num_gone:
                note = i64(notes[gone[position]])
                stamp = stamp_of_note(note, clock)
                shadow.note_gone(stamp)
                ghosts.add(keys[position], kind_of_note(note), stamp)
                position += 1
        self._lines.leave_run(pages, count, 0, False)
        self.num_pages -= count

    def _trim_shadow(self) -> None:
        shadow = self.shadow
        if shadow.is_behind:
            rates = self.rates
            shadow.trim(self.num_pages - self._lines.first.num_pages - rates.num_in_part, rates.clock)

    def forget(self, page: i64) -> None:
        self._lines.set_note(page, 0)

    # -- changing places ----------------------------------------------------------------------------------------------

    def requeue(self, page: i64) -> None:
        """As if it were pushed now, but nothing is learned of it."""
        self._lines.forget_priority(page)
        note = self._lines.leave(page)
        if line_of_note(note) == FIRST:
            self._lines.enter(page, note)
            return
        clock = self.rates.clock
        self.shadow.note_left(stamp_of_note(note, clock))
        kind = kind_of_note(note)
        self._lines.enter(page, pack_note(kind, kind, clock))
        self.shadow.note_come(clock)

    def defer(self, page: i64, below: i64) -> None:
        """It takes over when the other was pushed, and keeps its kind."""
        lines = self._lines
        clock = self.rates.clock
        lines.forget_priority(page)
        note = lines.leave(page)
        line = line_of_note(note)
        if line != FIRST:
            self.shadow.note_left(stamp_of_note(note, clock))
        below_note = lines.note(below)
        stamp = clock if line_of_note(below_note) < 0 else stamp_of_note(below_note, clock)
        lines.put_behind(page, below, pack_note(kind_of_note(note), line, stamp))
        if line_of_note(lines.note(page)) != FIRST:
            self.shadow.note_come(stamp)

    # -- who is next --------------------------------------------------------------------------------------------------

    def first(self) -> i64:
        if self.num_pages == 0:
            return NO_VICTIM
        # Before the choice: all victims until the next push are chosen by one rule, so that a run of them is known in advance.
        self._trim_shadow()
        lines = self._lines
        before_all = lines.first.first()
        once = lines.once.first()
        again = lines.again.first()
        priority_of_once = NUM_PRIORITIES if once == NO_VICTIM else lines.priority(once)
        priority_of_again = NUM_PRIORITIES if again == NO_VICTIM else lines.priority(again)
        priority = priority_of_once if priority_of_once < priority_of_again else priority_of_again
        if before_all != NO_VICTIM and lines.priority(before_all) <= priority:
            return before_all
        return self._find_least(
            priority, once if priority_of_once == priority else NO_VICTIM, again if priority_of_again == priority else NO_VICTIM
        )

    def _find_least(self, priority: i64, once: i64, again: i64) -> i64:
        """``once`` and ``again`` are at the head of their lines, of that priority, or NO_VICTIM."""
        rates = self.rates
        young = self._lines.age(priority, rates.clock, rates.last_old)
        best: i64 = NO_VICTIM
        least: i64 = 0
        if once != NO_VICTIM and once != young:
            best = once
            least = self._weigh(once, ONCE)
        if again != NO_VICTIM:
            worth = self._weigh(again, AGAIN)
            if best == NO_VICTIM or worth < least:
                best = again
                least = worth
        if young != NO_VICTIM and (best == NO_VICTIM or self._weigh(young, ONCE) < least):
            return young
        return best

    def _weigh(self, page: i64, kind: i64) -> i64:
        stamp = stamp_of_note(self._lines.note(page), self.rates.clock)
        return stamp if self.shadow.rules else self.rates.worth(kind, stamp)

    def following(self, page: i64) -> i64:
        return self._lines.following(page, self.rates.clock, self.rates.last_old)

    def set_capacity(self, num_slots: i64) -> None:
        self.rates.set_capacity(num_slots)
        self.shadow.set_capacity(num_slots)
        self._ghosts.set_num_buckets(num_slots)

    def collect(self) -> list[int]:
        return self._lines.collect()
