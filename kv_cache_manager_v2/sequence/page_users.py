"""Pages of a sequence that it needs no more, one or those of its last blocks: the steps that resize, commit and residency share."""

from mypy_extensions import i64

from .block_owners import release_owner
from .forked_blocks import cut_forked
from .sequence_state import NO_TIMELINE, SequenceState
from .twins import end_twin


def release_page(state: SequenceState, life_cycle: i64, ordinal: i64, mark: i64) -> None:
    """A page that the sequence holds is needed no more: back to the tree if it is published, gone otherwise.

    ``mark`` is a fresh mark of an active sequence's timeline; without meaning for a suspended one, whose pages carry their
    points already.
    """
    storage = state.shared.storage
    if state.sharing.twins is not None:
        end_twin(state, life_cycle, ordinal, mark)
    page = state.blocks[ordinal].first_page + life_cycle
    pool_group = storage.pool_group_of[life_cycle]
    is_active = state.timeline != NO_TIMELINE
    if state.is_published(ordinal):
        if is_active:
            storage.unlock_and_release(page, pool_group, state.timeline, mark)
        else:
            storage.release(page, pool_group)
    elif is_active and ordinal >= state.forked_end and not state.tail.is_retired:
        storage.free_page(page, pool_group, mark)
    else:
        if is_active:
            storage.unlock(page, pool_group, state.timeline, mark)
        storage.drop_hold(page, pool_group)


def cut_blocks(state: SequenceState, num_blocks: i64, mark: i64) -> None:
    """Release the blocks from ``num_blocks`` on, which hold no committed token of ours, the last one first."""
    if num_blocks >= state.num_blocks:
        return
    for ordinal in range(state.num_blocks - 1, num_blocks - 1, -1):
        for life_cycle in range(state.shared.num_life_cycles):
            if state.holds_page(life_cycle, ordinal):
                release_page(state, life_cycle, ordinal, mark)
        release_owner(state.shared.tree, state.blocks[ordinal])
        state.blocks.pop()
    for table in state.tables:
        table.resize(num_blocks)
    state.num_blocks = num_blocks
    cut_forked(state, num_blocks)
    if state.num_published >= num_blocks:
        state.tail.is_published = False
