"""The caller's mistakes in a `resize`, found before anything changes; and whether a step has scratch blocks at all."""

from typing import Final

from mypy_extensions import i64

from ..base.errors import CopyListError, LogicError
from ..layout.windows import compute_scratch_range
from .planned_rules import phrase_of, require_committed_before, require_unplanned, require_valid
from .sequence_state import ACTIVE, CLOSED, SequenceState
from .shared_state import MOST_BLOCKS


ANY_OPEN: Final = -1
BEAMS_COMMIT: Final = "commit() says which beam has a token"


def require_status(state: SequenceState, status: i64, call: str) -> None:
    """`LogicError` unless the sequence has that status; ANY_OPEN: unless it is open."""
    if state.status == CLOSED:
        raise LogicError(f"sequence {state.id}: {call}() after close(); make a new sequence with create_kv_cache()")
    if status != ANY_OPEN and state.status != status:
        is_not = "ACTIVE, this one is SUSPENDED; resume" if status == ACTIVE else "SUSPENDED, this one is ACTIVE; suspend"
        raise LogicError(f"sequence {state.id}: {call} needs a sequence that is {is_not}() it first")


def require_usable(state: SequenceState, status: i64, call: str) -> None:
    """Refuse a sequence of another status, or one that has read planned blocks which are lost."""
    require_status(state, status, call)
    require_valid(state, call)


def require_committing(state: SequenceState, call: str) -> None:
    require_usable(state, ACTIVE, call)
    if not state.is_committing:
        raise LogicError(f"sequence {state.id}: {call}() after stop_committing()")


def require_one_beam(state: SequenceState, call: str, way_out: str = "set beam_width to 1 first") -> None:
    if state.has_beams:
        raise LogicError(f"sequence {state.id}: {call}() with {len(state.sharing.beams) + 1} beams; {way_out}")


def validate_resize(state: SequenceState, capacity: i64, history: i64) -> None:
    """The caller's mistakes in a resize; changes nothing."""
    if state.status != ACTIVE or state.sharing.planned is not None:
        require_usable(state, ACTIVE, "resize")
    if history < state.history:
        raise ValueError(f"sequence {state.id}: history_length {history} is under the present {state.history}; it never shrinks")
    if capacity < history:
        raise ValueError(f"sequence {state.id}: capacity {capacity} is under history_length {history}")
    if capacity < state.capacity and state.recurrent.snapshot_plan is not None:
        _validate_state_rewind(state, capacity)
    if state.scratch.is_enabled and capacity != state.capacity:
        _validate_scratch_step(state, capacity, history)
    if capacity > state.shared.most_tokens:
        raise ValueError(
            f"sequence {state.id}: capacity {capacity} is over {state.shared.most_tokens} tokens, {MOST_BLOCKS} blocks: a sequence of "
            f"which no layer keeps all tokens has no more; close it, and begin another one"
        )
    if capacity > state.num_blocks * state.shared.tokens_per_block:
        num_blocks = (capacity + state.shared.tokens_per_block - 1) // state.shared.tokens_per_block
        _validate_buffers(state, num_blocks)
        for beam in state.sharing.beams:
            _validate_buffers(beam, num_blocks)


def validate_next_token(state: SequenceState, call: str) -> None:
    """The caller's mistakes in a batch's commit of one token; changes nothing."""
    if state.status != ACTIVE or not state.is_committing or state.has_beams or state.sharing.planned is not None:
        require_committing(state, call)
        require_committed_before(state, call)
        require_one_beam(state, call, BEAMS_COMMIT)
    if state.num_committed >= state.capacity:
        raise ValueError(
            f"sequence {state.id}: a token after {state.num_committed} committed ones exceeds the capacity of {state.capacity}; "
            f"resize() first"
        )
    require_written(state, state.num_committed + 1)


def require_written(state: SequenceState, end: i64) -> None:
    """`CopyListError` where lists of copies may name tokens as a source before the step that writes them."""
    if end > state.request.written_end:
        raise CopyListError(
            f"sequence {state.id}: tokens up to {end} are committed, and the last list of copies was taken for tokens up to "
            f"{state.request.written_end}: a step's take_copies() comes between its resize() and its commit()"
        )


def _validate_buffers(state: SequenceState, num_blocks: i64) -> None:
    for table in state.tables:
        shortage = table.find_shortage(num_blocks)
        if shortage is not None:
            raise ValueError(f"sequence {state.id}: {shortage}; give a larger one to set_base_page_index_buf, or None")


def _validate_state_rewind(state: SequenceState, capacity: i64) -> None:
    """Tokens that may have been computed are taken back: the state before them must still be there."""
    plan = state.recurrent.snapshot_plan
    num_checkpoints = state.shared.recurrent.num_state_slots - 1
    if plan is not None and plan.peak_capacity - capacity > num_checkpoints:
        raise LogicError(
            f"sequence {state.id}: capacity {capacity} takes back what is {plan.peak_capacity - capacity} tokens behind the most that "
            f"there ever was room for, {plan.peak_capacity}, and the recurrent state can go back by {num_checkpoints} only; raise "
            f"state_checkpoints in KVCacheManagerConfig, ask for less room ahead, or begin again with create_kv_cache"
        )


def _validate_scratch_step(state: SequenceState, capacity: i64, history: i64) -> None:
    """Scratch blocks of the last step are lost: the new step must begin after them."""
    least = max(state.history, state.capacity - state.shared.windows.max_rewind_len)
    if not state.scratch.is_new and history != capacity and not least <= history <= state.capacity:
        raise ValueError(
            f"sequence {state.id}: with scratch reuse a step must begin where the last one ended: history_length {history} is "
            f"not from {least} to {state.capacity} (the old capacity; max_rewind_len before it, but not before the history)"
        )
    if state.scratch.num_blocks == 0:
        return
    shared = state.shared
    num_blocks = (capacity + shared.tokens_per_block - 1) // shared.tokens_per_block
    for life_cycle in range(shared.num_life_cycles):
        begin = state.scratch.begins[life_cycle]
        end = state.scratch.ends[life_cycle]
        if begin < end and begin < num_blocks and end > shared.windows.compute_begin(life_cycle, history):
            raise ValueError(
                f"sequence {state.id}: blocks {begin} to {end - 1} of layer group {life_cycle} were scratch blocks, and a history "
                f"of {history} would still need some of them; max_rewind_len={shared.windows.max_rewind_len} limits how far to go back"
            )


def validate_fork(state: SequenceState, call: str) -> None:
    """Scratch slots belong to one sequence's step: blocks that are there only must be stale. Planned blocks belong to their writer."""
    require_unplanned(state, call)
    if len(state.recurrent.state_blocks) > 0 and state.status != ACTIVE:
        raise LogicError(f"sequence {state.id}: {phrase_of(call)} copies the recurrent state, on the device; resume() first")
    scratch = state.scratch
    for life_cycle in range(state.shared.num_life_cycles):
        end = scratch.ends[life_cycle]
        if scratch.begins[life_cycle] < end and end > state.window_begins[life_cycle]:
            raise LogicError(
                f"sequence {state.id}: {phrase_of(call)} with blocks {scratch.begins[life_cycle]} to {end - 1} of layer group "
                f"{life_cycle} in scratch slots at a history of {state.history}; commit, or resize(history_length={state.capacity}) first"
            )


def validate_scratch_switch(state: SequenceState, enable: bool) -> None:
    """The caller's mistakes in switching scratch reuse on or off; changes nothing."""
    if enable and not state.shared.windows.has_scratch:
        raise ValueError("the manager was made without swa_scratch_reuse; set it in KVCacheManagerConfig")
    if state.has_beams:
        raise LogicError(f"sequence {state.id}: beams do not use scratch slots; set beam_width to 1 first")
    if _would_have_scratch(state):
        raise ValueError(
            f"sequence {state.id}: with a history of {state.history} and a capacity of {state.capacity} scratch reuse makes "
            f"a difference; switch it before the resize that begins a long step, or after its history has moved up"
        )


def _would_have_scratch(state: SequenceState) -> bool:
    """Whether the present step has scratch blocks, or would have them if scratch reuse were on."""
    shared = state.shared
    for life_cycle in range(shared.num_life_cycles):
        step = compute_scratch_range(
            int(state.history),
            int(state.capacity),
            shared.life_cycles[life_cycle],
            int(shared.tokens_per_block),
            int(shared.windows.max_rewind_len),
        )
        if step or state.scratch.begins[life_cycle] < state.scratch.ends[life_cycle]:
            return True
    return False
