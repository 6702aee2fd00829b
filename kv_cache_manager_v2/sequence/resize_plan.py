"""What a resize takes and gives back: slots per pool group, counted before anything changes.

A step is the capacity and the history that it asks for. A block holds a page of a life cycle after it if the next token reads the
block (a sink, or from the window's beginning on) and it is not among the step's scratch blocks.
"""

from librt.vecs import vec
from mypy_extensions import i64

from .page_users import count_given_back
from .sequence_state import SequenceState


def plan_resize(
    state: SequenceState, capacity: i64, history: i64, copies: list[int], needed: vec[i64], given_back: vec[i64]
) -> None:
    """Add, per pool group, the slots that the resize takes and gives back."""
    shared = state.shared
    num_blocks = (capacity + shared.tokens_per_block - 1) // shared.tokens_per_block
    moves_scratch = state.scratch.is_enabled and capacity != state.capacity
    life_cycle: i64 = 0
    while life_cycle < shared.num_life_cycles:
        pool_group = shared.storage.pool_group_of[life_cycle]
        begin = state.window_begins[life_cycle]
        new_begin = shared.compute_window_begin(life_cycle, history)
        needed[pool_group] += count_new_pages(state, life_cycle, state.num_blocks, num_blocks, new_begin)
        if moves_scratch:
            _plan_scratch(state, life_cycle, capacity, history, needed, given_back)
        needed[pool_group] += _count_copies(state, life_cycle, copies, capacity, history)
        # Below, what remains of the present blocks; a window may have moved past their end.
        kept = state.num_blocks if state.num_blocks < num_blocks else num_blocks
        if new_begin > begin:
            end = new_begin if new_begin < kept else kept
            given_back[pool_group] += count_given_back(state, life_cycle, begin, end)
        given_back[pool_group] += count_given_back(state, life_cycle, kept, state.num_blocks)
        life_cycle += 1


def _plan_scratch(
    state: SequenceState, life_cycle: i64, capacity: i64, history: i64, needed: vec[i64], given_back: vec[i64]
) -> None:
    """What the next step's scratch range changes: slots taken and given back, and pages that its blocks do without."""
    scratch = state.scratch
    pool_group = state.shared.storage.pool_group_of[life_cycle]
    begin = scratch.compute_begin(life_cycle, history, capacity)
    end = scratch.compute_end(life_cycle, history, capacity)
    num_slots: i64 = len(scratch.slots[life_cycle])
    wanted = scratch.count_slots(life_cycle, end - begin)
    if wanted > num_slots:
        needed[pool_group] += wanted - num_slots
    else:
        given_back[pool_group] += num_slots - wanted
    # All of the range is at or after the new window's beginning, so count_new_pages counted its new blocks.
    first_new = begin if begin > state.num_blocks else state.num_blocks
    if end > first_new:
        needed[pool_group] -= end - first_new
    given_back[pool_group] += count_given_back(state, life_cycle, begin, end if end < state.num_blocks else state.num_blocks)


def count_new_pages(state: SequenceState, life_cycle: i64, begin: i64, end: i64, window_begin: i64) -> i64:
    """How many blocks of ``[begin, end)`` get a page, once the window begins at ``window_begin``."""
    num_sinks = state.shared.num_sink_blocks[life_cycle]
    if end <= begin:
        return 0
    num_sinks_among = (num_sinks if num_sinks < end else end) - begin
    first = window_begin if window_begin > begin else begin
    count: i64 = 0
    if end > first:
        count = end - first
    return count + num_sinks_among if num_sinks_among > 0 else count


def _count_copies(state: SequenceState, life_cycle: i64, copies: list[int], capacity: i64, history: i64) -> i64:
    """Pages that copies of shared blocks need, where the window and the scratch range of the coming step are in force."""
    count: i64 = 0
    for ordinal in copies:
        if will_hold_page(state, life_cycle, ordinal, capacity, history):
            count += 1
    return count


def will_hold_page(state: SequenceState, life_cycle: i64, ordinal: i64, capacity: i64, history: i64) -> bool:
    """Whether that block has a page of the life cycle after the step."""
    window_begin = state.shared.compute_window_begin(life_cycle, history)
    if count_new_pages(state, life_cycle, ordinal, ordinal + 1, window_begin) == 0:
        return False
    scratch = state.scratch
    if not scratch.is_enabled or capacity == state.capacity or ordinal < scratch.compute_begin(life_cycle, history, capacity):
        return True
    return ordinal >= scratch.compute_end(life_cycle, history, capacity)


def leave_out_copies(state: SequenceState, copies: list[int], capacity: i64, history: i64, needed: vec[i64]) -> None:
    """Take the slots of copies, which `plan_resize` has counted, out of ``needed`` again: they are made already, or not at all."""
    life_cycle: i64 = 0
    while life_cycle < state.shared.num_life_cycles:
        pool_group = state.shared.storage.pool_group_of[life_cycle]
        needed[pool_group] -= _count_copies(state, life_cycle, copies, capacity, history)
        life_cycle += 1


def add_held_copies(state: SequenceState, copies: list[int], needed: vec[i64]) -> None:
    """Add, per pool group, the slots that copies of blocks as they are now take."""
    life_cycle: i64 = 0
    while life_cycle < state.shared.num_life_cycles:
        for ordinal in copies:
            if state.holds_page(life_cycle, ordinal):
                needed[state.shared.storage.pool_group_of[life_cycle]] += 1
        life_cycle += 1
