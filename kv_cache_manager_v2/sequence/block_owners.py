"""Owners of one block: a sequence, and beside it forks, leases, readers of planned blocks, and sequences that keep twins in it."""

from mypy_extensions import i64

from ..reuse.block import Block
from ..reuse.radix_tree import RadixTree


def add_co_owner(block: Block, num_tokens: i64) -> None:
    """One owner more has the private block, which another one has room for ``num_tokens`` in."""
    if block.num_co_owners == 0 or block.num_shared_tokens < num_tokens:
        block.num_shared_tokens = num_tokens
    block.num_co_owners += 1


def release_owner(tree: RadixTree, block: Block) -> None:
    """The block is one owner's no more; its pages have been released. Of a published one an owner has a pin."""
    if block.parent is not None:
        tree.unpin(block)
    elif block.num_co_owners > 0:
        block.num_co_owners -= 1
    else:
        tree.pool.release(block)
