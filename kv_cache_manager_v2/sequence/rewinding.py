"""Going back to the beginning of a sequence: closed, it is opened again as one that was made with those tokens.

So what it keeps is what a new sequence would match, and all that a match promises holds: nothing of it is lost, every window is whole,
and there is a recurrent state for it.
"""

from ..reuse.match import Match
from ..reuse.state_match import StateMatch
from ..storage.page_removal import settle_reads
from . import residency
from .recurrent_state import begin_with
from .sequence_state import SequenceState
from .usage_recorder import UsageRecorder
from .whole_prefix import find_whole, find_whole_with_state


def reopen(
    state: SequenceState, packed: bytes, buffers: list[memoryview | None], old_num_blocks: int, usage: UsageRecorder | None
) -> None:
    """The closed sequence holds the longest prefix of ``packed`` that is there. ``buffers``: the caller's, by layer group."""
    shared = state.shared
    plan = state.snapshot_plan
    has_given = state.given is not None and state.given_end == state.num_committed
    state.reopen()
    if not shared.storage.reads.is_idle:
        # Lost pages that the sequence held are dropped.
        settle_reads(shared.storage)
    root = shared.tree.find_root(state.scope)
    state_match: StateMatch | None = None
    match: Match
    if shared.has_state:
        state_match = find_whole_with_state(shared, root, packed)
        match = state_match.match
    else:
        match = find_whole(shared, root, packed)
    residency.hold_match(state, match, [])
    state.given_end = state.num_committed if has_given else -1
    if state_match is not None:
        positions = [] if plan is None else plan.list_positions()
        begin_with(state, state_match, packed, int(state.prompt_length), positions, False)
    for life_cycle, buffer in enumerate(buffers):
        if buffer is not None:
            state.tables[life_cycle].set_buffer(buffer)
    if usage is not None:
        usage.record_rewind(state, packed, match, old_num_blocks)
