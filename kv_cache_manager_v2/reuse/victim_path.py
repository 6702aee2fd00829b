"""A victim path: the end of a path, evicted together, leaf first.

`close` puts a path's pages in line so. When its last block's page is next, the pages of the blocks above mostly stand behind it,
and each victim takes along what else its block has, as no match could reach that any more:

    path     root - a - b - c - d           in line   d0 d1 c0 c1 b0 a0 x0 ..

    wanted: 5 slots                         victims   d0 (with d1), c0 (with c1), b0: blocks d, c and b leave the tree

`gather` finds out how far that goes, and changes nothing; the tree then drops all of it in one go. What is otherwise (a page
that a sequence holds, another block in the queue, a branch) ends the run, and is for the tree's way page by page.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..storage.page_rows import NO_PAGE, ONE_HOLD, PLACE, ROW_WORDS, level_of_place
from ..storage.page_storage import PageStorage
from ..storage.victim_queue import NO_VICTIM
from .block import Block

_MOST_PAGES: Final = 512
"""That a run has room for; a longer one is gathered in parts."""
_MOST_LISTED: Final = 16
"""Victims that are looked up in line at once: most paths end somewhere among them."""


@final
class VictimPath:
    """The latest run: its pages in the order in which they go, each block's victim before what it takes along."""

    __slots__ = ("pages", "num_pages", "blocks", "others", "_storage", "_line")

    def __init__(self, storage: PageStorage) -> None:
        self.pages: Final = vec[i64]([NO_PAGE] * (_MOST_PAGES + storage.rows.num_life_cycles))
        """The first ``num_pages`` are those of the victims' own pool group and level."""
        self.num_pages: i64 = 0
        self.blocks: Final = vec[i64]([NO_PAGE] * _MOST_PAGES)
        """As many first page ids as `gather` has counted blocks, in that order."""
        self.others = vec[i64]()
        """The pages that they take along elsewhere."""
        self._storage: Final = storage
        self._line: Final = vec[i64]([NO_PAGE] * _MOST_LISTED)

    def gather(self, leaf: Block, life_cycle: i64, level: i64, wanted: i64) -> i64:
        """How many blocks, from ``leaf`` up, go one after the other until ``wanted`` slots are free.

        The page of ``life_cycle``, which has no window, is the next victim of its pool group at that level; the leaf is not pinned.
        """
        storage = self._storage
        words = storage.rows.words
        num_life_cycles = storage.rows.num_life_cycles
        pool_group_of = storage.pool_group_of
        pool_group = pool_group_of[life_cycle]
        queue = storage.queues[level * storage.num_pool_groups + pool_group]
        pages = self.pages
        blocks = self.blocks
        line = self._line
        others = vec[i64]()
        if wanted > _MOST_PAGES:
            wanted = _MOST_PAGES
        num_pages: i64 = 0
        num_blocks: i64 = 0
        num_in_line: i64 = 0
        place_in_line: i64 = 0
        block = leaf
        victim = leaf.first_page + life_cycle
        last_in_line = victim
        while True:
            # The victim, and what it takes along; nothing, if a page of the block is held.
            first_page = block.first_page
            end = first_page + num_life_cycles
            num_others: i64 = len(others)
            count = num_pages
            pages[count] = victim
            count += 1
            page = first_page
            while page < end:
                place = words[page * ROW_WORDS + PLACE]
                if place != NO_PAGE and page != victim:
                    if place >= ONE_HOLD:
                        break
                    if level_of_place(place) == level and pool_group_of[page - first_page] == pool_group:
                        pages[count] = page
                        count += 1
                    else:
                        others = append(others, page)
                page += 1
            if page < end:
                others = others[:num_others]
                break
            num_pages = count
            blocks[num_blocks] = first_page
            num_blocks += 1
            if num_pages >= wanted:
                break
            while True:
                if place_in_line == num_in_line:
                    num_in_line = queue.list_following(last_in_line, line, 0, _MOST_LISTED)
                    place_in_line = 0
                    if num_in_line == 0:
                        victim = NO_VICTIM
                        break
                    last_in_line = line[num_in_line - 1]
                victim = line[place_in_line]
                place_in_line += 1
                if victim < first_page or victim >= end:
                    break
            parent = block.parent
            assert parent is not None, "a victim is in no tree"
            # A root has no pages, though its number and a life cycle may add up to one.
            if parent.first_page < 0 or victim != parent.first_page + life_cycle or parent.num_pins > 0 or parent.only_child is None:
                break
            block = parent
        self.num_pages = num_pages
        self.others = others
        return num_blocks
