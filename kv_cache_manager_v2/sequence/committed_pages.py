"""The pages of a sequence's published whole blocks, for copies of them beyond this process: which there are, their tokens, their bytes.

A page is named by one number here: ordinal of the block times number of life cycles, plus life cycle.
"""

from typing import Final, final

from mypy_extensions import i64

from ..base.ids import BAD_PAGE_INDEX, GPU_LEVEL
from ..reuse.content_key import block_key
from ..storage.pages_out import PagesOut
from .sequence_state import SequenceState

NO_CONTENT: Final = 0


@final
class CommittedPages:
    """``pages``: by their numbers, parents first; ``rows``, ``contents``, ``slots``: of each. ``end``: the block to go on with."""

    __slots__ = ("pages", "rows", "contents", "slots", "end")

    def __init__(self) -> None:
        self.pages: Final[list[int]] = []
        self.rows: Final[list[int]] = []
        self.contents: Final[list[int]] = []
        self.slots: Final[list[int]] = []
        self.end: i64 = 0


def list_committed(state: SequenceState, begin: i64, end: i64, most: i64, offered: dict[int, int]) -> CommittedPages:
    """Pages on level 0 of the blocks from ``begin`` up to ``end``, or to where there are ``most`` of them, of an ACTIVE sequence.

    ``end`` is at most the number of its published blocks. Not those pages that were ``offered``: content by row. Of a recurrent life
    cycle a block's page is the snapshot of the state at its end.
    """
    found = CommittedPages()
    shared = state.shared
    num_life_cycles = shared.num_life_cycles
    rows = shared.storage.rows
    block_bytes = shared.tree.block_bytes
    bad: i64 = BAD_PAGE_INDEX
    found.end = begin
    for ordinal in range(begin, end):
        block = state.blocks[ordinal]
        content = block_key(block, block_bytes)
        before = len(found.pages)
        for life_cycle in range(num_life_cycles):
            row = block.first_page + life_cycle
            slot = bad
            if shared.life_cycles[life_cycle].has_page_per_block:
                slot = i64(state.tables[life_cycle].entries[ordinal])
            elif rows.has_page(row) and rows.level(row) == GPU_LEVEL:
                slot = rows.slot(row)
            if slot == bad or (offered.get(row, NO_CONTENT) == content):
                continue
            found.pages.append(ordinal * num_life_cycles + life_cycle)
            found.rows.append(row)
            found.contents.append(content)
            found.slots.append(slot)
        if len(found.pages) > most:
            for listed in (found.pages, found.rows, found.contents, found.slots):
                del listed[before:]
            break
        found.end = ordinal + 1
    return found


def copy_committed(
    state: SequenceState, out: PagesOut, found: CommittedPages, targets: list[int], address: i64, stride: i64, heads: list[int]
) -> None:
    """Enqueue copies of the pages, each behind what published it, into slots of host memory, ``stride`` bytes each, from ``address`` on.
    ``targets``: each page's slot; ``heads``: by life cycle, how many bytes of the slot come before the page."""
    shared = state.shared
    num_life_cycles = shared.num_life_cycles
    try:
        for position in range(len(found.pages)):
            page: i64 = found.pages[position]
            target: i64 = targets[position]
            life_cycle = page % num_life_cycles
            head: i64 = heads[life_cycle]
            out.add(shared.storage.pool_group_of[life_cycle], found.slots[position], address + target * stride + head, found.rows[position])
    except BaseException:
        out.discard()
        raise
    out.enqueue()


def mark_packed(state: SequenceState, begin: i64) -> None:
    """The pages of the blocks from ``begin`` on, and the recurrent state, have come from elsewhere, packed with loss."""
    unpacked = state.shared.storage.unpacked
    for life_cycle in range(state.shared.num_life_cycles):
        for ordinal in range(begin, state.num_blocks):
            if state.has_page(life_cycle, ordinal):
                unpacked.add(int(state.blocks[ordinal].first_page + life_cycle))
    unpacked.update([int(block.first_page + state.shared.state_life_cycle) for block in state.recurrent.state_blocks])


def pack_blocks(state: SequenceState, begin: i64, end: i64) -> bytes:
    """The tokens of published blocks of the sequence's path, as the keys of blocks are."""
    tree = state.shared.tree
    return b"".join([tree.key_of(block) for block in state.blocks[int(begin) : int(min(end, state.num_published))]])
