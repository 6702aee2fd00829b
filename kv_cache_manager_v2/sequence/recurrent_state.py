"""The recurrent state of a sequence: a slot that the engine's kernels read and write in place, step after step.

It has the pages of private blocks that join no path (`SequenceState.state_blocks`): each has one page, that of the recurrent
life cycle. So holds, locks, levels and slots work as for every other page.

    before the first resume    no block
    ACTIVE                     every page held and locked once, on level 0; its slot does not change
    SUSPENDED                  every page held

The first resume takes the slots and fills the live one with zeros: what recurrent layers begin with.
"""

from librt.vecs import vec
from mypy_extensions import i64

from ..base.ids import PRIORITY_DEFAULT
from .sequence_state import NO_TIMELINE, SequenceState


def needs_state_slots(state: SequenceState) -> bool:
    """Whether this resume is the first one, with slots of recurrent state to take."""
    return state.shared.has_state and len(state.state_blocks) == 0


def add_needed_state_slots(state: SequenceState, needed: vec[i64]) -> None:
    """What the first resume has to allocate, added per pool group."""
    shared = state.shared
    if needs_state_slots(state):
        needed[shared.storage.pool_group_of[shared.state_life_cycle]] += shared.num_state_slots


def begin_state(state: SequenceState) -> None:
    """Slots for a sequence that becomes active for the first time, the live one ready for its first step in stream order.

    Room has been made. If the device refuses, the slots are given back and its error is raised.
    """
    shared = state.shared
    storage = shared.storage
    life_cycle = shared.state_life_cycle
    pool_group = storage.pool_group_of[life_cycle]
    digest = storage.digest.value
    try:
        slot: i64 = 0
        while slot < shared.num_state_slots:
            block = shared.tree.pool.take()
            state.state_blocks.append(block)
            storage.make_locked_page(block.first_page + life_cycle, pool_group, PRIORITY_DEFAULT, state.timeline)
            slot += 1
        storage.clear_page(state.state_blocks[0].first_page + life_cycle, pool_group, state.stream)
    except BaseException:
        undo_begin_state(state)
        storage.digest.value = digest
        raise


def undo_begin_state(state: SequenceState) -> None:
    """Give the slots back; work on them may be under way on the sequence's stream."""
    guard = state.shared.guard
    guard.begin_change()
    _free_blocks(state, state.shared.order.mark(state.timeline))
    guard.end_change()


def lock_state(state: SequenceState) -> None:
    """A later resume: the stream waits until the state is there."""
    shared = state.shared
    storage = shared.storage
    for block in state.state_blocks:
        page = block.first_page + shared.state_life_cycle
        storage.lock(page, storage.pool_group_of[shared.state_life_cycle], state.timeline)


def unlock_state(state: SequenceState, mark: i64) -> None:
    """The sequence is suspended; whoever touches the slots next waits for ``mark``."""
    shared = state.shared
    storage = shared.storage
    for block in state.state_blocks:
        page = block.first_page + shared.state_life_cycle
        storage.unlock(page, storage.pool_group_of[shared.state_life_cycle], state.timeline, mark)


def free_state(state: SequenceState, mark: i64) -> None:
    """The sequence is closed. ``mark``: as for `give_up_page`."""
    if len(state.state_blocks) > 0:
        _free_blocks(state, mark)


def _free_blocks(state: SequenceState, mark: i64) -> None:
    shared = state.shared
    storage = shared.storage
    pool_group = storage.pool_group_of[shared.state_life_cycle]
    is_active = state.timeline != NO_TIMELINE
    # The last slot taken is the first on the stack again: a call that is undone takes the same ones the next time.
    while len(state.state_blocks) > 0:
        block = state.state_blocks.pop()
        page = block.first_page + shared.state_life_cycle
        if storage.rows.has_page(page):
            if is_active:
                storage.free_page(page, pool_group, mark)
            else:
                storage.free_unlocked_page(page, pool_group)
        shared.tree.pool.give_back(block)
