"""A private copy of a last block that is shared: the sequence is going to write there, and published bytes never change."""

from mypy_extensions import i64

from ..base.ids import GPU_LEVEL
from ..reuse.block import Block
from .sequence_state import SequenceState


def copy_shared_tail(state: SequenceState, priorities: list[int]) -> None:
    """Swap the shared last block of an active sequence for a private one with the same bytes, in stream order.

    If a copy cannot be enqueued, nothing has changed (but for what was evicted to make room) and the device's error is raised.
    A slot has been made free for each life cycle that needs the block. ``priorities`` begins with one entry per life cycle.
    The shared pages are locked by this sequence and are given up here.
    """
    shared = state.shared
    storage = shared.storage
    ordinal = state.num_published
    source = state.blocks[ordinal]
    target = shared.tree.pool.take()
    digest = storage.digest.value
    try:
        life_cycle: i64 = 0
        while life_cycle < shared.num_life_cycles:
            if state.holds_page(life_cycle, ordinal):
                pool_group = storage.pool_group_of[life_cycle]
                page = target.first_page + life_cycle
                storage.make_locked_page(page, pool_group, priorities[life_cycle], state.timeline)
                storage.copy_page(source.first_page + life_cycle, page, pool_group, state.stream)
            life_cycle += 1
        mark = shared.order.mark(state.timeline)
    except BaseException:
        _free_copies(state, target)
        storage.digest.value = digest
        raise
    life_cycle = 0
    while life_cycle < shared.num_life_cycles:
        if state.holds_page(life_cycle, ordinal):
            page = source.first_page + life_cycle
            state.tables[life_cycle].set(ordinal, int(storage.rows.slot(target.first_page + life_cycle)))
            pool_group = storage.pool_group_of[life_cycle]
            storage.unlock(page, pool_group, state.timeline, mark)
            storage.release(page, pool_group)
            storage.counters.note_copied(GPU_LEVEL, GPU_LEVEL, pool_group, 1)
        life_cycle += 1
    state.blocks[ordinal] = target
    state.tail_is_shared = False
    state.copies_tail_on_resume = False
    shared.tree.unpin(source)


def _free_copies(state: SequenceState, target: Block) -> None:
    """Some copies may be under way: their slots may be touched again when this stream is done with them."""
    storage = state.shared.storage
    guard = state.shared.guard
    guard.begin_change()
    mark = state.shared.order.mark(state.timeline)
    # The last slot taken is the first on the stack again: the next call takes the same ones.
    life_cycle = state.shared.num_life_cycles - 1
    while life_cycle >= 0:
        page = target.first_page + life_cycle
        if storage.rows.has_page(page):
            storage.free_page(page, storage.pool_group_of[life_cycle], mark)
        life_cycle -= 1
    state.shared.tree.pool.give_back(target)
    guard.end_change()


def can_take_tail_back(state: SequenceState) -> bool:
    """Whether nobody else could miss the shared last block if this sequence took it out of the tree."""
    block = state.blocks[state.num_published]
    if block.num_pins > 1 or block.only_child is not None or block.children is not None:
        return False
    rows = state.shared.storage.rows
    life_cycle: i64 = 0
    while life_cycle < state.shared.num_life_cycles:
        page = block.first_page + life_cycle
        if rows.has_page(page) and (not state.holds_page(life_cycle, state.num_published) or rows.num_holds(page) > 1):
            return False
        life_cycle += 1
    return True


def take_tail_back(state: SequenceState) -> None:
    """The shared last block becomes private again: there is no room for a copy, and the sequence would never go on."""
    state.shared.tree.withdraw(state.blocks[state.num_published])
    state.tail_is_shared = False
    state.copies_tail_on_resume = False
