"""Single pages of a sequence, held and released: the steps that resize, commit and residency share."""

from mypy_extensions import i64

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
