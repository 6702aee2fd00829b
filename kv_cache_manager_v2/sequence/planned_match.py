"""Matches that go on in planned blocks: behind the blocks of the tree, a prompt may find blocks that are promised and not computed yet.

They serve whole only, and where their pages exist. All that a prefix needs of the tree it needs here too: pages of every block for layers
without a window, and of a window's blocks for layers with one, be they published or planned.
"""

from mypy_extensions import i64

from ..reuse.block import Block
from .planned_blocks import PlannedBlock
from .shared_state import SharedState


def cut_path(blocks: list[Block], planned: list[PlannedBlock], num_blocks: i64) -> None:
    """Keep the first so many blocks."""
    num_published = len(blocks) - len(planned)
    del blocks[int(num_blocks) :]
    del planned[max(int(num_blocks) - num_published, 0) :]


def find_path(shared: SharedState, root: Block, packed: bytes) -> tuple[list[Block], list[PlannedBlock]]:
    """The whole blocks of the packed tokens, of the tree and behind them planned ones, that have the pages of all layers without a window;
    and which of them are planned. Nothing is held."""
    blocks: list[Block] = []
    planned_ones: list[PlannedBlock] = []
    tree = shared.tree
    matcher = shared.matcher
    node: Block | None = root
    above: PlannedBlock | None = None
    for position in range(0, len(packed) - tree.block_bytes + 1, tree.block_bytes):
        key = packed[position : position + tree.block_bytes]
        child = None if node is None else tree.find_child(node, key)
        planned = shared.claims.planned.find(node, above, key)
        if child is not None:
            block = child
        elif planned is not None:
            block = planned.block
        else:
            break
        if not matcher.has_unbounded_pages(block):
            break
        blocks.append(block)
        if child is None and planned is not None:
            planned_ones.append(planned)
        node = child
        above = planned
    if not shared.storage.reads.is_idle:
        cut_path(blocks, planned_ones, shared.count_whole_blocks(blocks))
    return blocks, planned_ones
