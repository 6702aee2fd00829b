"""The step of a running sequence that begins its next block, where nothing else changes and the slots are free.

It does what `resize` would, without a plan: of the steps that are not small these are nearly all.
"""

from mypy_extensions import i64

from ..base.ids import PRIORITY_DEFAULT
from .sequence_state import SequenceState


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
    shared.guard.end_change()
    return True


def _begins_next_block(state: SequenceState, capacity: i64, history: i64) -> bool:
    shared = state.shared
    room = state.num_blocks * shared.tokens_per_block
    if (
        capacity <= room
        or capacity > room + shared.tokens_per_block
        or history >= state.next_window_move
        or state.tail_is_shared
        or state.forked_end > 0
        or state.priority_callback is not None
        or state.snapshot_plan is not None
        or shared.scratch_is_configured
        or shared.storage.closed.has_disks
    ):
        return False
    pool_group: i64 = 0
    while pool_group < shared.storage.num_pool_groups:
        if shared.storage.allocators[pool_group].num_free < shared.num_life_cycles:
            return False
        pool_group += 1
    return True
