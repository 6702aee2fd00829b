"""Which published pages of a sequence are offloaded early, and when: at the commit that publishes them, and at its end; to a durable level
several at once."""

from librt.vecs import append, vec
from mypy_extensions import i64

from .sequence_state import SequenceState


def offload_published(state: SequenceState, first_block: i64) -> None:
    """The pages of its published blocks from ``first_block`` on, its last partial block and the snapshot there included."""
    shared = state.shared
    early = shared.early_copies
    if early is None:
        return
    pages = vec[i64]()
    end = state.num_published + 1 if state.tail_is_shared else state.num_published
    for ordinal in range(first_block, end):
        first_page = state.blocks[ordinal].first_page
        for life_cycle in range(shared.num_life_cycles):
            pages = append(pages, first_page + life_cycle)
    if shared.has_state and state.tail.count > 0 and not state.tail_is_shared:
        snapshot = shared.tree.find_child(state.path_end, state.tail.packed())
        if snapshot is not None:
            pages = append(pages, snapshot.first_page + shared.state_life_cycle)
    if len(pages) > 0:
        shared.guard.begin_change()
        if shared.storage.durable is None:
            early.offload_copies(pages)
        else:
            early.put_off(pages)
            early.touch_copies(pages)
        shared.guard.end_change()
