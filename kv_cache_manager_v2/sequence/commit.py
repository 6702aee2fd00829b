"""`commit`: tokens become final; a block that becomes full is published at once, exactly once.

If the tree already has the block, ours is released in favour of the published one (*rebase*): per life cycle we either take
over the published page, after waiting for its writer, and free ours, or add ours where the published block lacks one.
"""

from typing import Final

from mypy_extensions import i32, i64

from ..base.ids import GPU_LEVEL
from ..base.package_log import PackageLog
from ..device.stream_order import NO_POINT
from ..reuse.block import Block
from ..reuse.token_packing import TOKEN_BYTES
from ..storage.decision_digest import REBASE
from ..storage.page_bytes import copy_page
from ..storage.page_handover import move_page, replace_page
from .block_runs import publish_fresh
from .disk_arrivals import expect_reads
from .early_copying import offload_published
from .forked_blocks import join_tree, may_publish_partial, record_published
from .planned_steps import confirm, take_back
from .sequence_state import NO_TIMELINE, SequenceState
from .snapshots import publish_snapshot, stage_snapshot
from .twins import keep_own_pages
from .window_move import move_windows

_logger: Final = PackageLog("kv_cache_manager_v2")


def commit_token(state: SequenceState, token: i32) -> None:
    """One token id, validated by the caller."""
    first_block = state.num_published
    staged = stage_snapshot(state, state.num_committed + 1, False) if state.shared.has_state else None
    state.shared.guard.begin_change()
    tail = state.tail
    tail.append(token)
    state.num_committed += 1
    mark: i64 = NO_POINT
    if tail.count == state.shared.tokens_per_block:
        mark = state.shared.order.mark(state.timeline)
        publish_block(state, tail.packed(), mark)
        tail.clear()
    _end_commit(state, first_block, mark, staged)


def commit_packed(state: SequenceState, packed: bytes, is_end: bool = False) -> None:
    """Any number of packed tokens; their digests have been counted for this sequence. There is capacity for all.

    ``is_end``: nothing will be committed after them.
    """
    staged: Block | None = None
    first_block = state.num_published
    if state.shared.has_state and len(packed) > 0:
        try:
            staged = stage_snapshot(state, state.num_committed + len(packed) // TOKEN_BYTES, is_end)
        except BaseException:
            state.shared.tree.digests.release(packed)
            raise
    state.shared.guard.begin_change()
    block_bytes = state.shared.tree.block_bytes
    num_bytes: i64 = len(packed)
    position: i64 = 0
    tail = state.tail
    mark: i64 = NO_POINT
    while position < num_bytes:
        if tail.count == 0 and position + block_bytes <= num_bytes:
            if mark == NO_POINT:
                mark = state.shared.order.mark(state.timeline)
            num_fresh_bytes = publish_fresh(state, packed, position, mark)
            position += num_fresh_bytes
            if num_fresh_bytes > 0:
                continue
            key = packed[position : position + block_bytes]
            position += block_bytes
        else:
            room = block_bytes - tail.count * TOKEN_BYTES
            end = position + room if position + room < num_bytes else num_bytes
            tail.extend(packed[position:end])
            position = end
            if tail.count < state.shared.tokens_per_block:
                break
            key = tail.packed()
            tail.clear()
        if mark == NO_POINT:
            mark = state.shared.order.mark(state.timeline)
        publish_block(state, key, mark)
    state.num_committed += num_bytes // TOKEN_BYTES
    _end_commit(state, first_block, mark, staged)


def _end_commit(state: SequenceState, first_block: i64, mark: i64, staged: Block | None) -> None:
    """The tokens are committed: what follows from it, for blocks from ``first_block`` on and for the copy of the state."""
    if state.retention is not None and state.num_published > first_block:
        record_retained(state, first_block)
    _advance_history(state, mark)
    state.shared.guard.end_change()
    if staged is not None:
        plan = state.snapshot_plan
        publish_snapshot(state, staged, plan is None or plan.is_due(state.num_committed))
    if state.shared.early_copies is not None and (state.num_published > first_block or staged is not None):
        offload_published(state, first_block)


def record_retained(state: SequenceState, first_block: i64) -> None:
    """From block ``first_block`` on the published path is new, and has durations."""
    plan = state.retention
    assert plan is not None
    block = state.path_end
    ordinal = state.num_published - 1
    while ordinal >= first_block:
        state.shared.retention.record_published(plan, block, int(ordinal))
        parent = block.parent
        assert parent is not None, "a published path does not end at a root"
        block = parent
        ordinal -= 1


def _advance_history(state: SequenceState, mark: i64) -> None:
    """History moves up to the committed count by itself."""
    history = state.num_committed
    if history <= state.history:
        return
    if history < state.next_window_move:
        state.history = history
        return
    if mark == NO_POINT:
        mark = state.shared.order.mark(state.timeline)
    move_windows(state, history, mark)


def stop_committing(state: SequenceState, is_closing: bool) -> None:
    """Publish the partial last block, unless the tree has all of it anyway; nothing can be committed afterwards.

    The sequence may be active or suspended. ``is_closing``: it will read and write nothing any more. Where indices stay, the block is
    published by then only: a published block is copied before it is written.
    """
    if state.planned is not None:
        take_back(state, 0)
    if (state.is_committing or state.publishes_at_close) and state.tail.count > 0 and not state.tail_is_shared:
        if is_closing or state.shared.twin_pages is None:
            _publish_tail(state, is_closing)
            if not is_closing and state.shared.early_copies is not None:
                offload_published(state, state.num_published)
        else:
            state.publishes_at_close = True
    state.is_committing = False
    for beam in state.beams:
        beam.is_committing = False


def _publish_tail(state: SequenceState, is_closing: bool) -> None:
    tree = state.shared.tree
    key = state.tail.packed()
    parent = state.path_end
    if _is_covered_by_longer_sibling(state, parent, key):
        return
    private = state.blocks[state.num_published]
    if not may_publish_partial(state, key):
        return
    published = tree.find_child(parent, key)
    if published is not None and not is_closing and state.capacity > state.num_committed:
        # Our pages may hold tokens that are written and not committed: none may be released for a published one.
        if _share_a_life_cycle(state, private, published):
            return
    if published is not None and _would_replace_a_held_page(state, private, published):
        return
    mark = _mark_of(state)
    state.shared.guard.begin_change()
    block = _attach_or_rebase(state, key, mark)
    if block is private and tree.has_digests:
        # The tail goes on counting for the sequence: `committed_tokens` still shows it.
        tree.digests.acquire_again(key)
    block.num_pins += 1
    tree.drop_superseded(parent, block)
    state.tail_is_shared = True
    state.next_slow_capacity = 0
    state.copies_tail_on_resume = False
    state.shared.guard.end_change()


def _share_a_life_cycle(state: SequenceState, private: Block, published: Block) -> bool:
    """Whether some life cycle has a page in both blocks."""
    rows = state.shared.storage.rows
    for life_cycle in range(state.shared.num_life_cycles):
        if rows.has_page(private.first_page + life_cycle) and rows.has_page(published.first_page + life_cycle):
            return True
    return False


def _would_replace_a_held_page(state: SequenceState, private: Block, published: Block) -> bool:
    """Whether a page of the published partial block waits on a lower level for its holder.

    A full block's pages are equal whichever sequence wrote them. In those of a partial one its publisher may have tokens of its own behind
    the published ones, which no other page has.
    """
    if state.timeline == NO_TIMELINE:
        return False
    rows = state.shared.storage.rows
    for life_cycle in range(state.shared.num_life_cycles):
        theirs = published.first_page + life_cycle
        if rows.has_page(private.first_page + life_cycle) and rows.has_page(theirs):
            if rows.level(theirs) > GPU_LEVEL and rows.num_holds(theirs) > 0:
                return True
    return False


def _mark_of(state: SequenceState) -> i64:
    return state.shared.order.mark(state.timeline) if state.timeline != NO_TIMELINE else NO_POINT


def _is_covered_by_longer_sibling(state: SequenceState, parent: Block, key: bytes) -> bool:
    tree = state.shared.tree
    private = state.blocks[state.num_published]
    sibling = parent.only_child
    if sibling is None and parent.children is not None:
        # The first key from ours on begins with ours if any sibling's does.
        _, after = parent.children.sorted_keys().neighbours(key, 1)
        if len(after) > 0:
            sibling = parent.children.find(after[0])
    if sibling is None:
        return False
    longer = tree.key_of(sibling)
    return len(longer) > len(key) and longer.startswith(key) and tree.is_covered(private, sibling)


def publish_block(state: SequenceState, key: bytes, mark: i64) -> None:
    """The next block of the path is full."""
    tree = state.shared.tree
    parent = state.path_end
    private = state.blocks[state.num_published]
    was_private = private.parent is None
    block = _attach_or_rebase(state, key, mark)
    if (block is not private or not was_private) and tree.has_digests:
        # These were counted for our block; the tree has counted its own.
        tree.digests.release(key)
    tree.drop_superseded(parent, block)
    tree.move_pin(parent, block)
    if block is private and parent.children is not None and parent.first_page >= 0:
        state.branch_end = state.num_published
    state.path_end = block
    state.num_published += 1
    if state.forked_end > 0:
        record_published(state)


def _attach_or_rebase(state: SequenceState, key: bytes, mark: i64) -> Block:
    """The published block with that key below the path's end; its needed pages are the sequence's as before."""
    shared = state.shared
    tree = shared.tree
    ordinal = state.num_published
    if ordinal < state.forked_end:
        if state.planned is None:
            return join_tree(state, key, mark)
        confirmed = confirm(state, key, mark)
        if confirmed is not None:
            return confirmed
    private = state.blocks[ordinal]
    published = tree.find_child(state.path_end, key)
    if published is not None:
        shared.storage.digest.record(REBASE, ordinal)
        if shared.twin_pages is None or state.timeline == NO_TIMELINE:
            _rebase(state, ordinal, private, published, mark)
        elif keep_own_pages([state], ordinal, private, published, mark) == 0:
            tree.pool.release(private)
        return published
    tree.attach(state.path_end, private, key)
    if state.timeline != NO_TIMELINE:
        storage = shared.storage
        for life_cycle in range(shared.num_life_cycles):
            page = private.first_page + life_cycle
            if storage.rows.has_page(page):
                storage.set_ready(page, storage.pool_group_of[life_cycle], mark)
    return private


def _repair_page(
    state: SequenceState, ours: i64, theirs: i64, pool_group: i64, is_partial: bool, mark: i64
) -> i64:
    """The published page's disk read may fail: overwrite it with our identical bytes. Returns the mark after that."""
    storage = state.shared.storage
    reads = storage.reads
    if not reads.knows(int(theirs)):
        return mark
    if state.is_further_beam or reads.knows(int(ours)) or (is_partial and storage.rows.num_holds(theirs) > 1):
        # Ours may be another text's or come from a disk too; behind a part of a block that is published another holder may have its own
        # tokens.
        expect_reads(state)
        return mark
    try:
        # An early copy of it may be under way, which is forgotten now.
        state.shared.order.wait(state.timeline, storage.allocators[pool_group].ready[storage.rows.slot(theirs)])
        copy_page(storage, ours, theirs, pool_group, state.stream)
    except Exception as error:
        _logger.warning("a page was not repaired (%s); sequence %s waits for the disk instead", str(error), state.id)
        expect_reads(state)
        return mark
    storage.counters.record_copied(GPU_LEVEL, GPU_LEVEL, pool_group, 1)
    new_mark = state.shared.order.mark(state.timeline)
    reads.record_repair(theirs, state.timeline, new_mark)
    storage.set_ready(theirs, pool_group, new_mark)
    return new_mark


def _rebase(state: SequenceState, ordinal: i64, private: Block, published: Block, mark: i64) -> None:
    shared = state.shared
    storage = shared.storage
    is_active = state.timeline != NO_TIMELINE
    is_partial = not shared.tree.is_full(published)
    for life_cycle in range(shared.num_life_cycles):
        ours = private.first_page + life_cycle
        theirs = published.first_page + life_cycle
        if storage.rows.has_page(ours):
            pool_group = storage.pool_group_of[life_cycle]
            if not storage.rows.has_page(theirs):
                move_page(storage, ours, theirs)
                if is_active:
                    storage.set_ready(theirs, pool_group, mark)
            else:
                if shared.uses_priorities:
                    storage.raise_priority(theirs, pool_group, storage.rows.priority(ours))
                if is_active and storage.rows.level(theirs) > 0:
                    # Ours is on level 0 already: it saves bringing theirs up.
                    replace_page(storage, ours, theirs, pool_group)
                    storage.set_ready(theirs, pool_group, mark)
                    continue
                storage.hold(theirs, pool_group)
                if is_active:
                    slot = storage.lock(theirs, pool_group, state.timeline)
                    if storage.closed.has_disks:
                        # A copy further down is no better than a read that may still fail. Whether it does is not looked at: which
                        # copies there are may not depend on how quick a disk is.
                        storage.copies.forget(theirs)
                        if not storage.reads.is_idle:
                            mark = _repair_page(state, ours, theirs, pool_group, is_partial, mark)
                    storage.free_page(ours, pool_group, mark)
                    state.tables[life_cycle].set(ordinal, slot)
                else:
                    storage.free_unlocked_page(ours, pool_group)
    state.blocks[ordinal] = published
    shared.tree.pool.release(private)
