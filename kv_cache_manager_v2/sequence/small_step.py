"""Small steps: decode steps that need no plan.

- Steps that only move numbers: no block begins or ends, no window moves past a block. Most steps of a running sequence are such. They
  are tried before anything else, without the call guard: nothing in them calls the user's code, or can fail in the middle, and no thread
  that only looks reads these numbers. A journal's record, where there is one, comes after the change, and takes the guard: threads that
  only look are recorded as well. A resize is one comparison with a bound that is kept (`SequenceState.next_slow_capacity`), beside the
  one for windows.
- The step that begins the next block, where nothing else changes and the slots are free: nearly all of the rest.

False means that nothing has changed, and that the whole call has to look: there is more to do, or something is wrong.
"""

from librt.strings import write_i32_le
from mypy_extensions import i32, i64

from ..base.ids import PRIORITY_DEFAULT
from .sequence_state import ACTIVE, SequenceState


def stays_within_blocks(state: SequenceState, capacity: i64, history: i64) -> bool:
    """Whether a resize of an active sequence would change its two numbers and nothing else."""
    room = state.num_blocks * state.shared.tokens_per_block
    return (
        history < state.next_window_move
        and capacity <= room
        and capacity > room - state.shared.tokens_per_block
        and not state.tail.is_published
        and not state.may_write_forked(history)
        and state.scratch.num_blocks == 0
        and capacity - history < state.shared.windows.least_scratch_step
    )


def is_small_resize(state: SequenceState, capacity: i64, history: i64) -> bool:
    """Whether the resize is valid and changes the two numbers only. Steps of other sequences do not change that."""
    bound = state.next_slow_capacity
    return (
        bound - state.shared.tokens_per_block <= capacity < bound
        and state.history <= history <= capacity
        and history < state.next_window_move
    )


def try_small_resize(state: SequenceState, capacity: i64) -> bool:
    """The history stays."""
    shared = state.shared
    if shared.guard.is_idle and is_small_resize(state, capacity, state.history):
        state.capacity = capacity
        if shared.guard.is_recording:
            with shared.guard as journal:
                journal.grow(state.request.serial, capacity, state.history)
        return True
    return False


def is_small_commit(state: SequenceState) -> bool:
    """Whether there is room for one more token, and the block goes on after it. Steps of other sequences do not change that."""
    num_committed = state.num_committed + 1
    return (
        num_committed <= state.capacity
        and num_committed < state.next_window_move
        and num_committed < (state.num_published + 1) * state.shared.tokens_per_block
        and state.forked_end <= state.num_published
        and state.is_committing
        and (state.next_slow_capacity > 0 or (num_committed <= state.request.written_end and _is_plain(state)))
    )


def _is_plain(state: SequenceState) -> bool:
    """Whether a commit concerns nothing but the sequence's own tokens. A bound on its capacity is kept only where that is so."""
    return state.status == ACTIVE and not state.shared.has_state and len(state.arrivals.points) == 0 and not state.has_beams


def make_small_commit(state: SequenceState, token: i32) -> None:
    """One token id, known to be good."""
    num_committed = state.num_committed + 1
    assert state.tokens is not None, "a small commit after stop_committing()"
    write_i32_le(state.tokens, token)
    state.num_committed = num_committed
    if state.history < num_committed:
        state.history = num_committed


def try_small_commit(state: SequenceState, token: i32) -> bool:
    """One token id, known to be good; the block goes on after it."""
    shared = state.shared
    if shared.guard.is_idle and is_small_commit(state):
        make_small_commit(state, token)
        if shared.guard.is_recording:
            with shared.guard as journal:
                journal.commit_one(state.request.serial, i64(token))
        return True
    return False


def try_next_block(state: SequenceState, capacity: i64, history: i64) -> bool:
    """False, and nothing changed, if it takes more than a block with a page in a free slot for each life cycle."""
    if not _begins_next_block(state, capacity, history):
        return False
    shared = state.shared
    storage = shared.storage
    shared.guard.begin_change()
    state.history = history
    state.capacity = capacity
    ordinal = state.num_blocks
    block = shared.tree.pool.take()
    state.blocks.append(block)
    state.num_blocks = ordinal + 1
    life_cycle: i64 = 0
    for table in state.tables:
        table.resize(ordinal + 1)
        if state.holds_page(life_cycle, ordinal):
            page = block.first_page + life_cycle
            pool_group = storage.pool_group_of[life_cycle]
            table.set(ordinal, storage.make_locked_page(page, pool_group, PRIORITY_DEFAULT, state.timeline))
        life_cycle += 1
    state.record_next_slow_capacity()
    shared.guard.end_change()
    return True


def _begins_next_block(state: SequenceState, capacity: i64, history: i64) -> bool:
    shared = state.shared
    room = state.num_blocks * shared.tokens_per_block
    if (
        capacity <= room
        or capacity > room + shared.tokens_per_block
        or history >= state.next_window_move
        or state.tail.is_published
        or state.forked_end > 0
        or state.request.priority_callback is not None
        or state.recurrent.snapshot_plan is not None
        or shared.windows.has_scratch
        or shared.storage.closed.has_disks
    ):
        return False
    for pool_group in range(shared.storage.num_pool_groups):
        # One page of each life cycle, as if all were in this pool group: more than it takes, and quickly asked.
        if shared.storage.allocators[pool_group].num_free < shared.num_life_cycles:
            return False
    return True
