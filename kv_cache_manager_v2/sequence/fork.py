"""`fork`: a second sequence that is what the first one is. All blocks are shared (`forked_blocks`), recurrent state is copied.

Nothing can fail but the copy of the state; that comes first, and is undone if the device refuses.
"""

from librt.vecs import vec
from mypy_extensions import i64

from ..base.ids import GPU_LEVEL, PRIORITY_DEFAULT
from ..stats.page_counters import PageCounters
from ..stats.usage_counters import find_page_counters
from ..storage.page_bytes import copy_page
from .forked_blocks import add_owner
from .recurrent_state import share_snapshot, undo_begin_state
from .sequence_state import ACTIVE, NO_TIMELINE, SequenceState
from .twins import share_twins


def has_room_to_fork(state: SequenceState, num_forks: i64) -> bool:
    """Whether there are slots for so many copies of the recurrent state; if not, the storage knows why."""
    shared = state.shared
    storage = shared.storage
    if len(state.recurrent.state_blocks) == 0:
        return True
    digest_mark = storage.digest.mark()
    if not shared.traffic.room_count.find_refusal(_count_needed(state, num_forks)):
        return True
    # The call is going to raise, so no journal has it.
    storage.digest.roll_back(digest_mark)
    return False


def _count_needed(state: SequenceState, num_forks: i64) -> vec[i64]:
    shared = state.shared
    needed = vec[i64]([0] * shared.storage.num_pool_groups)
    needed[shared.storage.pool_group_of[shared.state_life_cycle]] = num_forks * len(state.recurrent.state_blocks)
    return needed


def try_fork(state: SequenceState, child: SequenceState) -> bool:
    """False, and nothing has changed, if there is no slot for a copy of the recurrent state.

    ``child`` is a new sequence of the same scope and stream. The caller has validated, and waited for a state that is on its way.
    """
    shared = state.shared
    if not has_room_to_fork(state, 1):
        return False
    has_state = len(state.recurrent.state_blocks) > 0
    account = find_page_counters(state.request.counters)
    if has_state:
        shared.traffic.reclaimer.make_room(_count_needed(state, 1), account)
    if state.timeline != NO_TIMELINE:
        child.timeline = shared.order.enter(state.stream)
    if has_state:
        _copy_state(state, child, account)
    with shared.storage.changes:
        share_blocks(state, child)
    return True


def _copy_state(state: SequenceState, child: SequenceState, account: PageCounters | None) -> None:
    """The child's own slots with the same bytes, in stream order."""
    shared = state.shared
    storage = shared.storage
    life_cycle = shared.state_life_cycle
    pool_group = storage.pool_group_of[life_cycle]
    digest_mark = storage.digest.mark()
    try:
        for source in state.recurrent.state_blocks:
            block = shared.tree.pool.take()
            child.recurrent.state_blocks.append(block)
            page = block.first_page + life_cycle
            storage.make_locked_page(page, pool_group, PRIORITY_DEFAULT, child.timeline)
            copy_page(storage, source.first_page + life_cycle, page, pool_group, state.stream)
    except BaseException:
        undo_begin_state(child)
        shared.order.leave(child.timeline)
        child.timeline = NO_TIMELINE
        storage.digest.roll_back(digest_mark)
        raise
    storage.counters.record_copied(GPU_LEVEL, GPU_LEVEL, pool_group, len(state.recurrent.state_blocks), account)


def share_blocks(state: SequenceState, child: SequenceState) -> None:
    """``child`` becomes what ``state`` is; neither has scratch blocks that it needs."""
    shared = state.shared
    tree = shared.tree
    child.capacity = state.capacity
    child.history = state.history
    child.num_committed = state.num_committed
    child.request.written_end = state.request.written_end
    child.num_blocks = state.num_blocks
    child.num_published = state.num_published
    child.tail.is_published = state.tail.is_published
    child.tail.copies_on_resume = state.tail.copies_on_resume
    if not state.is_committing:
        child.tokens = None
    child.tail.is_retired = state.tail.is_retired
    child.tail.publishes_at_close = state.tail.publishes_at_close
    child.blocks = state.blocks[:]
    child.path_end = state.path_end
    child.path_end.num_pins += 1
    tail = state.tail.packed()
    child.tail.writer.write(tail)
    if tree.has_digests and len(tail) > 0:
        tree.digests.acquire_again(tail)
    child.window_begins = state.window_begins[:]
    child.next_window_move = state.next_window_move
    child.scratch.is_enabled = state.scratch.is_enabled
    child.scratch.is_new = state.scratch.is_new
    if state.request.counters is not None:
        child.request.counters = state.request.counters.make_fork()
    child.arrivals.points = state.arrivals.points[:]
    child.arrivals.awaits_reads = state.arrivals.awaits_reads
    child.sharing.branch_end = state.sharing.branch_end
    child.status = state.status
    share_snapshot(state, child)
    for ordinal in range(state.num_published, state.num_blocks):
        add_owner(state, state.blocks[ordinal], ordinal)
    _join_family(state, child)
    share_twins(state, child)
    for life_cycle in range(shared.num_life_cycles):
        _share_pages(state, child, life_cycle)


def _join_family(state: SequenceState, child: SequenceState) -> None:
    family = state.sharing.forks
    if family is None:
        family = {state: None}
        state.sharing.forks = family
    family[child] = None
    child.sharing.forks = family
    if state.num_blocks > state.num_published:
        state.forked_end = state.num_blocks
        state.next_slow_capacity = 0
        child.forked_end = state.num_blocks


def _share_pages(state: SequenceState, child: SequenceState, life_cycle: i64) -> None:
    storage = state.shared.storage
    pool_group = storage.pool_group_of[life_cycle]
    table = child.tables[life_cycle]
    table.resize(state.num_blocks)
    is_active = state.status == ACTIVE
    for ordinal in range(state.num_blocks):
        if state.holds_page(life_cycle, ordinal):
            page = state.page_of(life_cycle, ordinal)
            if is_active:
                table.set(ordinal, int(storage.share_locked_page(page)))
            else:
                storage.hold(page, pool_group)
