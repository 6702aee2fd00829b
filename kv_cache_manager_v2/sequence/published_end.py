"""Where the published text of a sequence ends in the tree, once it has stopped committing."""

from ..reuse.block import Block
from .sequence_state import SequenceState


def list_published_blocks(state: SequenceState) -> list[Block]:
    """The path, and the partial block with the rest of the committed tokens if there is one of just those."""
    blocks = state.blocks[: state.num_published]
    if state.tail.count > 0:
        last = state.shared.tree.find_child(state.path_end, state.tail.packed())
        if last is not None:
            blocks.append(last)
    return blocks
