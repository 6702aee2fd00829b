"""What LEARNED knows of each page, in four bytes: how often it was used, and the segment that it is in; and which pages go together.

A page is in one place, so all queues of a storage share these notes.

    note  0 where nothing is known: the page is new, or has left its slot; else
          status (bits 0-1) | uses (2-7) | by status, bits 8-30:
          IN_SEGMENT, MOVING   the segment; MOVING pages are between two queues, or held by sequences that have no room yet
          IN_USE               bucket of age when it came back, plus 1, 0 for none (8-11) | whether it was a branching point (12)
                               | in the line of pages that go before all others (13)
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from ...base.growing_arrays import fill_numbers, reserve_numbers
from ...layout.slot_layout import SlotLayout
from ..page_rows import NO_PAGE, ONE_HOLD, PLACE, ROW_WORDS, PageRows, RowColumn
from .segment_table import NO_SEGMENT

UNKNOWN: Final = 0
IN_SEGMENT: Final = 1
MOVING: Final = 2
IN_USE: Final = 3
STATUS_MASK: Final = 3
USES_SHIFT: Final = 2
USES_MASK: Final = 63
SEGMENT_SHIFT: Final = 8
MOST_SEGMENTS: Final = (1 << 23) - 1
ALL_USES: Final = USES_MASK << USES_SHIFT
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

    def segment_at(self, page: i64) -> i64:
        """That the page is in, queued; or NO_SEGMENT, as of a row that is no page."""
        note = i64(self.notes[page])
        if note & STATUS_MASK != IN_SEGMENT:
            return NO_SEGMENT  # a conditional expression would be an object, compiled
        return segment_of_note(note)

    def change_run(self, pages: vec[i64], begin: i64, count: i64, by: i64) -> i64:
        """How far the pages from ``begin`` on have the note of the first one, but for their uses; these notes are larger by so much now."""
        notes = self.notes
        kind = i64(notes[pages[begin]]) & ~ALL_USES
        end = begin
        while end < count:
            page = pages[end]
            note = i64(notes[page])
            if note & ~ALL_USES != kind:
                break
            if by != 0:
                notes[page] = i32(note + by)
            end += 1
        return end

    def set(self, page: i64, note: i64) -> None:
        self.notes[page] = i32(note)


def in_segment(segment: i64, uses: i64) -> i64:
    return (segment << SEGMENT_SHIFT) | (uses << USES_SHIFT) | IN_SEGMENT


def in_use(uses: i64, age: i64, is_branch: bool) -> i64:
    """``age``: the bucket plus 1, or 0."""
    return (BRANCH_BIT if is_branch else 0) | (age << AGE_SHIFT) | (uses << USES_SHIFT) | IN_USE


def uses_of_note(note: i64) -> i64:
    return (note >> USES_SHIFT) & USES_MASK


def segment_of_note(note: i64) -> i64:
    return note >> SEGMENT_SHIFT


@final
class BlockMates:
    """Pages of one block that go together: a windowed layer's page and that of a layer without a window, in one pool group. ``leading``:
    the life cycle without a window; ``others``: the windowed ones.

    A match that ends at a block needs its window's pages as much as all full pages before it, so a window's page is as valuable as all
    that it makes reachable. A policy that learns from returns alone would see few: one match needs one of the windows that a path has. So

    - a windowed page that is released in mid-run, while its block's *leading* page (that without a window) is in use, waits: it goes after
      all others, until the leading page is released;
    - a leading page that is released takes the queued pages of its block along, into its own segment.
    """

    __slots__ = ("leading", "others", "_rows")

    def __init__(self, rows: PageRows, leading: i64, others: vec[i64]) -> None:
        self.leading: Final = leading
        self.others: Final = others
        self._rows: Final = rows

    def first_page(self, page: i64) -> i64:
        rows = self._rows
        return rows.first_page_of_blocks + rows.block_number(page) * rows.num_life_cycles

    def waits(self, page: i64) -> bool:
        """Whether the page is not the leading one of its block, and that one is in use."""
        leading = self.first_page(page) + self.leading
        if page == leading:
            return False
        place = self._rows.words[leading * ROW_WORDS + PLACE]
        return place != NO_PAGE and place >= ONE_HOLD


def find_block_mates(rows: PageRows, layout: SlotLayout, pool_group: int) -> BlockMates | None:
    """None where no life cycle of the pool group has a window, or all have one."""
    leading: i64 = -1
    others = vec[i64]()
    for life_cycle, cycle in enumerate(layout.life_cycles):
        if layout.pool_group_indices[life_cycle] == pool_group and cycle.has_page_per_block:
            if cycle.window_size is not None:
                others = append(others, life_cycle)
            elif leading < 0:
                leading = life_cycle
    if leading < 0 or len(others) == 0:
        return None
    return BlockMates(rows, leading, others)
