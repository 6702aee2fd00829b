"""Matches that go on in planned blocks: behind the blocks of the tree, a prompt may find blocks that are promised and not computed yet.

They serve whole only, and where their pages exist. All that a prefix needs of the tree it needs here too: pages of every block for layers
without a window, and of a window's blocks for layers with one, be they published or planned.
"""

from typing import final

from mypy_extensions import i64, mypyc_attr

from ..reuse.block import Block
from .planned_blocks import PlannedBlock
from .shared_state import SharedState


@final
@mypyc_attr(native_class=True)
class PlannedMatch:
    """``blocks``: of the tree, and behind them those of ``planned``. All are whole; nothing is held."""

    __slots__ = ("blocks", "planned")

    blocks: list[Block]
    planned: list[PlannedBlock]

    def __init__(self) -> None:
        self.blocks = []
        self.planned = []

    def cut(self, num_blocks: i64) -> None:
        """Keep the first so many blocks."""
        num_published: i64 = len(self.blocks) - len(self.planned)
        del self.blocks[int(num_blocks) :]
        left = num_blocks - num_published
        del self.planned[int(left if left > 0 else 0) :]


def find_path(shared: SharedState, root: Block, packed: bytes) -> PlannedMatch:
    """The whole blocks of the packed tokens, published or planned, that have the pages of all layers without a window."""
    found = PlannedMatch()
    tree = shared.tree
    matcher = shared.matcher
    node: Block | None = root
    above: PlannedBlock | None = None
    position: i64 = 0
    while position + tree.block_bytes <= len(packed):
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
        found.blocks.append(block)
        if child is None and planned is not None:
            found.planned.append(planned)
        node = child
        above = planned
        position += tree.block_bytes
    if not shared.storage.reads.is_idle:
        found.cut(shared.count_whole_blocks(found.blocks))
    return found
