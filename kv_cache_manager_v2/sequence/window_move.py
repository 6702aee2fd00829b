"""The window moves: history grows, and what no layer will read again is given up."""

from mypy_extensions import i64

from ..base.ids import BAD_PAGE_INDEX
from .block_runs import give_back_passed, give_back_stale
from .page_users import give_up_page
from .sequence_state import SequenceState


def move_windows(state: SequenceState, history: i64, mark: i64) -> None:
    """Set the history length of an active sequence and give up the pages that become stale.

    A published page that the window has passed is of use only to a prompt that ends just behind it: the next to go. It is not
    if prompts are known to end or to part there: a match did, or the path has branched.
    """
    state.history = history
    if history < state.next_window_move:
        return
    shared = state.shared
    life_cycle: i64 = 0
    while life_cycle < shared.num_life_cycles:
        begin = state.window_begins[life_cycle]
        new_begin = shared.compute_window_begin(life_cycle, history)
        if new_begin > begin:
            _give_up_range(state, life_cycle, begin, new_begin, mark)
            state.window_begins[life_cycle] = new_begin
        life_cycle += 1
    state.note_next_window_move()


def _give_up_range(state: SequenceState, life_cycle: i64, begin: i64, new_begin: i64, mark: i64) -> None:
    end = new_begin if new_begin < state.num_blocks else state.num_blocks
    table = state.tables[life_cycle]
    runs_end = begin
    if state.scratch.num_blocks == 0 and end - begin > 1:
        runs_end = end if end < state.num_published else state.num_published
    if begin < runs_end:
        kept_end = state.branch_end if state.branch_end < runs_end else runs_end
        kept_begin = state.shared.compute_window_begin(life_cycle, state.branch_end * state.shared.tokens_per_block)
        if kept_begin < begin:
            kept_begin = begin
        if kept_begin < kept_end:
            give_back_stale(state, life_cycle, kept_begin, kept_end, mark)
            give_back_passed(state, life_cycle, begin, kept_begin, mark)
            give_back_passed(state, life_cycle, kept_end, runs_end, mark)
        else:
            give_back_passed(state, life_cycle, begin, runs_end, mark)
        table.set_bad_run(begin, runs_end)
    ordinal = runs_end if runs_end > begin else begin
    while ordinal < end:
        if state.holds_page(life_cycle, ordinal):
            _give_up_passed_page(state, life_cycle, ordinal, mark)
            table.set(ordinal, BAD_PAGE_INDEX)
        ordinal += 1


def _give_up_passed_page(state: SequenceState, life_cycle: i64, ordinal: i64, mark: i64) -> None:
    if not state.is_published(ordinal):
        give_up_page(state, life_cycle, ordinal, mark)
        return
    storage = state.shared.storage
    page = state.blocks[ordinal].first_page + life_cycle
    pool_group = storage.pool_group_of[life_cycle]
    storage.unlock(page, pool_group, state.timeline, mark)
    storage.release_first(page, pool_group)
