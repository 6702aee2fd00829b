"""Taking all blocks out of the tree again, as if they had never been made: what was restored before the first sequence."""

from ..events.removal_cause import CLEARED
from ..storage.page_rows import LINKS, NO_PAGE, NOT_QUEUED, PLACE, ROW_WORDS
from .block import Block
from .radix_tree import RadixTree


def uproot(tree: RadixTree, blocks: list[Block]) -> None:
    """``blocks``: all that are in the tree, in the order in which they were taken from the pool. No sequence has seen any; slots and places
    in queues are the caller's."""
    storage = tree.storage
    rows = storage.rows
    storage.last_cause = CLEARED
    for block in reversed(blocks):
        for page in range(block.first_page, block.first_page + rows.num_life_cycles):
            if rows.has_page(page):
                if storage.sink is not None:
                    storage.sink.on_page_removed(page, CLEARED)
                rows.words[page * ROW_WORDS + PLACE] = NO_PAGE
                rows.words[page * ROW_WORDS + LINKS] = NOT_QUEUED
        parent = block.parent
        assert parent is not None, "a block was uprooted that is not in the tree"
        tree.detach(block)
        if parent.first_page < 0:
            tree.prune(parent)
    assert len(tree.scopes()) == 0, "blocks are left in the tree after all were uprooted"
