"""Snapshots: committed copies of a sequence's recurrent state, in the tree, for others to begin with.

A snapshot is the page of the recurrent life cycle on the block that ends where the state does. Where that is inside a block, the
block is a partial one, made for the snapshot if it is not there: its siblings may have the same tokens and the attention's pages.

    stage      before a commit changes anything: a private block gets a copy of the live state, in stream order. It may fail,
               and then nothing has changed; without room there is no snapshot. Where none is planned, room is a free slot, or that of
               the sequence's last snapshot of this kind, which goes
    publish    after the commit: the page moves to its block in the tree, droppable from the start. Cannot fail
    leave      at the end an active sequence's own slot becomes a snapshot, without a copy
    thin       too many on the path: one without holds is dropped
"""

from typing import Final

from mypy_extensions import i64

from ..storage.page_removal import drop
from ..base.errors import PageMoveError
from ..base.ids import GPU_LEVEL, PRIORITY_DEFAULT
from ..base.package_log import PackageLog
from ..events.removal_cause import CAPACITY, SUPERSEDED
from ..reuse.block import Block
from ..stats.usage_counters import find_page_counters
from ..storage.page_bytes import copy_page
from ..storage.page_handover import move_page
from .publishing import find_or_attach
from .recurrent_state import live_block
from .sequence_state import NO_TIMELINE, SequenceState
from .staged_copies import free_copy
from .snapshot_plan import SnapshotPlan

_logger: Final = PackageLog("kv_cache_manager_v2")


def stage_snapshot(state: SequenceState, position: i64, is_end: bool) -> Block | None:
    """A private block with a copy of the state at ``position``, where the commit will end; None if there is to be none, or no room.

    ``is_end``: the user says that nothing will be committed after that.
    """
    plan = state.recurrent.snapshot_plan
    if plan is None or state.tail.is_retired:
        return None
    if plan.is_due(position):
        plan.has_stopped = True
        if not _make_room(state):
            return None
    else:
        _warn_if_passed(state, plan, position)
        is_wanted = state.shared.recurrent.snapshot_policy.at_commits and plan.may_leave_at(state.num_committed, position, is_end)
        if not is_wanted or not _find_free_slot(state, plan):
            return None
        plan.has_stopped = True
    return _copy_state(state, position)


def _make_room(state: SequenceState) -> bool:
    """A free slot for a planned snapshot, even if another page is evicted for it."""
    shared = state.shared
    pool_group = shared.storage.pool_group_of[shared.state_life_cycle]
    if not shared.traffic.room_count.has_room(pool_group, 1):
        return False
    with shared.storage.changes:
        try:
            shared.traffic.reclaimer.free_slots(GPU_LEVEL, pool_group, 1, CAPACITY, find_page_counters(state.request.counters))
        except PageMoveError as error:
            _logger.warning("a snapshot of recurrent state is left out: %s", str(error))
            return False
    return True


def _find_free_slot(state: SequenceState, plan: SnapshotPlan) -> bool:
    """A free slot for a snapshot that is not planned; without one, that of the sequence's last such snapshot, which then goes."""
    shared = state.shared
    storage = shared.storage
    pool_group = storage.pool_group_of[shared.state_life_cycle]
    if storage.allocators[pool_group].num_free > 0:
        return True
    block = plan.commit_block
    if block is None:
        return False
    page = block.first_page + shared.state_life_cycle
    rows = storage.rows
    is_its_own = shared.recurrent.commit_snapshots.get(int(page)) == state.request.serial and rows.has_page(page)
    if not is_its_own or rows.level(page) > GPU_LEVEL or rows.num_holds(page) > 0:
        return False
    with storage.changes:
        drop(storage, page, pool_group, SUPERSEDED, find_page_counters(state.request.counters))
        shared.tree.prune(block)
    return True


def _warn_if_passed(state: SequenceState, plan: SnapshotPlan, position: i64) -> None:
    """Tell the user, once, of a prefill that goes past every place where equal prompts could have begun."""
    passed = plan.find_passed(state.num_committed, position)
    if passed is None or state.shared.recurrent.has_warned_of_snapshots:
        return
    state.shared.recurrent.has_warned_of_snapshots = True
    _logger.warning(
        "sequence %s: a commit of tokens %d to %d passes %d, where a snapshot of the recurrent state could be left; prompts with the same "
        "beginning compute all of it again. End a chunk, and commit, where KVCache.next_snapshot_position says",
        state.id, state.num_committed, position, passed,
    )  # fmt: skip


def _copy_state(state: SequenceState, position: i64) -> Block | None:
    """A private block with a copy of the state at that length; there is a free slot."""
    shared = state.shared
    storage = shared.storage
    life_cycle = shared.state_life_cycle
    pool_group = storage.pool_group_of[life_cycle]
    account = find_page_counters(state.request.counters)
    digest_mark = storage.digest.mark()
    block = shared.tree.pool.take()
    page = block.first_page + life_cycle
    try:
        storage.make_locked_page(page, pool_group, PRIORITY_DEFAULT, state.timeline)
        copy_page(storage, live_block(state, position).first_page + life_cycle, page, pool_group, state.stream)
    except BaseException as refusal:
        free_copy(state, block)
        storage.digest.roll_back(digest_mark)
        if state.has_beams and isinstance(refusal, Exception) and not isinstance(refusal, AssertionError):
            # Bytes of other beams have been gathered for this commit already.
            _logger.warning("a snapshot of recurrent state is left out: %s", refusal)
            return None
        raise
    storage.counters.record_copied(GPU_LEVEL, GPU_LEVEL, pool_group, 1, account)
    return block


def publish_snapshot(state: SequenceState, staged: Block, is_planned: bool) -> None:
    """Hand the staged copy to the block that ends where the sequence's committed tokens do; the commit is done.

    ``is_planned``: it may stay when the sequence needs a slot for its next one.
    """
    shared = state.shared
    storage = shared.storage
    tree = shared.tree
    pool_group = storage.pool_group_of[shared.state_life_cycle]
    with storage.changes:
        mark = shared.order.mark(state.timeline)
        page = staged.first_page + shared.state_life_cycle
        block = state.path_end
        if state.tail.count > 0:
            key = state.tail.packed()
            block = find_or_attach(tree, state.path_end, staged, key)
            if block is staged and tree.has_digests:
                tree.digests.acquire_again(key)
        target = block.first_page + shared.state_life_cycle
        if block is not staged and storage.rows.has_page(target):
            # Another sequence published it first; the state is the same.
            storage.free_page(page, pool_group, mark)
        else:
            if block is not staged:
                move_page(storage, page, target)
            storage.unlock_and_release(target, pool_group, state.timeline, mark)
            _record_owner(state, block, is_planned)
        if block is not staged:
            tree.pool.release(staged)
        if shared.recurrent.max_snapshots_per_path > 0:
            _thin(state)


def _record_owner(state: SequenceState, block: Block, is_planned: bool) -> None:
    owners = state.shared.recurrent.commit_snapshots
    page = int(block.first_page + state.shared.state_life_cycle)
    plan = state.recurrent.snapshot_plan
    if is_planned or plan is None:
        owners.pop(page, None)
    else:
        owners[page] = state.request.serial
        plan.commit_block = block


def leave_last_state(state: SequenceState) -> None:
    """The sequence is about to be closed: its own slot becomes the snapshot of its committed tokens, if it is their state."""
    plan = state.recurrent.snapshot_plan
    if plan is None or state.tail.is_retired or state.timeline == NO_TIMELINE or not state.shared.recurrent.snapshot_policy.at_close:
        return
    if plan.is_certain_at_end(state.num_committed):
        block = live_block(state, state.num_committed)
        state.recurrent.state_blocks.remove(block)
        publish_snapshot(state, block, True)


def _thin(state: SequenceState) -> None:
    """Drop a snapshot of the path if there are too many; the first and the last one stay."""
    shared = state.shared
    rows = shared.storage.rows
    life_cycle = shared.state_life_cycle
    positions: list[int] = []
    blocks: list[Block] = []
    if state.tail.count > 0:
        partial = shared.tree.find_child(state.path_end, state.tail.packed())
        if partial is not None and rows.has_page(partial.first_page + life_cycle):
            positions.append(int(state.num_committed))
            blocks.append(partial)
    for ordinal in range(state.num_published, 0, -1):
        block = state.blocks[ordinal - 1]
        if rows.has_page(block.first_page + life_cycle):
            positions.append(int(ordinal * shared.tokens_per_block))
            blocks.append(block)
    if len(positions) <= shared.recurrent.max_snapshots_per_path:
        return
    # From the end of the path: ties go to the last one looked at, the nearest to the root.
    chosen: Block | None = None
    least_gap = 0
    index: i64
    for index in range(1, len(positions) - 1):
        gap = positions[index - 1] - positions[index + 1]
        page = blocks[index].first_page + life_cycle
        if rows.num_holds(page) == 0 and (chosen is None or gap <= least_gap):
            chosen = blocks[index]
            least_gap = gap
    if chosen is not None:
        pool_group = shared.storage.pool_group_of[life_cycle]
        drop(shared.storage, chosen.first_page + life_cycle, pool_group, SUPERSEDED, None)
        shared.tree.prune(chosen)
