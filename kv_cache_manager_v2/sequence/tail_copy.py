"""Private copies of shared blocks: the sequence is going to write there, and neither published bytes nor a fork's may change."""

from mypy_extensions import i64

from ..base.ids import GPU_LEVEL
from ..reuse.block import Block
from ..stats.usage_counters import ALLOCATED
from ..storage.page_bytes import copy_page
from .forked_blocks import give_up_block
from .page_users import give_up_page
from .sequence_state import SequenceState


def copy_shared_blocks(state: SequenceState, copies: list[int], priorities: list[int]) -> None:
    """Swap shared blocks of an active sequence for private ones with the same bytes, in stream order.

    If a copy cannot be enqueued, nothing has changed (but for what was evicted to make room) and the device's error is raised.
    A slot has been made free for each life cycle that needs a block. ``priorities``: for each block, one entry per life cycle.
    The shared pages are locked by this sequence and are given up here.
    """
    digest = state.shared.storage.digest.value
    targets = stage_copies(state, copies, priorities)
    try:
        mark = state.shared.order.mark(state.timeline)
    except BaseException:
        free_copies(state, targets)
        state.shared.storage.digest.value = digest
        raise
    go_on_with_copies(state, copies, targets, mark)


def stage_copies(state: SequenceState, copies: list[int], priorities: list[int]) -> list[Block]:
    """The first half: private blocks with the bytes of those, which nobody has yet. The device's error leaves nothing behind."""
    shared = state.shared
    pool = shared.tree.pool
    digest = shared.storage.digest.value
    targets: list[Block] = []
    try:
        for ordinal in copies:
            targets.append(pool.take())
            _copy_pages(state, ordinal, targets[-1], priorities, (len(targets) - 1) * shared.num_life_cycles)
    except BaseException:
        free_copies(state, targets)
        shared.storage.digest.value = digest
        raise
    return targets


def free_copies(state: SequenceState, targets: list[Block]) -> None:
    """They were staged, and nobody goes on with them."""
    while len(targets) > 0:
        _free_copy(state, targets.pop())


def go_on_with_copies(state: SequenceState, copies: list[int], targets: list[Block], mark: i64) -> None:
    """The second half: the sequence has the copies instead of the shared blocks. ``mark``: of its timeline, after the copies.

    What the device refuses here, and the host cannot wait for, leaves it half done.
    """
    state.shared.guard.begin_change()
    position = 0
    for ordinal in copies:
        _go_on_with_copy(state, ordinal, targets[position], mark)
        position += 1
    state.shared.guard.end_change()


def _copy_pages(state: SequenceState, ordinal: i64, target: Block, priorities: list[int], first: i64) -> None:
    storage = state.shared.storage
    source = state.blocks[ordinal]
    life_cycle: i64 = 0
    while life_cycle < state.shared.num_life_cycles:
        if state.holds_page(life_cycle, ordinal):
            pool_group = storage.pool_group_of[life_cycle]
            page = target.first_page + life_cycle
            storage.make_locked_page(page, pool_group, priorities[first + life_cycle], state.timeline)
            copy_page(storage, source.first_page + life_cycle, page, pool_group, state.stream)
        life_cycle += 1


def _go_on_with_copy(state: SequenceState, ordinal: i64, target: Block, mark: i64) -> None:
    storage = state.shared.storage
    life_cycle: i64 = 0
    while life_cycle < state.shared.num_life_cycles:
        if state.holds_page(life_cycle, ordinal):
            state.tables[life_cycle].set(ordinal, int(storage.rows.slot(target.first_page + life_cycle)))
            give_up_page(state, life_cycle, ordinal, mark)
            storage.counters.note_copied(GPU_LEVEL, GPU_LEVEL, storage.pool_group_of[life_cycle], 1)
            if state.counters is not None:
                state.counters.add_blocks(life_cycle, ALLOCATED, 1)
        life_cycle += 1
    give_up_block(state, ordinal)
    state.blocks[ordinal] = target
    if ordinal == state.num_published:
        state.tail_is_shared = False
        state.copies_tail_on_resume = False


def _free_copy(state: SequenceState, target: Block) -> None:
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
            storage.free_unfinished_page(page, storage.pool_group_of[life_cycle], state.timeline, mark)
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
    shared = state.shared
    block = state.blocks[state.num_published]
    forget_copies_of_tail(state)
    withdraw_tail(state)
    life_cycle: i64 = 0
    while life_cycle < shared.num_life_cycles:
        # Others have copied it on their streams.
        if state.holds_page(life_cycle, state.num_published):
            allocator = shared.storage.allocators[shared.storage.pool_group_of[life_cycle]]
            shared.order.wait(state.timeline, allocator.ready[shared.storage.rows.slot(block.first_page + life_cycle)])
        life_cycle += 1


def forget_copies_of_tail(state: SequenceState) -> None:
    """Its bytes are going to change. Whoever locks or awaits its pages from now on waits for copies that are being written too."""
    first_page = state.blocks[state.num_published].first_page
    life_cycle: i64 = 0
    while life_cycle < state.shared.num_life_cycles:
        state.shared.storage.copies.forget(first_page + life_cycle)
        life_cycle += 1


def withdraw_tail(state: SequenceState) -> None:
    """The last block is the sequence's own; its pages have been awaited since their copies were forgotten."""
    state.shared.tree.withdraw(state.blocks[state.num_published])
    state.tail_is_shared = False
    state.copies_tail_on_resume = False
