"""The recurrent state of a sequence: a slot that the engine's kernels read and write in place, step after step.

With checkpoints it is a ring of slots: the state at length ``p`` is in the slot ``p % num_state_slots``, so that the last ones
are there to go back to. Without, that is always the same slot.

It has the pages of private blocks that join no path (`Recurrent.state_blocks`): each has one page, that of the recurrent
life cycle. So holds, locks, levels and slots work as for every other page.

    before the first resume    no block
    ACTIVE                     every page held and locked once, on level 0; its slot does not change
    SUSPENDED                  every page held

The first resume takes the slots and fills the live one: with a copy of the snapshot that was matched and is held until then, or
with zeros, what recurrent layers begin with.
"""

from librt.vecs import vec
from mypy_extensions import i64

from ..base.ids import GPU_LEVEL, PRIORITY_DEFAULT, PRIORITY_MIN
from ..reuse.block import Block
from ..reuse.state_match import StateMatch
from ..reuse.token_packing import TOKEN_BYTES
from ..stats.page_counters import PageCounters
from ..storage.page_bytes import clear_page, copy_page
from ..storage.page_queues import put_back
from .admission import note_copied
from .learned_placement import AMID_PATH, END_OF_NEW, PromptLook
from .page_arrivals import lock_page
from .sequence_state import NO_TIMELINE, SequenceState
from .snapshot_plan import SnapshotPlan


def live_block(state: SequenceState, position: i64) -> Block:
    """The block whose page is the state at that length, once the sequence has slots of recurrent state."""
    return state.recurrent.state_blocks[position % state.shared.recurrent.num_state_slots]


def begin_with(state: SequenceState, found: StateMatch, packed: bytes, prompt_length: int, positions: list[int], is_new: bool) -> None:
    """Hold the snapshot that the match has found, and plan the sequence's own: ``positions`` and what the policy says.

    ``packed``: the tokens that were to be matched. ``is_new``: the prompt is one more to learn from, once there is room for it.
    """
    shared = state.shared
    storage = shared.storage
    snapshot = found.snapshot
    if snapshot is not None:
        page = snapshot.first_page + shared.state_life_cycle
        storage.hold(page, storage.pool_group_of[shared.state_life_cycle], state.request.is_admitted)
    state.recurrent.matched_snapshot = snapshot
    state.recurrent.state_tokens = found.state_tokens
    state.request.attention_tokens = found.attention_tokens
    policy = shared.recurrent.snapshot_policy
    num_input_tokens = len(packed) // TOKEN_BYTES
    planned = set(positions)
    learned = shared.recurrent.learned_placement
    chosen: list[int] | None = None
    if learned is not None:
        look = PromptLook(state.request.scope, packed, 0, False, AMID_PATH, END_OF_NEW)
        if is_new:
            look = learned.look(state.request.scope, packed, found.known_blocks, found.extends)
            state.request.to_learn = look
        chosen = learned.list_positions(look, found.state_tokens, found.branch_tokens, policy.at_prompt_end, policy.at_branches)
    if chosen is not None:
        planned.update(chosen)
    else:
        if policy.at_prompt_end:
            planned.add(num_input_tokens)
        if policy.at_branches:
            planned.add(int(found.branch_tokens))
    every = policy.every_num_blocks
    interval = 0 if every is None else every * int(shared.tokens_per_block)
    state.recurrent.snapshot_plan = SnapshotPlan(
        planned, interval, max(num_input_tokens, prompt_length), int(shared.recurrent.num_state_slots) - 1, int(found.match.num_tokens)
    )


def share_snapshot(state: SequenceState, child: SequenceState) -> None:
    """A fork begins with what its parent began with, if it has no state of its own yet, and plans the same snapshots."""
    child.recurrent.state_tokens = state.recurrent.state_tokens
    if state.recurrent.snapshot_plan is not None:
        child.recurrent.snapshot_plan = state.recurrent.snapshot_plan.copy()
    snapshot = state.recurrent.matched_snapshot
    if snapshot is not None:
        shared = state.shared
        shared.storage.hold(snapshot.first_page + shared.state_life_cycle, shared.storage.pool_group_of[shared.state_life_cycle])
        child.recurrent.matched_snapshot = snapshot


def release_snapshot(state: SequenceState) -> None:
    """Its bytes have been copied, in stream order, or they are not needed any more."""
    snapshot = state.recurrent.matched_snapshot
    if snapshot is not None:
        storage = state.shared.storage
        page = snapshot.first_page + state.shared.state_life_cycle
        if state.tail.is_retired:
            storage.drop_hold(page, storage.pool_group_of[state.shared.state_life_cycle])
            state.shared.tree.prune(snapshot)
        else:
            storage.release(page, storage.pool_group_of[state.shared.state_life_cycle])
            note_copied(state, snapshot, state.shared.state_life_cycle, PRIORITY_MIN)
        state.recurrent.matched_snapshot = None


def put_snapshot_back(state: SequenceState) -> None:
    """A resume that brought the snapshot up is undone: held still, it waits in its queue again."""
    snapshot = state.recurrent.matched_snapshot
    if snapshot is not None:
        storage = state.shared.storage
        page = snapshot.first_page + state.shared.state_life_cycle
        # Another sequence may have it locked, and beams hold the same one.
        if storage.rows.num_locks(page) == 0 and not storage.rows.is_queued(page):
            put_back(storage, page, storage.pool_group_of[state.shared.state_life_cycle])


def needs_state_slots(state: SequenceState) -> bool:
    """Whether this resume is the first one, with slots of recurrent state to take."""
    return state.shared.has_state and len(state.recurrent.state_blocks) == 0


def add_needed_state_slots(state: SequenceState, needed: vec[i64]) -> None:
    """Add the slots that the first resume has to allocate, per pool group."""
    shared = state.shared
    if needs_state_slots(state):
        needed[shared.storage.pool_group_of[shared.state_life_cycle]] += shared.recurrent.num_state_slots


def begin_state(state: SequenceState, account: PageCounters | None) -> None:
    """Slots for a sequence that becomes active for the first time, the live one ready for its first step in stream order.

    Room has been made. If the device refuses, the slots are freed and its error is raised.
    """
    shared = state.shared
    storage = shared.storage
    life_cycle = shared.state_life_cycle
    pool_group = storage.pool_group_of[life_cycle]
    try:
        for slot in range(shared.recurrent.num_state_slots):
            block = shared.tree.pool.take()
            state.recurrent.state_blocks.append(block)
            storage.make_locked_page(block.first_page + life_cycle, pool_group, PRIORITY_DEFAULT, state.timeline)
        page = live_block(state, state.recurrent.state_tokens).first_page + life_cycle
        snapshot = state.recurrent.matched_snapshot
        if snapshot is None:
            clear_page(storage, page, pool_group, state.stream)
        else:
            _copy_snapshot(state, snapshot.first_page + life_cycle, page, account)
    except BaseException:
        undo_begin_state(state)
        raise


def _copy_snapshot(state: SequenceState, source: i64, target: i64, account: PageCounters | None) -> None:
    storage = state.shared.storage
    pool_group = storage.pool_group_of[state.shared.state_life_cycle]
    state.shared.guard.begin_change()
    storage.lock(source, pool_group, state.timeline)
    try:
        copy_page(storage, source, target, pool_group, state.stream)
        storage.counters.record_copied(GPU_LEVEL, GPU_LEVEL, pool_group, 1, account)
    finally:
        # Held until the resume has succeeded; the next writer of the slot then waits for the copy. Without a point for
        # that (the device refuses the event) the lock cannot be undone.
        storage.unlock(source, pool_group, state.timeline, state.shared.order.mark(state.timeline))
        state.shared.guard.end_change()


def undo_begin_state(state: SequenceState) -> None:
    """Release the slots; work on them may be under way on the sequence's stream."""
    with state.shared.storage.changes:
        _free_blocks(state, state.shared.order.mark(state.timeline))


def lock_state(state: SequenceState, waits: bool) -> None:
    """A later resume. ``waits``: the stream waits until the state is there."""
    shared = state.shared
    storage = shared.storage
    pool_group = storage.pool_group_of[shared.state_life_cycle]
    for block in state.recurrent.state_blocks:
        page = block.first_page + shared.state_life_cycle
        lock_page(state, page, pool_group, waits)


def unlock_state(state: SequenceState, mark: i64) -> None:
    """The sequence is suspended; the next user of the slots waits for ``mark``."""
    shared = state.shared
    storage = shared.storage
    for block in state.recurrent.state_blocks:
        page = block.first_page + shared.state_life_cycle
        storage.unlock(page, storage.pool_group_of[shared.state_life_cycle], state.timeline, mark)


def free_state(state: SequenceState, mark: i64) -> None:
    """The sequence is closed. ``mark``: as for `release_page`."""
    release_snapshot(state)
    if len(state.recurrent.state_blocks) > 0:
        _free_blocks(state, mark)


def _free_blocks(state: SequenceState, mark: i64) -> None:
    shared = state.shared
    storage = shared.storage
    pool_group = storage.pool_group_of[shared.state_life_cycle]
    is_active = state.timeline != NO_TIMELINE
    # The last slot taken is the first on the stack again: a call that is undone takes the same ones the next time.
    while len(state.recurrent.state_blocks) > 0:
        block = state.recurrent.state_blocks.pop()
        page = block.first_page + shared.state_life_cycle
        if storage.rows.has_page(page):
            if is_active:
                storage.free_unfinished_page(page, pool_group, state.timeline, mark)
            else:
                storage.drop_hold(page, pool_group)
        shared.tree.pool.release(block)
