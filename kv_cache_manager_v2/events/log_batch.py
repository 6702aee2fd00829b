"""A batch of log entries: changes of published pages as integers, handed over whole.

One word an entry: the kind of change (bits 0-3), its page, block or root (4-35), a level or cause (36-43), a priority (44-51). A
block has a second word, its parent. Tokens of a block, the scope of a root, a `PublishedRun`, and the sizes of the levels are in
`objects`, in the same order.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

ROOT_MADE: Final = 0
ROOT_REMOVED: Final = 1
BLOCK_PUBLISHED: Final = 2
BLOCK_REMOVED: Final = 3
PAGE_PUBLISHED: Final = 4
PAGE_REMOVED: Final = 5
PAGE_MOVED: Final = 6
PRIORITY_CHANGED: Final = 7
LEVELS_RESIZED: Final = 8
RUN_PUBLISHED: Final = 9

KIND_MASK: Final = 15
ID_SHIFT: Final = 4
ID_MASK: Final = (1 << 32) - 1
LEVEL_SHIFT: Final = 36
PRIORITY_SHIFT: Final = 44
BYTE_MASK: Final = 255


@final
class LogBatch:
    """The log entries of some calls."""

    __slots__ = ("words", "objects", "number", "num_pages_so_far")

    def __init__(self, words: vec[i64], objects: list[object], number: i64, num_pages_so_far: i64) -> None:
        self.words = words
        self.objects: Final = objects
        self.number: Final = number
        """Batches of the log so far, this one included: one that is handed over twice is taken in once."""
        self.num_pages_so_far: Final = num_pages_so_far
        """Entries about pages in the log so far, these included: an upper bound of the events that they become."""
