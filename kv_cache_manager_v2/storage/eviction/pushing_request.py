"""The request whose pages a learned queue is getting, run by run, or the latest one: what its segments have as traits."""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..page_rows import PageRows
from .page_notes import BRANCH_BIT, UNKNOWN, PageNotes
from .request_facts import NO_REQUEST, RequestFacts
from .segment_records import SegmentRecords
from .segment_traits import BRANCHED_PATH, EXTENDED_PATH, NEW_PATH

NO_BLOCK: Final = -1


@final
@mypyc_attr(native_class=True)
class PushingRequest:
    __slots__ = (
        "serial", "num_blocks", "length", "num_new", "path", "last_block", "block_before", "_rows", "_notes", "_facts", "_per_block",
    )  # fmt: skip

    serial: i64
    num_blocks: i64
    """Of it, pushed so far."""
    length: i64
    """In blocks, where the request says nothing of it."""
    num_new: i64
    path: i64
    last_block: i64
    """The first block that it pushed."""
    block_before: i64
    _rows: Final[PageRows]
    _notes: Final[PageNotes]
    _facts: Final[RequestFacts]
    _per_block: Final[i64]

    def __init__(self, rows: PageRows, records: SegmentRecords) -> None:
        self.serial = NO_REQUEST
        self.num_blocks = 0
        self.length = 0
        self.num_new = 0
        self.path = NEW_PATH
        self.last_block = NO_BLOCK
        self.block_before = NO_BLOCK
        self._rows = rows
        self._notes = records.notes
        self._facts = records.request
        self._per_block = records.pages_per_block

    def see(self, pages: vec[i64], count: i64) -> bool:
        """A run is about to be pushed: how much of it is new, and where its path has come from. Whether another request begins."""
        serial = self._facts.serial
        is_other = False
        if serial == NO_REQUEST or serial != self.serial:
            self.num_new = 0
            self.length = 0
            self.num_blocks = 0
            self.path = NEW_PATH
            # A page alone, without a request, may go on where the one before it ended.
            is_other = serial != NO_REQUEST or count > 1
            self.last_block = self._rows.block_number(pages[0]) if is_other else NO_BLOCK
            self.block_before = NO_BLOCK
            self.serial = serial
        notes = self._notes.notes
        num_known: i64 = 0
        for position in range(count):
            note = i64(notes[pages[position]])
            if note != UNKNOWN:
                num_known += 1
                if self.path == NEW_PATH:
                    # The known page farthest from the root.
                    self.path = BRANCHED_PATH if note & BRANCH_BIT != 0 else EXTENDED_PATH
        self.num_new += count - num_known
        self.length += count // self._per_block
        return is_other
