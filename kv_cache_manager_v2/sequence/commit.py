"""`commit`: tokens become final; a block that becomes full is published at once, exactly once (`publishing`)."""

from librt.strings import write_i32_le
from mypy_extensions import i32, i64

from ..base.ids import GPU_LEVEL
from ..device.stream_order import NO_POINT
from ..reuse.block import Block
from ..reuse.token_packing import TOKEN_BYTES
from .early_copying import offload_published
from .forked_blocks import may_publish_partial
from .planned_steps import take_back
from .publishing import enter, publish
from .sequence_state import NO_TIMELINE, SequenceState
from .snapshots import publish_snapshot, stage_snapshot
from .window_move import move_windows


def commit_token(state: SequenceState, token: i32) -> None:
    """One token id, validated by the caller."""
    first_block = state.num_published
    staged = stage_snapshot(state, state.num_committed + 1, False) if state.shared.has_state else None
    state.shared.guard.begin_change()
    tail = state.tail
    write_i32_le(tail.writer, token)
    state.num_committed += 1
    mark: i64 = NO_POINT
    if tail.count == state.shared.tokens_per_block and not state.tail.is_retired:
        mark = state.shared.order.mark(state.timeline)
        publish(state, tail.packed(), mark)
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
    tail = state.tail
    mark: i64 = NO_POINT
    if state.tail.is_retired or tail.count * TOKEN_BYTES + len(packed) < state.shared.tree.block_bytes:
        tail.writer.write(packed)
    else:
        mark = state.shared.order.mark(state.timeline)
        text = tail.packed() + packed if tail.count > 0 else packed
        num_bytes = publish(state, text, mark)
        tail.clear()
        tail.writer.write(text[num_bytes:])
    state.num_committed += len(packed) // TOKEN_BYTES
    _end_commit(state, first_block, mark, staged)


def _end_commit(state: SequenceState, first_block: i64, mark: i64, staged: Block | None) -> None:
    """The tokens are committed: what follows from it, for blocks from ``first_block`` on and for the copy of the state."""
    if state.request.retention is not None and state.num_published > first_block:
        record_retained(state, first_block)
    _advance_history(state, mark)
    state.shared.guard.end_change()
    if staged is not None:
        plan = state.recurrent.snapshot_plan
        publish_snapshot(state, staged, plan is None or plan.is_due(state.num_committed))
    if state.shared.traffic.early_copies is not None and (state.num_published > first_block or staged is not None):
        offload_published(state, first_block)


def record_retained(state: SequenceState, first_block: i64) -> None:
    """From block ``first_block`` on the published path is new, and has durations."""
    plan = state.request.retention
    assert plan is not None
    for ordinal in range(state.num_published - 1, first_block - 1, -1):
        state.shared.claims.retention.record_published(plan, state.blocks[ordinal], int(ordinal))


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

    The sequence may be active or suspended. ``is_closing``: it will read and write nothing any more. Where indices may not change, the
    block is not published before it closes: a published block is copied before it is written.
    """
    take_back(state, 0)
    publishes = (state.is_committing or state.tail.publishes_at_close) and not state.tail.is_retired
    publishes = publishes and not state.shared.traffic.takes_no_copies
    if publishes and state.tail.count > 0 and not state.tail.is_published:
        if is_closing or state.shared.claims.twin_pages is None:
            _publish_tail(state, is_closing)
            if not is_closing and state.shared.traffic.early_copies is not None:
                offload_published(state, state.num_published)
        else:
            state.tail.publishes_at_close = True
    state.tokens = None
    for beam in state.sharing.beams:
        beam.tokens = None


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
    if published is not None and not _may_go_over(state, private, published, is_closing):
        return
    mark = state.shared.order.mark(state.timeline) if state.timeline != NO_TIMELINE else NO_POINT
    state.shared.guard.begin_change()
    block = enter(state, key, mark)
    if block is private and tree.has_digests:
        # The tail goes on counting for the sequence: `committed_tokens` still shows it.
        tree.digests.acquire_again(key)
    block.num_pins += 1
    tree.drop_superseded(parent, block)
    state.tail.is_published = True
    state.next_slow_capacity = 0
    state.tail.copies_on_resume = False
    state.shared.guard.end_change()


def _may_go_over(state: SequenceState, private: Block, published: Block, is_closing: bool) -> bool:
    """Whether the published partial block can stand for ours. A full block's pages are equal whichever sequence wrote them; in those of
    a partial one its publisher may have tokens of its own behind the published ones, which no other page has."""
    rows = state.shared.storage.rows
    # Ours may hold tokens that are written and not committed.
    needs_ours = not is_closing and state.capacity > state.num_committed
    # With a snapshot the tail could not be taken back to be written, and there may be no slot for a copy.
    brings_nothing = not is_closing
    has_snapshot = False
    for life_cycle in range(state.shared.num_life_cycles):
        theirs = published.first_page + life_cycle
        is_ours = rows.has_page(private.first_page + life_cycle)
        if not rows.has_page(theirs):
            brings_nothing = brings_nothing and not is_ours
        elif is_ours:
            # One that waits on a lower level for its holder would be replaced by ours.
            waits = state.timeline != NO_TIMELINE and rows.level(theirs) > GPU_LEVEL and rows.num_holds(theirs) > 0
            if needs_ours or waits:
                return False
        else:
            has_snapshot = True
    return not (brings_nothing and has_snapshot)


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
