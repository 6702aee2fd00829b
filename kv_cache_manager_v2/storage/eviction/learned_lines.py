"""The lines of `LearnedQueue`: pages by recency in each, and where in the first one young content begins.

ONCE and AGAIN are content of kind 0 and 1, FIRST is what goes before all others. Each line is an `EvictionQueue`, so a page's place
in it costs nothing beside its row. ONCE is old content and then young content; a mark per priority says which page is the first young
one. The mark is moved on by some pages at a time, so some behind it may be old by now.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..eviction_queue import EvictionQueue
from ..page_rows import LINKS, LOW_MASK, PLACE, ROW_WORDS, PageRows, priority_of_place
from ..victim_queue import NO_VICTIM, NUM_PRIORITIES
from .page_notes import (
    KIND_BIT,
    KNOWN,
    LINE_BITS,
    LINE_SHIFT,
    STAMP_MASK,
    STAMP_SHIFT,
    PageNotes,
    line_of_note,
    stamp_of_note,
)

ONCE: Final = 0
AGAIN: Final = 1
FIRST: Final = 2
NUM_LINES: Final = 3
NUM_SENTINELS: Final = NUM_LINES * NUM_PRIORITIES
MOST_AGED: Final = 64
"""A few pages are aged in one go and not one by one: while the mark is behind, victims are known one at a time only."""
_NO_MARK: Final = -2
_IN_ONCE: Final = (ONCE + 1) << LINE_SHIFT
_IN_AGAIN: Final = (AGAIN + 1) << LINE_SHIFT
_IN_FIRST: Final = (FIRST + 1) << LINE_SHIFT


@final
@mypyc_attr(native_class=True)
class LearnedLines:
    __slots__ = ("once", "again", "first", "young", "notes", "_rows", "_scratch", "_num_marks", "_sum_of_marks", "_end_of_run")

    once: Final[EvictionQueue]
    again: Final[EvictionQueue]
    first: Final[EvictionQueue]
    young: Final[vec[i64]]
    """By priority: the first young page of ONCE, or NO_VICTIM."""
    notes: Final[PageNotes]
    _rows: Final[PageRows]
    _scratch: vec[i64]
    _num_marks: i64
    """Priorities with a young page; with one of them, the sum of the marked pages is the page."""
    _sum_of_marks: i64
    _end_of_run: i64
    """Where the victims that are known in advance end, see `following`."""

    def __init__(self, rows: PageRows, first_sentinel: i64, notes: PageNotes) -> None:
        """``first_sentinel``: of `NUM_SENTINELS` rows."""
        self._rows = rows
        self.notes = notes
        self.once = EvictionQueue(rows, first_sentinel)
        self.again = EvictionQueue(rows, first_sentinel + NUM_PRIORITIES)
        self.first = EvictionQueue(rows, first_sentinel + 2 * NUM_PRIORITIES)
        self.young = vec[i64]([NO_VICTIM] * NUM_PRIORITIES)
        self._scratch = vec[i64]()
        self._num_marks = 0
        self._sum_of_marks = 0
        self._end_of_run = NO_VICTIM

    def _mark(self, priority: i64, page: i64) -> None:
        """That is the first young page of ONCE from now on, or NO_VICTIM."""
        young = self.young
        marked = young[priority]
        if marked != NO_VICTIM:
            self._num_marks -= 1
            self._sum_of_marks -= marked
        if page != NO_VICTIM:
            self._num_marks += 1
            self._sum_of_marks += page
        young[priority] = page

    def line(self, number: i64) -> EvictionQueue:
        if number == ONCE:
            return self.once
        return self.again if number == AGAIN else self.first

    def note(self, page: i64) -> i64:
        notes = self.notes.notes
        return i64(notes[page]) if page < len(notes) else 0

    def set_note(self, page: i64, note: i64) -> None:
        if page >= len(self.notes.notes):
            self.notes.reach(page)
        notes = self.notes.notes
        entry: int = note
        notes[page] = entry

    def priority(self, page: i64) -> i64:
        return priority_of_place(self._rows.words[page * ROW_WORDS + PLACE])

    # -- one page -----------------------------------------------------------------------------------------------------

    def enter(self, page: i64, note: i64) -> None:
        """At the end of the line that its note says; in ONCE it is young."""
        self.set_note(page, note)
        if note & LINE_BITS == _IN_ONCE:
            self.once.push(page)
            priority = self.priority(page)
            if self.young[priority] == NO_VICTIM:
                self._mark(priority, page)
        else:
            self.line(line_of_note(note)).push(page)

    def leave(self, page: i64) -> i64:
        """The page's note; it is in no line any more, and has none."""
        notes = self.notes.notes
        note = i64(notes[page])
        if note & LINE_BITS == _IN_ONCE:
            self._pass_mark_on(page, self.priority(page))
            self.once.remove(page)
        else:
            assert note & LINE_BITS != 0, "a page left an eviction queue that it was not in"
            self.line(line_of_note(note)).remove(page)
        notes[page] = 0
        return note

    def forget_priority(self, page: i64) -> None:
        """Its row's priority is another one by now than that of its place in line: to be said before `leave`."""
        # Which one it was, nothing tells but the mark, and only for that it is of interest.
        if self.note(page) & LINE_BITS == _IN_ONCE and self._num_marks > 0:
            young = self.young
            priority: i64 = 0
            while priority < NUM_PRIORITIES:
                if young[priority] == page:
                    self._mark(priority, self.once.following(page))
                priority += 1

    def _pass_mark_on(self, page: i64, priority: i64) -> None:
        """If the page, in ONCE, is the first young one of that priority, then the next one is as young."""
        if self.young[priority] == page:
            self._mark(priority, self.once.following(page))

    def put_behind(self, page: i64, other: i64, note: i64) -> None:
        """A page that is in no line goes right behind ``other``, into its line, or to the end of the line that ``note`` says if that one
        is in none or of another priority; with that note otherwise."""
        other_line = line_of_note(self.note(other))
        if other_line < 0 or self.priority(other) != self.priority(page):
            self.set_note(page, note)
            self.line(line_of_note(note)).push(page)
            return
        self.set_note(page, (note & ~LINE_BITS) | ((other_line + 1) << LINE_SHIFT))
        self.line(other_line).insert_behind(page, other)

    # -- runs of pages ------------------------------------------------------------------------------------------------

    def enter_run(self, pages: vec[i64], count: i64, num_once: i64) -> None:
        """Pages whose notes are made already, ``num_once`` of them for ONCE and the others for AGAIN."""
        if num_once == 0:
            self.again.push_run(pages, count)
            return
        if num_once < count:
            self.again.push_run(self._select(pages, count, AGAIN), count - num_once)
            pages = self._select(pages, count, ONCE)
        self.once.push_run(pages, num_once)
        words = self._rows.words
        marked: i64 = NO_VICTIM
        position: i64 = 0
        while position < num_once:
            priority = priority_of_place(words[pages[position] * ROW_WORDS + PLACE])
            if priority != marked:
                marked = priority
                if self.young[priority] == NO_VICTIM:
                    self._mark(priority, pages[position])
            position += 1

    def enter_first(self, pages: vec[i64], count: i64, note: i64) -> None:
        """Before all others, the last one before all of them; with that note, but for their kind."""
        notes = self.notes.notes
        position: i64 = 0
        while position < count:
            page = pages[position]
            if page >= len(notes):
                self.notes.reach(page)
                notes = self.notes.notes
            entry: int = note | (i64(notes[page]) & KIND_BIT)
            notes[page] = entry
            position += 1
        self.first.push_run_first(pages, count)

    def leave_run(self, pages: vec[i64], count: i64, note: i64, is_use: bool) -> None:
        """They are in no line any more, and have that note. ``is_use``: mostly from the end of a line on, else from its beginning."""
        notes = self.notes.notes
        # With one mark, a look at each page tells whether it is that; with several, all are looked for.
        mark: i64 = self._sum_of_marks if self._num_marks == 1 else _NO_MARK
        is_marked = self._num_marks > 1
        num_once: i64 = 0
        num_again: i64 = 0
        position: i64 = 0
        while position < count:
            page = pages[position]
            line = i64(notes[page]) & LINE_BITS
            if line == _IN_ONCE:
                num_once += 1
                if page == mark:
                    is_marked = True
            elif line == _IN_AGAIN:
                num_again += 1
            else:
                assert line != 0, "a page left an eviction queue that it was not in"
            position += 1
        if is_marked:
            self._pass_marks_on(pages, count)
        if num_once == count:
            self._take_out(self.once, pages, count, is_use)
        elif num_again == count:
            self._take_out(self.again, pages, count, is_use)
        else:
            if num_once > 0:
                self._take_out(self.once, self._select(pages, count, ONCE), num_once, is_use)
            if num_again > 0:
                self._take_out(self.again, self._select(pages, count, AGAIN), num_again, is_use)
            num_first = count - num_once - num_again
            if num_first > 0:
                self._take_out(self.first, pages if num_first == count else self._select(pages, count, FIRST), num_first, is_use)
        entry: int = note
        position = 0
        while position < count:
            notes[pages[position]] = entry
            position += 1

    def _take_out(self, line: EvictionQueue, pages: vec[i64], count: i64, is_use: bool) -> None:
        if is_use:
            line.use_run(pages, count)
        else:
            line.evict_run(pages, count)

    def _pass_marks_on(self, pages: vec[i64], count: i64) -> None:
        """The pages, all still in line, are about to go: each mark goes to the first page that stays."""
        notes = self.notes.notes
        position: i64 = 0
        while position < count:
            # Nothing in line is unknown: that tells who goes.
            notes[pages[position]] ^= KNOWN
            position += 1
        young = self.young
        priority: i64 = 0
        while priority < NUM_PRIORITIES:
            following = young[priority]
            if following != NO_VICTIM and notes[following] & KNOWN == 0:
                while following != NO_VICTIM and notes[following] & KNOWN == 0:
                    following = self.once.following(following)
                self._mark(priority, following)
            priority += 1

    def _select(self, pages: vec[i64], count: i64, line: i64) -> vec[i64]:
        """Those whose notes say that line, in order; kept until the next call."""
        if len(self._scratch) < count:
            self._scratch = vec[i64]([0] * count)
        scratch = self._scratch
        notes = self.notes.notes
        num_selected: i64 = 0
        position: i64 = 0
        while position < count:
            if line_of_note(i64(notes[pages[position]])) == line:
                scratch[num_selected] = pages[position]
                num_selected += 1
            position += 1
        return scratch

    # -- who is next --------------------------------------------------------------------------------------------------

    def age(self, priority: i64, now: i64, last_old: i64) -> i64:
        """The first young page of ONCE, or NO_VICTIM; so many are looked at, so that a first eviction after long does not take long."""
        marked = self.young[priority]
        if marked == NO_VICTIM:
            return marked
        notes = self.notes.notes
        words = self._rows.words
        end_of_sentinels = self._rows.first_page_of_blocks
        least_age = now - last_old
        page = marked
        num_left: i64 = MOST_AGED
        # As in `stamp_of_note`, for ages.
        while num_left > 0 and (now - (i64(notes[page]) >> STAMP_SHIFT)) & STAMP_MASK >= least_age:
            page = words[page * ROW_WORDS + LINKS] & LOW_MASK
            if page < end_of_sentinels:
                page = NO_VICTIM
                break
            num_left -= 1
        if page != marked:
            self._mark(priority, page)
        return page

    def begin_run(self, page: i64, now: i64, last_old: i64) -> None:
        """That page is the next victim."""
        mark = self.young[self.priority(page)]
        # If the mark is on an old page, it moves on before another one is chosen: nothing is known then.
        is_behind = mark != NO_VICTIM and stamp_of_note(i64(self.notes.notes[mark]), now) <= last_old
        self._end_of_run = _NO_MARK if is_behind else mark

    def following(self, page: i64) -> i64:
        """The page behind this one if it is as old and just as much worth; else NO_VICTIM. Of the next victim, of which `begin_run` has
        been told, and then of each one that this returns."""
        # Whatever line it is in, its row has the next one.
        rows = self._rows
        following = rows.words[page * ROW_WORDS + LINKS] & LOW_MASK
        if following < rows.first_page_of_blocks:
            return NO_VICTIM
        notes = self.notes.notes
        note = i64(notes[page])
        if note & LINE_BITS == _IN_FIRST:
            return following
        end = self._end_of_run
        # Behind the mark young content begins.
        if end == _NO_MARK or following == end or (note ^ i64(notes[following])) >> STAMP_SHIFT != 0:
            return NO_VICTIM
        return following

    def collect(self) -> list[int]:
        """By priority, then FIRST, ONCE and AGAIN, then place in line."""
        by_priority: list[list[int]] = [[] for _ in range(NUM_PRIORITIES)]
        for line in (self.first, self.once, self.again):
            for page in line.collect():
                by_priority[self.priority(page)].append(page)
        pages: list[int] = []
        for some in by_priority:
            pages.extend(some)
        return pages
