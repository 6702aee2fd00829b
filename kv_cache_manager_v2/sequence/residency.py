"""Residency of a sequence's pages: held after the match, locked while active, held again while suspended, gone once closed.

hold_match   a new sequence holds the pages of its matched prefix
try_resume   SUSPENDED -> ACTIVE: lock every page, take scratch slots again, copy a shared last block; False and nothing
             changed otherwise
suspend      ACTIVE -> SUSPENDED: moves nothing, releases scratch slots, cannot fail
close        any -> CLOSED: everything released, the tail of the sequence evict-first
"""

from mypy_extensions import i64

from ..base.ids import GPU_LEVEL
from ..device.stream_order import NO_POINT
from ..reuse.match import Match
from ..reuse.token_packing import TOKEN_BYTES
from ..stats.page_counters import PageCounters
from ..stats.usage_counters import find_page_counters
from ..storage.decision_digest import MATCH
from ..storage.onboarding import OnboardList
from ..storage.refusal import Refusal
from .admission import use_found
from .beams import list_beams
from .block_owners import release_owner
from .block_runs import release_published, hold_pages, list_first_pages, lock_pages
from .disk_arrivals import record_doubtful_pages, settle_before_resume
from .early_copying import offload_published
from .forked_blocks import leave_family
from .page_arrivals import begin_apart, end_apart, lock_each_page, settle_arrivals, take_over_arrivals
from .page_users import release_page
from .recurrent_state import (
    begin_state,
    free_state,
    lock_state,
    put_snapshot_back,
    release_snapshot,
    undo_begin_state,
    unlock_state,
)
from .planned_blocks import PlannedBlock
from .planned_steps import leave_writers, read_planned, take_back
from .published_tail import forget_copies_of_tail, withdraw_tail
from .residency_window import end_required, end_window, has_window
from .resize_plan import ResizePlan, TurnPlan, plan_resume
from .sequence_state import ACTIVE, CLOSED, NO_TIMELINE, SUSPENDED, Arrivals, SequenceState
from .snapshots import leave_last_state
from .staged_copies import copy_shared_blocks
from .twins import end_twins
from .whole_prefix import bring_up


def hold_match(state: SequenceState, match: Match, planned: list[PlannedBlock]) -> None:
    """The empty sequence takes the matched prefix over: committed = history = capacity = matched tokens.

    ``planned``: the last blocks of the match, as far as they are not published yet.
    """
    shared = state.shared
    tokens_per_block = shared.tokens_per_block
    num_tokens = match.num_tokens
    shared.storage.digest.record(MATCH, num_tokens)
    num_published = num_tokens // tokens_per_block - len(planned)
    state.request.attention_tokens = num_tokens
    state.request.planned_tokens = len(planned) * tokens_per_block
    if num_published == 0:
        state.path_end = shared.tree.pin_root(state.request.scope)
    if num_tokens == 0:
        return
    state.blocks = match.blocks
    state.num_blocks = len(match.blocks)
    state.num_published = num_published
    state.tail.is_published = num_tokens % tokens_per_block != 0
    state.tail.copies_on_resume = state.tail.is_published
    state.capacity = num_tokens
    state.history = num_tokens
    state.num_committed = num_tokens
    state.sharing.branch_end = state.num_blocks
    state.recurrent.state_tokens = num_tokens
    tree = shared.tree
    if state.tail.is_published:
        num_tail_bytes = (num_tokens - state.num_published * tokens_per_block) * TOKEN_BYTES
        tail_block = match.blocks[state.num_published]
        tail_block.num_pins += 1
        tail = tree.key_of(tail_block)[:num_tail_bytes]
        state.tail.writer.write(tail)
        if tree.has_digests:
            tree.digests.acquire_again(tail)
    if state.num_published > 0:
        state.path_end = match.blocks[state.num_published - 1]
        state.path_end.num_pins += 1
    for life_cycle in range(shared.num_life_cycles):
        state.window_begins[life_cycle] = shared.windows.compute_begin(life_cycle, num_tokens)
        state.tables[life_cycle].resize(state.num_blocks)
    hold_pages(state, list_first_pages(state.blocks, 0, state.num_blocks))
    if len(planned) > 0:
        read_planned(state, planned)
    if state.request.is_admitted:
        use_found(state)
    state.record_next_window_move()


def ask_matched_priorities(state: SequenceState, match: Match) -> dict[int, int]:
    """The user's priorities for the pages that the match will hold, by page; asked before anything changes."""
    shared = state.shared
    priorities: dict[int, int] = {}
    for life_cycle in range(shared.num_life_cycles):
        window_begin = shared.windows.compute_begin(life_cycle, match.num_tokens)
        ordinal: i64
        for ordinal in range(len(match.blocks)):
            if shared.windows.count_new_pages(life_cycle, ordinal, ordinal + 1, window_begin) == 1:
                priorities[int(match.blocks[ordinal].first_page + life_cycle)] = int(state.ask_priority(ordinal, life_cycle))
    return priorities


def try_resume(state: SequenceState, stream: int, waits: bool) -> bool:
    """Resume the sequence and its beams: room for all of them before the first. ``waits``: the stream waits for pages that are on their
    way, and the host for what a disk reads."""
    shared = state.shared
    storage = shared.storage
    states = list_beams(state)
    account = find_page_counters(state.request.counters)
    if not storage.reads.is_idle:
        for one in states:
            settle_before_resume(one, waits, account)
    if _find_overuse(state):
        return False
    wanted = list_pages(states, GPU_LEVEL) if storage.last_level > 0 else None
    plan = plan_resume(states, wanted)
    if plan is None:
        return False
    timeline = shared.order.enter(stream)
    try:
        if wanted is not None and wanted.needs_work(plan.peak):
            bring_up(state, wanted, plan.peak, waits)
        else:
            shared.traffic.reclaimer.make_room(plan.peak, account)
        shared.guard.begin_change()
        if plan.withdraws_tail:
            forget_copies_of_tail(state)
        _activate_all(plan, stream, waits)
    finally:
        shared.order.leave(timeline)
    if plan.withdraws_tail:
        withdraw_tail(state)
    shared.guard.end_change()
    if state.request.counters is not None:
        state.request.counters.record_resumed()
    return True


def _activate_all(plan: ResizePlan, stream: int, waits: bool) -> None:
    """There is room. The device's error leaves all suspended as they were."""
    turns = plan.turns
    state = turns[0].state
    old_stream = state.stream
    digest_mark = state.shared.storage.digest.mark()
    for turn in turns:
        _lock_all_pages(turn.state, stream, waits)
    try:
        for turn in turns:
            _take_own_slots(turn, plan.priorities, waits, find_page_counters(state.request.counters))
    except AssertionError:
        raise
    except BaseException:
        # The last one first: the next call takes the same slots.
        for turn in turns[::-1]:
            undone = turn.state
            if turn.begins_state and len(undone.recurrent.state_blocks) > 0:
                undo_begin_state(undone)
            put_snapshot_back(undone)
            suspend(undone)
            undone.stream = old_stream
        state.shared.storage.digest.roll_back(digest_mark)
        state.shared.guard.end_change()
        raise
    for turn in turns:
        release_snapshot(turn.state)
        if turn.state is not state:
            take_over_arrivals(state, turn.state)


def _lock_all_pages(state: SequenceState, stream: int, waits: bool) -> None:
    """Everything that it holds is on level 0."""
    state.timeline = state.shared.order.enter(stream)
    state.stream = stream
    state.status = ACTIVE
    first_pages = list_first_pages(state.blocks, 0, state.num_blocks)
    for life_cycle in range(state.shared.num_life_cycles):
        if waits and state.scratch.num_blocks == 0:
            lock_pages(state, first_pages, life_cycle)
        else:
            lock_each_page(state, life_cycle, waits)
    lock_state(state, waits)


def _take_own_slots(turn: TurnPlan, priorities: list[int], waits: bool, account: PageCounters | None) -> None:
    """Those that an active sequence is going to write: scratch slots, recurrent state, its own copy of the shared last block; on its
    stream, or apart where they are on their way."""
    state = turn.state
    own = None if waits else begin_apart(state, turn.needed)
    try:
        if state.scratch.num_blocks > 0:
            state.scratch.take(state.timeline)
        if turn.begins_state:
            begin_state(state, account)
        if len(turn.copies) > 0:
            copy_shared_blocks(state, turn.copies, priorities, account)
    finally:
        if own is not None:
            end_apart(state, own)
    if not waits and not state.shared.storage.reads.is_idle:
        record_doubtful_pages(state)


def list_pages(states: list[SequenceState], level: i64) -> OnboardList:
    """Where the pages are that a sequence and its beams need: on that level, or below it."""
    storage = states[0].shared.storage
    if storage.closed.has_disks:
        storage.closed.look()
    wanted = OnboardList(storage, level)
    # Beams have most of their pages in common.
    seen: set[int] | None = set() if len(states) > 1 else None
    for state in states:
        _add_pages(state, wanted, seen)
    return wanted


def _add_pages(state: SequenceState, wanted: OnboardList, seen: set[int] | None) -> None:
    """``seen``: those that are listed already."""
    for life_cycle in range(state.shared.num_life_cycles):
        for ordinal in range(state.num_blocks):
            if state.holds_page(life_cycle, ordinal):
                _add_page(state, wanted, state.blocks[ordinal].first_page + life_cycle, life_cycle, seen)
    blocks = state.recurrent.state_blocks if state.recurrent.matched_snapshot is None else [state.recurrent.matched_snapshot]
    for block in blocks:
        life_cycle = state.shared.state_life_cycle
        _add_page(state, wanted, block.first_page + life_cycle, life_cycle, seen)


def _add_page(state: SequenceState, wanted: OnboardList, page: i64, life_cycle: i64, seen: set[int] | None) -> None:
    if seen is not None:
        if int(page) in seen:
            return
        seen.add(int(page))
    rows = state.shared.storage.rows
    wanted.add(page, rows.level(page), state.shared.storage.pool_group_of[life_cycle], rows.is_queued(page))


def _find_overuse(state: SequenceState) -> bool:
    """Whether other active sequences lock more of some pool group than `max_util_for_resume` allows, and than the constraints
    demand; notes why."""
    storage = state.shared.storage
    for pool_group in range(storage.num_pool_groups):
        locked = storage.num_locked[pool_group]
        if state.shared.is_overused(pool_group, locked):
            free = storage.allocators[pool_group].num_free
            evictable = storage.queues[pool_group].num_pages + storage.held_queues[pool_group].num_pages
            text = (
                f"level 0, pool group {pool_group}: more slots are locked than max_util_for_resume={state.shared.max_util_for_resume} and "
                f"constraints allow to resume another one; {state.shared.traffic.room_count.describe(pool_group, free, evictable)}. "
                f"Suspend or close sequences first"
            )
            storage.refuse(Refusal(GPU_LEVEL, int(pool_group), 0, int(free), int(evictable), text), locked)
            return True
    return False


def suspend(state: SequenceState) -> None:
    """Unlock every page and release scratch slots; the stream may be destroyed afterwards. Cannot fail."""
    shared = state.shared
    shared.guard.begin_change()
    take_back(state, 0)
    storage = shared.storage
    mark = shared.order.mark(state.timeline)
    end_twins(state, mark)
    if has_window(state):
        end_required(state)
    for life_cycle in range(shared.num_life_cycles):
        pool_group = storage.pool_group_of[life_cycle]
        for ordinal in range(state.num_blocks):
            if state.holds_page(life_cycle, ordinal):
                storage.unlock(state.blocks[ordinal].first_page + life_cycle, pool_group, state.timeline, mark)
        state.tables[life_cycle].clear()
    state.scratch.release_all(mark)
    unlock_state(state, mark)
    shared.order.leave(state.timeline)
    state.timeline = NO_TIMELINE
    state.arrivals = Arrivals()
    state.status = SUSPENDED
    state.next_slow_capacity = 0
    for beam in state.sharing.beams:
        if beam.status == ACTIVE:
            suspend(beam)
    shared.guard.end_change()


def close(state: SequenceState) -> None:
    """Release everything; the caller has published the partial last block if the sequence was still committing.

    what goes, in this order           and why not later
    pages on their way have arrived    nothing may write into a slot that is free
    locks, with a residency window     those behind it have none: then all pages go alike
    places as a reader of blocks       the writer's commit would publish for it
    further beams                      they share blocks with beam 0, which tells of the request last
    twins                              the published pages are what is released
    scratch slots
    the last state, as a snapshot      it is published below the path's end, which is pinned until the end
    copies of what is published        a page is copied while it is held
    state, the matched snapshot
    pages, the last block first        policies hear before whose they were, and that it was one request
    the tail's digests, the family     blocks count no owner any more
    the pin on the path's end          nothing of the sequence is in the tree any more
    the stream                         marks on it were made until now
    """
    shared = state.shared
    shared.guard.begin_change()
    settle_arrivals(state)
    if has_window(state) and state.status == ACTIVE:
        suspend(state)
    leave_writers(state)
    close_beams(state, 1)
    tree = shared.tree
    mark = shared.order.mark(state.timeline) if state.timeline != NO_TIMELINE else NO_POINT
    end_twins(state, mark)
    state.scratch.release_all(mark)
    leave_last_state(state)
    # Not in a change, as Ctrl-C may come while a disk is written, and the rest goes by closing again; a last state is left only once.
    splits = shared.traffic.early_copies is not None and not shared.has_state
    if splits:
        shared.guard.end_change()
    offload_published(state, 0)
    if splits:
        shared.guard.begin_change()
    free_state(state, mark)
    _release_blocks(state, mark)
    if tree.has_digests and state.tail.count > 0:
        tree.digests.release(state.tail.packed())
    leave_family(state)
    state.blocks = []
    state.num_blocks = 0
    for table in state.tables:
        if table.buffer is not None:
            table.clear()
            table.set_buffer(None)
    tree.unpin(state.path_end)
    end_window(state)
    if state.timeline != NO_TIMELINE:
        shared.order.leave(state.timeline)
        state.timeline = NO_TIMELINE
    state.status = CLOSED
    state.sharing.planned = None
    state.next_slow_capacity = 0
    shared.guard.end_change()


def _release_blocks(state: SequenceState, mark: i64) -> None:
    """All blocks and their pages, the last one first; the learned policies are told that these were one request's."""
    shared = state.shared
    if state.request.is_admitted:
        _describe_request(state)
    goes_by_runs = state.timeline != NO_TIMELINE and state.scratch.num_blocks == 0 and not state.tail.is_retired
    first: i64 = 0
    if goes_by_runs:
        first = state.num_published
    for ordinal in range(state.num_blocks - 1, first - 1, -1):
        for life_cycle in range(shared.num_life_cycles):
            if state.has_page(life_cycle, ordinal):
                release_page(state, life_cycle, ordinal, mark)
        if ordinal >= state.num_published:
            release_owner(shared.tree, state.blocks[ordinal])
    if goes_by_runs:
        release_published(state, mark)
    shared.storage.learning.request.end()
    if shared.claims.retention.num_expected > 0:
        shared.claims.retention.end_expected()


def _describe_request(state: SequenceState) -> None:
    """Tell the learned policies whose pages are about to go back."""
    num_blocks = state.num_published
    num_generated_blocks: i64 = 0
    num_generated_tokens: i64 = 0
    # A sequence that was made without a prompt may have got one since.
    if 0 < state.request.prompt_length < state.num_committed:
        tokens_per_block = state.shared.tokens_per_block
        num_generated_tokens = state.num_committed - state.request.prompt_length
        num_generated_blocks = max(num_blocks - (state.request.prompt_length + tokens_per_block - 1) // tokens_per_block, 0)
    facts = state.shared.storage.learning.request
    facts.begin(num_blocks, num_generated_blocks, num_generated_tokens, state.request.continues)
    if state.request.kinds is not None:
        state.request.kinds.describe(facts)


def close_beams(state: SequenceState, width: i64) -> None:
    """Release what beams ``width`` and up have of their own."""
    if len(state.arrivals.points) > 0 and len(state.sharing.beams) + 1 > width:
        settle_arrivals(state)
    while len(state.sharing.beams) + 1 > width:
        close(state.sharing.beams.pop())
        state.shared.num_further_beams -= 1
    state.has_beams = len(state.sharing.beams) > 0


def change_stream(state: SequenceState, stream: int) -> None:
    """The sequence and its beams go on on another stream, which waits for the old one if they are active."""
    order = state.shared.order
    beams = list_beams(state)
    if state.timeline == NO_TIMELINE:
        for beam in beams:
            beam.stream = stream
        return
    mark = order.mark(state.timeline)
    timeline = order.enter(stream)
    state.shared.guard.begin_change()
    order.wait(timeline, mark)
    for beam in beams:
        order.leave(beam.timeline)
        beam.timeline = timeline if beam is state else order.enter(stream)
        beam.stream = stream
    state.shared.guard.end_change()
