"""Pages of one block that go together: a windowed layer's page and that of a layer without a window, in one pool group.

A match that ends at a block needs its window's pages as much as all full pages before it, so a window's page is as valuable as all
that it makes reachable. A policy that learns from returns alone would see few: one match needs one of the windows that a path has. So

- a windowed page that is released in mid-run, while its block's *leading* page (that without a window) is in use, waits: it goes after
  all others, until the leading page is released;
- a leading page that is released takes the queued pages of its block along, into its own segment.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ...layout.slot_layout import SlotLayout
from ..page_rows import NO_PAGE, ONE_HOLD, PLACE, ROW_WORDS, PageRows


@final
class BlockMates:
    """``leading``: the life cycle without a window; ``others``: the windowed ones of its pool group."""

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
