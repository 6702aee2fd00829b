"""Which pages of a windowed life cycle no match can use any more, once one of them is gone.

A match needs a whole window of pages in a row, ``ceil((W - 1) / T)`` of them (fewer only from the start of the path on). So when a
page goes, the run of pages above it on its path and the runs below it are useless where they have become shorter than that.

    pages of a path, window of 3 blocks        # # # # . # # # # .
    the marked one goes                        # # # # . # # x # .
    useless: both runs that it leaves                    # #   #

A run that reaches the first block of the path is of use however short it is: a prompt may end there. A page with another page
of its life cycle in a second child is left alone, and so is one that is in use; looking costs at most a window of blocks.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..layout.life_cycle import LifeCycle
from ..layout.registry import LifeCycleRegistry
from ..storage.page_rows import NO_PAGE, ONE_HOLD, PLACE, ROW_WORDS, PageRows
from ..storage.victim_queue import NO_VICTIM, VictimQueue
from .block import Block

_NO_WINDOW: Final = -1
_MOST_LISTED: Final = 16
"""Victims that are looked up in line at once."""
_MAX_BRANCHES: Final = 8
"""A run below is not followed into more children than that; it counts as long enough."""


@final
class WindowRuns:
    __slots__ = ("_rows", "_least_runs", "_pages", "_next_block", "_next_life_cycle", "_top")

    def __init__(self, rows: PageRows, life_cycles: LifeCycleRegistry, tokens_per_block: int) -> None:
        self._rows: Final = rows
        self._least_runs: Final = vec[i64]([_compute_least_run(cycle, tokens_per_block) for cycle in life_cycles])
        """By life cycle: pages in a row that a match needs."""
        self._pages = vec[i64]()
        self._next_block: Block | None = None
        """If this block is the next to lose its page of ``_next_life_cycle``, then all above it up to ``_top`` have theirs, one block
        less than a match needs, or up to the start of the path; None: nothing is known."""
        self._next_life_cycle: i64 = 0
        self._top: Block | None = None

    def forget_place(self) -> None:
        """Pages may have come or gone since the last look, other than those that it found."""
        self._next_block = None
        self._top = None

    def find_useless(self, block: Block, life_cycle: i64) -> vec[i64]:
        """Pages that lost their use with the one that ``block`` has just lost, those nearest to it first."""
        least = self._least_runs[life_cycle]
        self._pages = vec[i64]()
        if least <= 1:
            return self._pages
        if not self._is_of_use_above(block, life_cycle, least):
            self._add_run_above(block, life_cycle)
        only_child = block.only_child
        if only_child is not None:
            self._add_run_below(only_child, life_cycle, least)
        elif block.children is not None and block.children.count <= _MAX_BRANCHES:
            for child in block.children.list_all():
                self._add_run_below(child, life_cycle, least)
        return self._pages

    def _is_of_use_above(self, block: Block, life_cycle: i64, least: i64) -> bool:
        """Whether the run above is long enough, or begins with the path: nearly always, so this looks at nothing but that.

        A path that is evicted leaf by leaf loses one page after another: then one look further up tells.
        """
        words = self._rows.words
        length: i64 = 0
        top: Block | None = block
        if self._next_block is block and self._next_life_cycle == life_cycle:
            top = self._top
            length = least - 1
        while top is not None and length < least:
            above = top.parent
            if above is None or above.first_page < 0:
                break
            if words[(above.first_page + life_cycle) * ROW_WORDS + PLACE] == NO_PAGE:
                self._next_block = None
                return False
            top = above
            length += 1
        self._next_block = block.parent
        self._next_life_cycle = life_cycle
        self._top = top
        return True

    def list_out_of_window(self, block: Block, life_cycle: i64, queue: VictimQueue, pages: vec[i64], most: i64) -> i64:
        """How many victims from ``block``'s page on stand one behind the other in line, each a block above the one before, and
        make nothing useless with them; into ``pages``. The caller drops them all."""
        if self._next_block is not block or self._next_life_cycle != life_cycle:
            return 0
        child = block.only_child
        words = self._rows.words
        if child is None or words[(child.first_page + life_cycle) * ROW_WORDS + PLACE] != NO_PAGE:
            return 0
        page = block.first_page + life_cycle
        pages[0] = page
        count: i64 = 0
        num_listed: i64 = 1
        top = self._top
        while count < most:
            above = None if top is None else top.parent
            if above is not None and above.first_page >= 0:
                if words[(above.first_page + life_cycle) * ROW_WORDS + PLACE] == NO_PAGE:
                    break
                top = above
            count += 1
            if count == num_listed and count < most:
                end = count + _MOST_LISTED
                if end > most:
                    end = most
                num_listed += queue.list_following(page, pages, count, end)
            page = NO_VICTIM
            if count < num_listed:
                page = pages[count]
            parent = block.parent
            self._next_block = parent
            # A root has no pages: its number and a life cycle may add up to NO_VICTIM, or to a page of the first block.
            if parent is None or parent.first_page < 0 or page != parent.first_page + life_cycle or parent.only_child is None:
                break
            block = parent
        self._top = top
        return count

    def _add_run_above(self, block: Block, life_cycle: i64) -> None:
        """The run, which is too short and does not begin with the path, unless it is in use or leads to other pages."""
        rows = self._rows
        kept: i64 = len(self._pages)
        below = block
        above = block.parent
        while above is not None and rows.has_page(above.first_page + life_cycle):
            page = above.first_page + life_cycle
            if rows.num_holds(page) > 0 or self._has_other_page_below(above, below, life_cycle):
                self._pages = self._pages[:kept]
                return
            self._pages = append(self._pages, page)
            below = above
            above = above.parent

    def _has_other_page_below(self, block: Block, known: Block, life_cycle: i64) -> bool:
        children = block.children
        if children is None:
            return False
        if children.count > _MAX_BRANCHES:
            return True
        for child in children.list_all():
            if child is not known and self._rows.has_page(child.first_page + life_cycle):
                return True
        return False

    def _add_run_below(self, top: Block, life_cycle: i64, least: i64) -> None:
        """All pages of the run that begins at ``top``, unless it is in use or long enough somewhere."""
        words = self._rows.words
        pages = self._pages
        kept: i64 = len(pages)
        length: i64 = 0
        block = top
        while True:
            page = block.first_page + life_cycle
            place = words[page * ROW_WORDS + PLACE]
            if place == NO_PAGE:
                self._pages = pages
                return
            length += 1
            if length == least or place >= ONE_HOLD:
                self._pages = pages[:kept]
                return
            pages = append(pages, page)
            child = block.only_child
            if child is None:
                break
            block = child
        self._pages = pages
        if block.children is not None:
            self._add_branches_below(block, life_cycle, least, kept, length)

    def _add_branches_below(self, top: Block, life_cycle: i64, least: i64, kept: i64, length: i64) -> None:
        """Add the branches where the run, of that length down to ``top``, goes on in several children."""
        rows = self._rows
        row = [top]
        while True:
            following: list[Block] = []
            for block in row:
                if not self._list_children(block, life_cycle, following):
                    self._pages = self._pages[:kept]
                    return
            if len(following) == 0:
                return
            length += 1
            if length == least or len(following) > _MAX_BRANCHES:
                self._pages = self._pages[:kept]
                return
            for block in following:
                page = block.first_page + life_cycle
                if rows.num_holds(page) > 0:
                    self._pages = self._pages[:kept]
                    return
                self._pages = append(self._pages, page)
            row = following

    def _list_children(self, block: Block, life_cycle: i64, listed: list[Block]) -> bool:
        """Append those that have a page of the life cycle; False if there are more children than are looked at."""
        rows = self._rows
        if block.only_child is not None:
            if rows.has_page(block.only_child.first_page + life_cycle):
                listed.append(block.only_child)
        elif block.children is not None:
            if block.children.count > _MAX_BRANCHES:
                return False
            for child in block.children.list_all():
                if rows.has_page(child.first_page + life_cycle):
                    listed.append(child)
        return True


def _compute_least_run(cycle: LifeCycle, tokens_per_block: int) -> i64:
    """The fewest blocks that the W - 1 tokens before the next one lie in."""
    window = cycle.window_size
    if window is None or not cycle.has_page_per_block:
        return _NO_WINDOW
    return (window - 1 + tokens_per_block - 1) // tokens_per_block
