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
from mypy_extensions import i64, mypyc_attr

from ..storage.page_rows import NO_PAGE, ONE_HOLD, PLACE, ROW_WORDS, level_of_place
from ..storage.page_storage import PageStorage
from .block import Block

_MOST_PAGES: Final = 512
"""That a run has room for; a longer one is gathered in parts."""


@final
@mypyc_attr(native_class=True)
class VictimPath:
    """The latest run: its pages in the order in which they go, each block's victim before what it takes along."""

    __slots__ = ("pages", "num_pages", "blocks", "others", "_storage")

    pages: Final[vec[i64]]
    """The first ``num_pages`` are those of the victims' own pool group and level."""
    num_pages: i64
    blocks: Final[vec[i64]]
    """As many first page ids as `gather` has counted blocks, in that order."""
    others: vec[i64]
    """What they take along elsewhere."""
    _storage: Final[PageStorage]

    def __init__(self, storage: PageStorage) -> None:
        self.pages = vec[i64]([NO_PAGE] * (_MOST_PAGES + storage.rows.num_life_cycles))
        self.num_pages = 0
        self.blocks = vec[i64]([NO_PAGE] * _MOST_PAGES)
        self.others = vec[i64]()
        self._storage = storage

    def gather(self, leaf: Block, life_cycle: i64, level: i64, wanted: i64) -> i64:
        """How many blocks, from ``leaf`` up, go one after the other until ``wanted`` slots are free.

        The page of ``life_cycle``, which has no window, is the next victim of its pool group at that level; the leaf is not pinned.
        """
        storage = self._storage
        pool_group = storage.pool_group_of[life_cycle]
        queue = storage.queues[level * storage.num_pool_groups + pool_group]
        num_life_cycles = storage.rows.num_life_cycles
        if wanted > _MOST_PAGES:
            wanted = _MOST_PAGES
        num_blocks: i64 = 0
        block = leaf
        victim = leaf.first_page + life_cycle
        self.num_pages = 0
        if len(self.others) > 0:
            self.others = vec[i64]()
        while self._add_pages(block.first_page, victim, level, pool_group):
            self.blocks[num_blocks] = block.first_page
            num_blocks += 1
            if self.num_pages >= wanted:
                break
            first_page = block.first_page
            victim = queue.following(victim)
            while first_page <= victim < first_page + num_life_cycles:
                victim = queue.following(victim)
            parent = block.parent
            assert parent is not None, "a victim is in no tree"
            # A root has no pages, though its number and a life cycle may add up to one.
            if parent.first_page < 0 or victim != parent.first_page + life_cycle or parent.num_pins > 0 or parent.only_child is None:
                break
            block = parent
        return num_blocks

    def _add_pages(self, first_page: i64, victim: i64, level: i64, pool_group: i64) -> bool:
        """The victim and what it takes along; False, and nothing added, if a page of the block is held."""
        storage = self._storage
        words = storage.rows.words
        pages = self.pages
        others = self.others
        count = self.num_pages
        pages[count] = victim
        count += 1
        end = first_page + storage.rows.num_life_cycles
        for page in range(first_page, end):
            place = words[page * ROW_WORDS + PLACE]
            if place != NO_PAGE and page != victim:
                if place >= ONE_HOLD:
                    return False
                if level_of_place(place) == level and storage.pool_group_of[page - first_page] == pool_group:
                    pages[count] = page
                    count += 1
                else:
                    others = append(others, page)
        self.num_pages = count
        self.others = others
        return True
