"""The window moves: history grows, and what no layer will read again is given up."""

from mypy_extensions import i64

from ..base.ids import BAD_PAGE_INDEX
from .block_runs import give_back_fresh, give_back_stale
from .page_users import give_up_page
from .sequence_state import SequenceState


def move_windows(state: SequenceState, history: i64, mark: i64, fresh_from: i64) -> None:
    """Set the history length of an active sequence and give up the pages that become stale.

    Blocks from ``fresh_from`` on were published in the same call: stale at once, so first in line for eviction.
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
            _give_up_range(state, life_cycle, begin, new_begin, mark, fresh_from)
            state.window_begins[life_cycle] = new_begin
        life_cycle += 1
    state.note_next_window_move()


def _give_up_range(state: SequenceState, life_cycle: i64, begin: i64, new_begin: i64, mark: i64, fresh_from: i64) -> None:
    end = new_begin if new_begin < state.num_blocks else state.num_blocks
    table = state.tables[life_cycle]
    runs_end = begin
    if state.scratch.num_blocks == 0:
        runs_end = end if end < state.num_published else state.num_published
    # The far end of a path is always evicted first, hence last block first here and first block first at the front.
    ordinal = (end if end < fresh_from else fresh_from) - 1
    while ordinal >= begin and ordinal >= runs_end:
        if state.holds_page(life_cycle, ordinal):
            give_up_page(state, life_cycle, ordinal, mark)
            table.set(ordinal, BAD_PAGE_INDEX)
        ordinal -= 1
    if ordinal >= begin:
        give_back_stale(state, life_cycle, begin, ordinal + 1, mark)
        table.set_bad_run(begin, ordinal + 1)
    ordinal = begin if begin > fresh_from else fresh_from
    if ordinal < runs_end:
        give_back_fresh(state, life_cycle, ordinal, runs_end, mark)
        table.set_bad_run(ordinal, runs_end)
        ordinal = runs_end
    while ordinal < end:
        if state.holds_page(life_cycle, ordinal):
            _give_up_fresh_page(state, life_cycle, ordinal, mark)
            table.set(ordinal, BAD_PAGE_INDEX)
        ordinal += 1


def _give_up_fresh_page(state: SequenceState, life_cycle: i64, ordinal: i64, mark: i64) -> None:
    if not state.is_published(ordinal):
        give_up_page(state, life_cycle, ordinal, mark)
        return
    storage = state.shared.storage
    page = state.blocks[ordinal].first_page + life_cycle
    pool_group = storage.pool_group_of[life_cycle]
    storage.unlock(page, pool_group, state.timeline, mark)
    storage.release_first(page, pool_group)
