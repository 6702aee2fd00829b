"""What a policy knows of each page, in four bytes: its kind, which line it is in, and when it was pushed last.

A page is in one place, so all queues of a storage share these notes; they grow to the highest page that any of them has seen.

    note  0 where nothing is known: the page is new, or has left its slot; else
          KNOWN (bit 0) | kind of its content (1) | line + 1, or 0 while it is in no line (2-3) | stamp, modulo 2**27 (4-30)
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64, mypyc_attr

KNOWN: Final = 1
KIND_SHIFT: Final = 1
KIND_BIT: Final = 1 << KIND_SHIFT
LINE_SHIFT: Final = 2
LINE_MASK: Final = 3
LINE_BITS: Final = LINE_MASK << LINE_SHIFT
STAMP_SHIFT: Final = 4
STAMP_MASK: Final = (1 << 27) - 1


@final
@mypyc_attr(native_class=True)
class PageNotes:
    """`notes` may be replaced by `reach`: take a fresh alias after it."""

    __slots__ = ("notes",)

    notes: vec[i32]

    def __init__(self) -> None:
        self.notes = vec[i32]()

    def reach(self, page: i64) -> None:
        """There is a note for that page."""
        notes = self.notes
        known: i64 = len(notes)
        while known <= page:
            notes = append(notes, 0)
            known += 1
        self.notes = notes


def pack_note(kind: i64, line: i64, stamp: i64) -> i64:
    """Of a page in a line."""
    return ((stamp & STAMP_MASK) << STAMP_SHIFT) | ((line + 1) << LINE_SHIFT) | (kind << KIND_SHIFT) | KNOWN


def kind_of_note(note: i64) -> i64:
    return (note >> KIND_SHIFT) & 1


def line_of_note(note: i64) -> i64:
    """-1 for none."""
    return ((note >> LINE_SHIFT) & LINE_MASK) - 1


def stamp_of_note(note: i64, now: i64) -> i64:
    """Of a page in a line, at a clock of ``now``."""
    return now - ((now - (note >> STAMP_SHIFT)) & STAMP_MASK)
