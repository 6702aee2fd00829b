"""Pages by their worth: what keeping them can be expected to yield, learned from what came back (`ReuseRates`).

An admission rule comes out of it: content that has just come for the first time is worth little where such content seldom comes back
soon, and then goes before older content of which more is expected, so that a stream of one-time content passes through.

Lines, each by recency (`LearnedLines`): ONCE and AGAIN, content of kind 0 and 1; FIRST, pages that are to go before all others. ONCE is
old content and then young content, of the first bucket of age. The next victim is the page with the least worth of three: the longest
unused old one of ONCE, the longest unused of AGAIN, and the longest unused young one. Where recency would have done better
(`RecencyShadow`), it is the longest unused of these.

Content that is gone is remembered with its kind and age, for several times as many pages as there are slots (`GhostTable`): if it
comes back, that is learned, and it comes back as the next kind. Of pages that are to go first nothing is learned.

A prompt's pages come and go together, with one stamp or a few, so that what depends on the stamp is done once for all of them. What lies
below content that was never there was never there either, and what is gone went from the far end of its path on: of a run, ghosts
are asked for from the first block of the path on, until several in a row are unknown.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..page_rows import PageRows
from ..victim_queue import NO_VICTIM, NUM_PRIORITIES, ContentKeys, VictimQueue
from .ghost_table import NOT_THERE, GhostTable, pack_entry
from .learned_lines import AGAIN, FIRST, ONCE, LearnedLines
from .page_notes import (
    KIND_BIT,
    KNOWN,
    LINE_BITS,
    LINE_SHIFT,
    STAMP_SHIFT,
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
_MOST_UNKNOWN: Final = 8
"""Of a run, in a row: single ghosts may have been forgotten early, and not every block has a page of each life cycle."""


@final
@mypyc_attr(native_class=True)
class LearnedQueue(VictimQueue):
    __slots__ = ("rates", "shadow", "_rows", "_keys", "_ghosts", "_lines", "_pages", "_page_keys", "_entries")

    rates: Final[ReuseRates]
    shadow: Final[RecencyShadow]
    _rows: Final[PageRows]
    _pages: vec[i64]
    """Room for the pages of a run that is given up, for their keys and for what ghosts remember of them."""
    _page_keys: vec[i64]
    _entries: vec[i64]

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
        self._entries = vec[i64]()

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
        if not self._ghosts.is_empty:
            self._note_known(pages, count)
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

    def _note_known(self, pages: vec[i64], count: i64) -> None:
        """Pages of a run, the first of the path last, are noted as having come back where ghosts say so."""
        lines = self._lines
        notes = lines.notes.notes
        num_unknown: i64 = 0
        position = count
        while position > 0:
            position -= 1
            page = pages[position]
            if page < len(notes) and notes[page] != 0:
                continue
            if self._ask_ghosts(self._keys.content_key(page)) == AGAIN:
                lines.set_note(page, _IN_USE)
                notes = lines.notes.notes
                num_unknown = 0
            else:
                num_unknown += 1
                if num_unknown == _MOST_UNKNOWN:
                    return

    def _note_pushes(self, pages: vec[i64], begin: i64, end: i64) -> i64:
        """Make the notes of pages that get the stamp of now; how many are of kind 1."""
        lines = self._lines
        clock = self.rates.clock
        once: int = pack_note(ONCE, ONCE, clock)
        again: int = pack_note(AGAIN, AGAIN, clock)
        notes = lines.notes.notes
        num_known: i64 = 0
        position = begin
        while position < end:
            page = pages[position]
            if page >= len(notes):
                lines.notes.reach(page)
                notes = lines.notes.notes
            if notes[page] & KIND_BIT != 0:
                notes[page] = again
                num_known += 1
            else:
                notes[page] = once
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
            self._entries = vec[i64]([0] * count)

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
        entries = self._entries
        notes = self._lines.notes.notes
        clock = self.rates.clock
        num_gone: i64 = 0
        num_noted: i64 = 0
        note_before: i64 = 0
        entry: i64 = 0
        position: i64 = 0
        while position < count:
            page = pages[position]
            position += 1
            note = i64(notes[page])
            if note & LINE_BITS == _IN_FIRST & LINE_BITS:
                continue
            if note != note_before:
                # Mostly all of them came together.
                if num_gone > num_noted:
                    self.shadow.note_gone(stamp_of_note(note_before, clock), num_gone - num_noted)
                    num_noted = num_gone
                note_before = note
                entry = pack_entry(kind_of_note(note), note >> STAMP_SHIFT)
            gone[num_gone] = page
            entries[num_gone] = entry
            num_gone += 1
        if num_gone > 0:
            self.shadow.note_gone(stamp_of_note(note_before, clock), num_gone - num_noted)
            self._keys.fill_keys(gone, num_gone, self._page_keys)
            self._ghosts.add_run(self._page_keys, entries, num_gone)
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

    def stands_first(self, page: i64) -> bool:
        return line_of_note(self._lines.note(page)) == FIRST

    def count_first(self) -> i64:
        return self._lines.first.num_pages

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
        page = self._find_least(
            priority, once if priority_of_once == priority else NO_VICTIM, again if priority_of_again == priority else NO_VICTIM
        )
        lines.begin_run(page, self.rates.clock, self.rates.last_old)
        return page

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
        return self._lines.following(page)

    def reserve_capacity(self, num_slots: i64) -> None:
        self._ghosts.reserve_buckets(num_slots)

    def set_capacity(self, num_slots: i64) -> None:
        stamp = self.rates.clock
        is_part_over = self.rates.set_capacity(num_slots)
        self.shadow.set_capacity(num_slots)
        if is_part_over:
            self.shadow.end_part(stamp, self.rates.num_pushed)
            self.shadow.is_behind = True
        self._ghosts.set_num_buckets(num_slots)

    def collect(self) -> list[int]:
        return self._lines.collect()

    def check(self) -> None:
        lines = self._lines
        in_line = lines.once.num_pages + lines.again.num_pages + lines.first.num_pages
        assert in_line == self.num_pages, f"{in_line} pages in line, counted {self.num_pages}"
        self.rates.check()
        self.shadow.check(self.rates.clock)
