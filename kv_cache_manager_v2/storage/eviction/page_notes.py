"""What LEARNED knows of each page, in four bytes: how often it was used, and the segment that it is in.

A page is in one place, so all queues of a storage share these notes.

    note  0 where nothing is known: the page is new, or has left its slot; else
          status (bits 0-1) | uses (2-7) | by status, bits 8-30:
          IN_SEGMENT, MOVING   the segment; MOVING pages are between two queues, or held by sequences that have no room yet
          IN_USE               bucket of age when it came back, plus 1, 0 for none (8-11) | whether it was a branching point (12)
                               | in the line of pages that go before all others (13)
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64

from ...base.growing_arrays import fill_numbers, reserve_numbers
from ..page_rows import PageRows, RowColumn

UNKNOWN: Final = 0
IN_SEGMENT: Final = 1
MOVING: Final = 2
IN_USE: Final = 3
STATUS_MASK: Final = 3
USES_SHIFT: Final = 2
USES_MASK: Final = 63
SEGMENT_SHIFT: Final = 8
MOST_SEGMENTS: Final = (1 << 23) - 1
_ALL_USES: Final = USES_MASK << USES_SHIFT
AGE_SHIFT: Final = 8
AGE_MASK: Final = 15
BRANCH_BIT: Final = 1 << 12
FIRST_BIT: Final = 1 << 13
"""With IN_USE, though no sequence uses it: so is the note of a page among those that are evicted before all others."""


@final
class PageNotes(RowColumn):
    """`notes` may be replaced when a block is added: take a fresh alias after that."""

    __slots__ = ("notes",)

    def __init__(self) -> None:
        self.notes = vec[i32]()

    def join(self, rows: PageRows) -> None:
        """There is a queue that learns: from now on each row has a note."""
        if len(self.notes) == 0:
            rows.add_column(self)

    def reserve(self, num_rows: i64, num_blocks: i64) -> None:
        self.notes = reserve_numbers(self.notes, num_rows)

    def grow(self, num_rows: i64, num_blocks: i64) -> None:
        self.notes = fill_numbers(self.notes, num_rows, UNKNOWN)

    def forget_all(self) -> None:
        """Nothing is known of any page."""
        notes = self.notes
        for row in range(len(notes)):
            notes[row] = UNKNOWN

    def get(self, page: i64) -> i64:
        return i64(self.notes[page])

    def change_run(self, old: i64, new: i64, pages: vec[i64], begin: i64, count: i64) -> i64:
        """How far the pages from ``begin`` on have the note ``old``, but for their uses; that is ``new`` now, with the same uses."""
        notes = self.notes
        end = begin
        while end < count:
            note = i64(notes[pages[end]])
            if note & ~_ALL_USES != old:
                break
            if new != old:
                entry: int = note - old + new
                notes[pages[end]] = entry
            end += 1
        return end

    def set(self, page: i64, note: i64) -> None:
        notes = self.notes
        entry: int = note
        notes[page] = entry


def in_segment(segment: i64, uses: i64) -> i64:
    return (segment << SEGMENT_SHIFT) | (uses << USES_SHIFT) | IN_SEGMENT


def between(segment: i64) -> i64:
    """The note of a page of the segment that is between two queues, or held, but for its uses."""
    return (segment << SEGMENT_SHIFT) | MOVING


def in_use(uses: i64, age: i64, is_branch: bool) -> i64:
    """``age``: the bucket plus 1, or 0."""
    return (BRANCH_BIT if is_branch else 0) | (age << AGE_SHIFT) | (uses << USES_SHIFT) | IN_USE


def uses_of_note(note: i64) -> i64:
    return (note >> USES_SHIFT) & USES_MASK


def segment_of_note(note: i64) -> i64:
    return note >> SEGMENT_SHIFT
