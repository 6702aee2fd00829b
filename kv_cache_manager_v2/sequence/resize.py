"""`resize`: reserve pages for a step and move the windows, in one go, all or nothing, for a sequence or all beams of one.

Plan first (`resize_plan`): which blocks join, which pages each life cycle needs and releases, whether the slots are to be had. Then
ask the user's callback, and evict: a device that refuses can still be reported, since nothing else has changed, but that what the match
has found counts as used. Then apply, in the order that keeps the number of slots in use smallest: release; make the room that is still
missing, which cannot fail, as what the device refuses to move is dropped; take. A sequence is a list of one;
beams have their turns in order.
"""

from mypy_extensions import i64

from ..base.ids import BAD_PAGE_INDEX, PRIORITY_DEFAULT
from ..events.removal_cause import CAPACITY
from ..stats.page_counters import PageCounters
from ..stats.usage_counters import find_page_counters
from .admission import admit, use_found
from .beams import list_beams
from .block_runs import list_first_pages, make_pages
from .forked_blocks import NO_ORDINALS, settle_forked
from .page_users import cut_blocks, release_page
from .planned_rules import find_taken_back
from .planned_steps import take_back
from .published_tail import take_tail_back
from .residency_window import end_required, has_window, lock_again
from .resize_plan import ResizePlan, TurnPlan, ask_priorities, plan_resize, subtract_slots
from .sequence_state import SequenceState
from .small_step import stays_within_blocks, try_next_block
from .staged_copies import StagedCopies
from .usage_recorder import record_growth
from .window_move import move_windows


def try_resize(state: SequenceState, capacity: i64, history: i64) -> bool:
    """False, and nothing changed, if there is no room. The sequence is active; ``history <= capacity``."""
    if not has_window(state):
        return _resize(state, capacity, history)
    required = end_required(state)
    if _resize(state, capacity, history):
        return True
    lock_again(state, required)
    return False


def _resize(state: SequenceState, capacity: i64, history: i64) -> bool:
    old_num_blocks = state.num_blocks
    is_simple = state.request.is_admitted and not state.has_beams
    if is_simple and stays_within_blocks(state, capacity, history):
        _set_numbers(state, capacity, history)
        state.record_next_slow_capacity()
    elif not (is_simple and try_next_block(state, capacity, history)) and not _resize_blocks(state, capacity, history):
        return False
    if not state.request.is_admitted:
        admit(state)
    if state.request.counters is not None:
        record_growth(state, state.request.counters, old_num_blocks)
    return True


def _set_numbers(state: SequenceState, capacity: i64, history: i64) -> None:
    if state.recurrent.snapshot_plan is not None:
        state.recurrent.snapshot_plan.record_room(state.num_committed, state.capacity, capacity, history)
    state.capacity = capacity
    state.history = history


def _resize_blocks(state: SequenceState, capacity: i64, history: i64) -> bool:
    plan = plan_resize(list_beams(state), capacity, history)
    if plan is None:
        return False
    ask_priorities(plan)
    if not state.request.is_admitted:
        use_found(state)
    _apply(plan)
    return True


# -- before anything changes ----------------------------------------------------------------------------------------------


def _evict(plan: ResizePlan, account: PageCounters | None) -> None:
    """Before the first change, free as many slots as the plan's peak, as far as pages can be moved: the device may refuse that.

    The plan's peak counts slots that the call itself is going to release as if they were free by then. `make_room_or_drop` frees those
    of them that are only droppable after the release, if need be without the device.
    """
    shared = plan.turns[0].state.shared
    for pool_group in range(shared.storage.num_pool_groups):
        if plan.peak[pool_group] > shared.storage.allocators[pool_group].num_free:
            shared.traffic.reclaimer.free_slots(0, pool_group, plan.peak[pool_group], CAPACITY, account)


def _copy_first(plan: ResizePlan, account: PageCounters | None) -> StagedCopies:
    """Copy the shared blocks of all turns. The device's own error if it refuses; nothing has changed then but what was evicted."""
    first = plan.turns[0]
    staged = StagedCopies(first.state.shared, account)
    # The first turn last, so that its slots are the same as without the other beams.
    for turn in plan.turns[1:]:
        staged.add(turn.state, turn.copies, NO_ORDINALS)
    staged.add(first.state, first.copies, plan.priorities)
    staged.finish()
    return staged


# -- the change -----------------------------------------------------------------------------------------------------------


def _apply(plan: ResizePlan) -> None:
    """Carry the plan out. Where the device refuses a copy before the first change, its error is raised, and nothing but what was evicted
    has changed."""
    first = plan.turns[0].state
    shared = first.shared
    account = find_page_counters(first.request.counters)
    _evict(plan, account)
    staged: StagedCopies | None = None
    if len(plan.turns) > 1 or len(plan.turns[0].copies) > 0:
        staged = _copy_first(plan, account)
    shared.guard.begin_change()
    if first.sharing.planned is not None:
        take_back(first, find_taken_back(first, plan.capacity, plan.history))
    if plan.withdraws_tail:
        take_tail_back(first)
    priorities = plan.priorities
    for turn in plan.turns:
        if staged is not None:
            staged.settle(turn.state)
        _apply_turn(plan, turn, priorities, account)
        priorities = NO_ORDINALS
    shared.guard.end_change()


def _apply_turn(plan: ResizePlan, turn: TurnPlan, priorities: list[int], account: PageCounters | None) -> None:
    state = turn.state
    _release(state, plan)
    _set_numbers(state, plan.capacity, plan.history)
    needed = turn.needed if len(turn.copies) == 0 else subtract_slots(turn.needed, turn.copied)
    state.shared.traffic.reclaimer.make_room_or_drop(needed, account)
    if turn.first_written < state.forked_end and state.sharing.planned is None:
        settle_forked(state, turn.first_written)
    _add_blocks(state, plan.num_blocks, priorities, len(turn.copies))
    if state.scratch.num_blocks > 0:
        state.scratch.take(state.timeline)
    state.record_next_slow_capacity()


def _release(state: SequenceState, plan: ResizePlan) -> None:
    """Release what the coming step does not need: blocks behind the end, out-of-window pages, scratch slots, pages of scratch blocks."""
    capacity = plan.capacity
    history = plan.history
    num_blocks = plan.num_blocks
    moves_scratch = state.scratch.is_enabled and capacity != state.capacity
    if num_blocks >= state.num_blocks and history < state.next_window_move and not moves_scratch:
        return
    mark = state.shared.order.mark(state.timeline)
    cut_blocks(state, num_blocks, mark)
    # The coming range takes its slots over from the old one: the plan has asked for the others only.
    move_windows(state, history, mark, moves_scratch)
    if moves_scratch:
        _move_scratch(state, capacity, history, mark)


def _move_scratch(state: SequenceState, capacity: i64, history: i64, mark: i64) -> None:
    """The old range is stale by now; blocks of the new one release their pages, surplus slots are freed."""
    scratch = state.scratch
    scratch.is_new = False
    for life_cycle in range(state.shared.num_life_cycles):
        begin = scratch.compute_begin(life_cycle, history, capacity)
        end = scratch.compute_end(life_cycle, history, capacity)
        for ordinal in range(begin, min(end, state.num_blocks)):
            if state.holds_page(life_cycle, ordinal):
                release_page(state, life_cycle, ordinal, mark)
                state.tables[life_cycle].set(ordinal, BAD_PAGE_INDEX)
        scratch.release(life_cycle, scratch.count_slots(life_cycle, end - begin), mark)
        scratch.set_range(life_cycle, begin, end)


def _add_blocks(state: SequenceState, num_blocks: i64, priorities: list[int], num_copies: i64) -> None:
    """Private blocks up to ``num_blocks``, with a page for each life cycle that will read them."""
    if num_blocks <= state.num_blocks:
        return
    shared = state.shared
    storage = shared.storage
    pool = shared.tree.pool
    old_num_blocks = state.num_blocks
    if num_blocks - old_num_blocks == 1:
        state.blocks.append(pool.take())
    else:
        pool.take_many(num_blocks - old_num_blocks, state.blocks)
    state.num_blocks = num_blocks
    asked = state.request.priority_callback is not None
    # For the one block that a decode step begins, the lists that a run needs would cost more than they save.
    if not asked and state.scratch.num_blocks == 0 and num_blocks - old_num_blocks > 1 and not has_window(state):
        first_pages = list_first_pages(state.blocks, old_num_blocks, num_blocks)
        for group, table in enumerate(state.tables):
            table.resize(num_blocks)
            make_pages(state, first_pages, old_num_blocks, group)
        return
    for life_cycle in range(shared.num_life_cycles):
        pool_group = storage.pool_group_of[life_cycle]
        table = state.tables[life_cycle]
        table.resize(num_blocks)
        for ordinal in range(old_num_blocks, num_blocks):
            if state.holds_page(life_cycle, ordinal):
                priority: i64 = PRIORITY_DEFAULT
                if asked:
                    priority = priorities[(ordinal - old_num_blocks + num_copies) * shared.num_life_cycles + life_cycle]
                page = state.blocks[ordinal].first_page + life_cycle
                table.set(ordinal, storage.make_locked_page(page, pool_group, priority, state.timeline))
            elif state.keeps_page(life_cycle, ordinal):
                page = state.blocks[ordinal].first_page + life_cycle
                storage.make_locked_page(page, pool_group, PRIORITY_DEFAULT, state.timeline)
                storage.unlock(page, pool_group, state.timeline, shared.order.mark(state.timeline))
