"""Page rows: level, slot, priority, holds, locks and queue links of each page, as integers.

A page is named by its *page id*, ``first_page of its block + life cycle id``. Its row is two i64 words (16 bytes):

    PLACE   slot id (bits 0-31) | cache level (32-36) | priority (37-43) | holds (44-62), or NO_PAGE
    LINKS   in a queue: next page id (bits 0-31) | previous page id (32-62); in none: NOT_QUEUED + locks * ONE_LOCK, below zero

Other files find a word at ``page * ROW_WORDS + PLACE`` or ``+ LINKS`` (written out: compiled, a function's result is compared with the
number that stands for an exception, also where the function is inlined), and take it apart and put it together with the functions
below. A hold is one sequence that needs the page; a lock is one such sequence that is active. So ``locks <= holds``, and

    status      condition                 guaranteed                                                  its words
    LOCKED      locks > 0                 on level 0, in no queue                                     LINKS < NOT_QUEUED
    HELD        locks == 0, holds > 0     on some level; in that level's queue unless it is the last  PLACE >= ONE_HOLD
    DROPPABLE   holds == 0                published, in the queue of its level                        PLACE < ONE_HOLD

That a locked page is in no queue is why its locks can stand where the links of others are. A row without a page has NO_PAGE and
NOT_QUEUED: neither holds nor locks.

The first rows are the sentinels of the eviction queues, so that every link is a page id. Rows are recycled by block.

What else is kept of each page or block are *columns*: they get their entries with the rows, so no later call has to catch up.
"""

from abc import ABCMeta, abstractmethod
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.growing_arrays import fill_words, reserve_up_to

PLACE: Final = 0
LINKS: Final = 1
ROW_WORDS: Final = 2

MOST_RESERVED: Final = 1 << 30
"""Words; 8 GiB of addresses, for 2 * 10^8 blocks with two life cycles each."""

NO_PAGE: Final = -1
NOT_QUEUED: Final = -1
LOW_MASK: Final = (1 << 32) - 1
_LEVEL_SHIFT: Final = 32
_LEVEL_MASK: Final = 31
_PRIORITY_SHIFT: Final = 37
_PRIORITY_MASK: Final = 127
_HOLDS_SHIFT: Final = 44
ONE_HOLD: Final = 1 << _HOLDS_SHIFT
MOST_HOLDS: Final = (1 << 19) - 1
ONE_LOCK: Final = -1
LOCKED_ONCE: Final = NOT_QUEUED + ONE_LOCK
NO_SHIFT: Final = -1


def pack_place(slot: i64, level: i64, priority: i64) -> i64:
    """The place of a page without holds."""
    return slot | (level << _LEVEL_SHIFT) | (priority << _PRIORITY_SHIFT)


def level_of_place(place: i64) -> i64:
    return (place >> _LEVEL_SHIFT) & _LEVEL_MASK


def priority_of_place(place: i64) -> i64:
    return (place >> _PRIORITY_SHIFT) & _PRIORITY_MASK


def holds_of_place(place: i64) -> i64:
    return place >> _HOLDS_SHIFT


def moved_place(place: i64, level: i64, slot: i64) -> i64:
    """The place of that page after a move: its priority and its holds go with it."""
    return ((place >> _PRIORITY_SHIFT) << _PRIORITY_SHIFT) | (level << _LEVEL_SHIFT) | slot


def level_and_priority_of(place: i64) -> i64:
    """Its level and its priority, as `level_and_priority` has them; negative for NO_PAGE."""
    return place >> _LEVEL_SHIFT


def add_priority(place: i64, difference: i64) -> i64:
    return place + (difference << _PRIORITY_SHIFT)


def locks_of_links(links: i64) -> i64:
    if links < NOT_QUEUED:
        return NOT_QUEUED - links
    return 0


class RowColumn(metaclass=ABCMeta):
    """An array with an entry for each row, or for each block. It may be replaced when a block is added: take a fresh alias then."""

    __slots__ = ()

    @abstractmethod
    def reserve(self, num_rows: i64, num_blocks: i64) -> None:
        """Take addresses for the entries of so many in all."""

    @abstractmethod
    def grow(self, num_rows: i64, num_blocks: i64) -> None:
        """Have an entry for each of so many."""


@final
class WordColumn(RowColumn):
    """``num_before``: entries in front of the first row's."""

    __slots__ = ("words", "_empty", "_is_per_block", "_num_before")

    def __init__(self, empty: i64, is_per_block: bool = False, num_before: i64 = 0) -> None:
        self.words = vec[i64]([empty] * num_before)
        self._empty: Final = empty
        self._is_per_block: Final = is_per_block
        self._num_before: Final = num_before

    def reserve(self, num_rows: i64, num_blocks: i64) -> None:
        count = self._num_before + (num_blocks if self._is_per_block else num_rows)
        self.words = reserve_up_to(self.words, count if count < MOST_RESERVED else MOST_RESERVED)

    def grow(self, num_rows: i64, num_blocks: i64) -> None:
        count = self._num_before + (num_blocks if self._is_per_block else num_rows)
        self.words = fill_words(self.words, count, self._empty)


@final
class PageRows:
    """All rows. `words` may be replaced when a block is added: take a fresh alias after `add_block`."""

    __slots__ = ("words", "num_life_cycles", "first_page_of_blocks", "block_shift", "num_rows", "_num_reserved", "_columns")

    def __init__(self, num_life_cycles: i64, num_sentinels: i64) -> None:
        self.num_life_cycles: Final = num_life_cycles
        self.first_page_of_blocks: Final = num_sentinels
        self.num_rows = num_sentinels
        self._num_reserved: i64 = 0
        """Blocks that there were addresses for at the last `reserve`, or asked for in vain."""
        self._columns: Final[list[RowColumn]] = []
        exponent = int(num_life_cycles).bit_length() - 1
        self.block_shift: Final[i64] = exponent if num_life_cycles == 1 << exponent else NO_SHIFT
        """The number of life cycles as a power of two, else `NO_SHIFT`: a division costs more than all else of `block_number`."""
        self.words = vec[i64]([NO_PAGE] * (num_sentinels * ROW_WORDS))

    def reserve(self, num_blocks: i64) -> None:
        """Take addresses for that many blocks in all, so that nothing is copied as they are added; memory comes as it is used."""
        if num_blocks <= self._num_reserved:
            return
        self._num_reserved = num_blocks
        num_rows = self.first_page_of(num_blocks)
        num_words = num_rows * ROW_WORDS
        self.words = reserve_up_to(self.words, num_words if num_words < MOST_RESERVED else MOST_RESERVED)
        for column in self._columns:
            column.reserve(num_rows, num_blocks)

    def add_column(self, column: RowColumn) -> None:
        """For a manager that is being made: what there is already gets its entries now."""
        self._columns.append(column)
        column.reserve(self.first_page_of(self._num_reserved), self._num_reserved)
        column.grow(self.num_rows, self.num_blocks)

    def add_words(self, empty: i64, is_per_block: bool = False, num_before: i64 = 0) -> WordColumn:
        column = WordColumn(empty, is_per_block, num_before)
        self.add_column(column)
        return column

    def add_block(self) -> i64:
        """Rows for one more block, without pages; returns its first page id."""
        first_page = self.num_rows
        self.grow(self.num_blocks + 1)
        return first_page

    def grow(self, num_blocks: i64) -> None:
        """Have rows for that many blocks in all; the new ones without pages."""
        num_rows = self.first_page_of(num_blocks)
        if num_rows <= self.num_rows:
            return
        self.words = fill_words(self.words, num_rows * ROW_WORDS, NO_PAGE)  # which is NOT_QUEUED, too
        for column in self._columns:
            column.grow(num_rows, num_blocks)
        self.num_rows = num_rows

    def first_page_of(self, block_number: i64) -> i64:
        return self.first_page_of_blocks + block_number * self.num_life_cycles

    def block_number(self, page: i64) -> i64:
        """Blocks are numbered from 0 in the order in which they were made."""
        if self.block_shift != NO_SHIFT:
            return (page - self.first_page_of_blocks) >> self.block_shift
        return (page - self.first_page_of_blocks) // self.num_life_cycles

    @property
    def num_blocks(self) -> i64:
        return self.block_number(self.num_rows)

    def has_page(self, page: i64) -> bool:
        return self.words[page * ROW_WORDS + PLACE] != NO_PAGE

    def slot(self, page: i64) -> i64:
        return self.words[page * ROW_WORDS + PLACE] & LOW_MASK

    def level(self, page: i64) -> i64:
        return level_of_place(self.words[page * ROW_WORDS + PLACE])

    def priority(self, page: i64) -> i64:
        return priority_of_place(self.words[page * ROW_WORDS + PLACE])

    def num_holds(self, page: i64) -> i64:
        """Holds of a row that has a page."""
        return holds_of_place(self.words[page * ROW_WORDS + PLACE])

    def num_locks(self, page: i64) -> i64:
        return locks_of_links(self.words[page * ROW_WORDS + LINKS])

    def is_queued(self, page: i64) -> bool:
        return self.words[page * ROW_WORDS + LINKS] > NOT_QUEUED
