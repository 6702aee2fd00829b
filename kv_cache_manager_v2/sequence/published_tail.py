"""The published tail: a partial last block that the tree has, of which only the leading tokens are the sequence's.

Where there is no slot for a copy to write into, and no other sequence uses the block, it leaves the tree and is written in place.
"""

from ..events.removal_cause import CAPACITY
from .sequence_state import SequenceState
from .slot_ledger import SlotLedger


def is_tail_its_own(state: SequenceState, ledger: SlotLedger | None = None) -> bool:
    """Whether no other sequence could miss the shared last block if this one took it out of the tree; ``ledger``: once others have
    released pages and left blocks as it says."""
    block = state.blocks[state.num_published]
    num_left = 0 if ledger is None else ledger.num_left.get(int(block.first_page), 0)
    if int(block.num_pins) - num_left > 1 or block.only_child is not None or block.children is not None:
        return False
    rows = state.shared.storage.rows
    for life_cycle in range(state.shared.num_life_cycles):
        page = block.first_page + life_cycle
        # A page without holds, of a snapshot say, goes with the published block.
        num_gone = 1 if state.holds_page(life_cycle, state.num_published) else 0
        if ledger is not None:
            num_gone += ledger.num_released.get(int(page), 0)
        if rows.has_page(page) and int(rows.num_holds(page)) > num_gone:
            return False
    return True


def take_tail_back(state: SequenceState) -> None:
    """The shared last block becomes private again: there is no room for a copy, and the sequence would never go on."""
    forget_copies_of_tail(state)
    withdraw_tail(state)
    # Others have copied it on their streams.
    state.wait_for_block(state.num_published)


def forget_copies_of_tail(state: SequenceState) -> None:
    """Its bytes are going to change. What locks or awaits its pages from now on waits for copies that are being written too."""
    first_page = state.blocks[state.num_published].first_page
    for life_cycle in range(state.shared.num_life_cycles):
        state.shared.storage.copies.forget(first_page + life_cycle)


def withdraw_tail(state: SequenceState) -> None:
    """The last block is the sequence's own; its pages have been awaited since their copies were forgotten."""
    block = state.blocks[state.num_published]
    state.shared.tree.drop_pages(block, CAPACITY, None)
    state.shared.tree.withdraw(block)
    state.tail.is_published = state.tail.copies_on_resume = False
