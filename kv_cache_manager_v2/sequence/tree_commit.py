"""`commit_tree`: of a flattened tree of drafts the accepted nodes are moved together, in stream order, and committed.

    positions   8   9  10  11  12  13        the root and five drafts; accepted are 8, 10, 13
                r   a   b   c   d   e
                r   b   e                    10 -> 9, 13 -> 10: each moves towards the front, over what is not needed any more

Each page is put right that a target has at present, also where the window will have passed it: the commit publishes it, for prompts
that end there.

A target is never the source of a move that comes later, so the moves go in order; a run of moves none of which overwrites what
another one of the run reads is enqueued at once.
"""

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.errors import LogicError
from ..base.ids import BAD_PAGE_INDEX
from ..storage.token_copy import TokenCopies
from .sequence_state import SequenceState


def validate_tree(state: SequenceState, positions: vec[i64], num_tokens: i64) -> None:
    """The caller's mistakes; changes nothing."""
    count: i64 = len(positions)
    if count != num_tokens:
        raise ValueError(f"sequence {state.id}: {num_tokens} tokens and {count} accepted positions; give one for each")
    least = state.num_committed
    for index in range(count):
        position = positions[index]
        if position < least or position >= state.capacity:
            raise ValueError(
                f"sequence {state.id}: accepted position {position} (number {index}) is not from {least} to "
                f"{state.capacity - 1}; positions ascend, from the committed tokens to the capacity"
            )
        least = position + 1
    _validate_pages(state, positions)


def _validate_pages(state: SequenceState, positions: vec[i64]) -> None:
    size = state.shared.tokens_per_block
    history = state.num_committed + len(positions)
    target = state.num_committed
    for position in positions:
        if position != target:
            if target < state.history:
                raise ValueError(
                    f"sequence {state.id}: position {position} would move to {target}, which is history already (of "
                    f"{state.history} tokens); the tree begins behind the history"
                )
            block = state.blocks[target // size]
            if block.parent is not None or block.num_co_owners > 0:
                raise LogicError(
                    f"sequence {state.id}: block {target // size} is shared with a fork; commit_tree() before fork(), or begin "
                    f"a step of its own with a resize"
                )
            for life_cycle in range(state.shared.num_life_cycles):
                entries = state.tables[life_cycle].entries
                if entries[target // size] == BAD_PAGE_INDEX:
                    is_missing = _is_read(state, life_cycle, target // size, history)
                else:
                    is_missing = entries[position // size] == BAD_PAGE_INDEX
                if is_missing:
                    raise LogicError(
                        f"sequence {state.id}: position {position} or {target} of layer group {life_cycle} is in scratch slots; "
                        f"configure swa_scratch_reuse with max_rewind_len at least the size of the tree"
                    )
        target += 1


def _is_read(state: SequenceState, life_cycle: i64, ordinal: i64, history: i64) -> bool:
    """Whether the layers will read that block at that history."""
    if not state.shared.life_cycles[life_cycle].has_page_per_block:
        return False
    if ordinal < state.request.windows.num_sink_blocks[life_cycle]:
        return True
    return ordinal >= state.request.windows.compute_begin(life_cycle, history)


def compact_tree(state: SequenceState, positions: vec[i64], copies: TokenCopies) -> None:
    """Move the accepted positions to where the committed tokens end; the caller has validated, and commits afterwards.

    The device's error, and nothing has moved, if it refuses. Where nodes move onto others that were moved before, that is in several
    batches: refused in the middle it cannot be undone.
    """
    shared = state.shared
    size = shared.tokens_per_block
    target = state.num_committed
    sources = vec[i64]()
    has_moved = False
    for position in positions:
        if position != target:
            if target in sources:
                copies.enqueue(state.stream)
                if not has_moved:
                    shared.guard.begin_change()
                has_moved = True
                sources = vec[i64]()
            sources = append(sources, position)
            for life_cycle in range(shared.num_life_cycles):
                entries = state.tables[life_cycle].entries
                source_slot = i64(entries[position // size])
                target_slot = i64(entries[target // size])
                if target_slot != BAD_PAGE_INDEX:
                    copies.add(life_cycle, source_slot, position % size, target_slot, target % size)
        target += 1
    copies.enqueue(state.stream)
    if has_moved:
        shared.guard.end_change()
