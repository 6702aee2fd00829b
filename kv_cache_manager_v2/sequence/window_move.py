"""The window moves: history grows, and out-of-window pages are released."""

from typing import Final

from mypy_extensions import i64

from ..base.ids import BAD_PAGE_INDEX
from .block_runs import release_passed
from .page_users import release_page
from .residency_window import unlock_passed
from .sequence_state import SequenceState
from .twins import end_twins_between

LEAST_SLACK_TOKENS: Final = 512


def move_windows(state: SequenceState, history: i64, mark: i64, keeps_scratch: bool = False) -> None:
    """Set the history length of an active sequence and release the pages that become stale, and scratch slots whose blocks all are.

    What lies behind a residency window stays held. Else a published out-of-window page is of use only to a prompt that ends just behind it:
    the next to go. It goes in its turn where prompts are likely to end or to part: where a match did, where the path has branched, and at
    the end of the prompt.
    """
    state.history = history
    if history < state.next_window_move:
        return
    shared = state.shared
    for life_cycle in range(shared.num_life_cycles):
        begin = state.window_begins[life_cycle]
        new_begin = state.request.windows.compute_begin(life_cycle, history)
        if new_begin > begin:
            _release_range(state, life_cycle, begin, new_begin, mark)
            state.window_begins[life_cycle] = new_begin
            if not keeps_scratch and state.scratch.is_out_of(life_cycle, new_begin):
                state.scratch.release(life_cycle, 0, mark)
                state.scratch.set_range(life_cycle, new_begin, new_begin)
    state.record_next_window_move()


def _release_range(state: SequenceState, life_cycle: i64, begin: i64, new_begin: i64, mark: i64) -> None:
    end = new_begin if new_begin < state.num_blocks else state.num_blocks
    table = state.tables[life_cycle]
    if state.request.windows.keeps[life_cycle] != 0:
        unlock_passed(state, life_cycle, begin, end, mark)
        return
    if state.sharing.twins is not None:
        end_twins_between(state, life_cycle, life_cycle + 1, begin, end, mark)
    runs_end = begin
    if state.scratch.num_blocks == 0 and end - begin > 1 and not state.tail.is_retired:
        runs_end = end if end < state.num_published else state.num_published
    if begin < runs_end:
        _release_published(state, life_cycle, begin, runs_end, mark)
        table.set_bad_run(begin, runs_end)
    for ordinal in range(runs_end if runs_end > begin else begin, end):
        if state.holds_page(life_cycle, ordinal):
            _release_out_of_window_page(state, life_cycle, ordinal, mark)
            table.set(ordinal, BAD_PAGE_INDEX)


def _release_published(state: SequenceState, life_cycle: i64, begin: i64, end: i64, mark: i64) -> None:
    """Page by page the same as `_release_out_of_window_page`, in up to five runs."""
    branch_begin = _find_branch_window(state, life_cycle)
    branch_end = state.sharing.branch_end
    prompt_begin = _find_prompt_window(state, life_cycle)
    prompt_end = _find_prompt_end(state)
    while begin < end:
        stop = _nearer(begin, branch_begin, _nearer(begin, branch_end, _nearer(begin, prompt_begin, _nearer(begin, prompt_end, end))))
        is_likely_end = branch_begin <= begin < branch_end or prompt_begin <= begin < prompt_end
        release_passed(state, life_cycle, begin, stop, mark, not is_likely_end)
        begin = stop


def _nearer(begin: i64, border: i64, end: i64) -> i64:
    """The border, if it lies between the two, or the end."""
    return border if begin < border < end else end


def _release_out_of_window_page(state: SequenceState, life_cycle: i64, ordinal: i64, mark: i64) -> None:
    if not state.is_published(ordinal):
        release_page(state, life_cycle, ordinal, mark)
        return
    storage = state.shared.storage
    page = state.blocks[ordinal].first_page + life_cycle
    pool_group = storage.pool_group_of[life_cycle]
    storage.unlock(page, pool_group, state.timeline, mark)
    is_likely_end = _find_branch_window(state, life_cycle) <= ordinal < state.sharing.branch_end or (
        _find_prompt_window(state, life_cycle) <= ordinal < _find_prompt_end(state)
    )
    storage.release(page, pool_group, not is_likely_end)


def _find_branch_window(state: SequenceState, life_cycle: i64) -> i64:
    """The first block that a match needs which ends where the latest did, or where the path left that of others."""
    return state.shared.windows.compute_begin(life_cycle, state.sharing.branch_end * state.shared.tokens_per_block)


def _find_prompt_window(state: SequenceState, life_cycle: i64) -> i64:
    """The first block that a match needs at the end of the prompt, where its continuation is likely to part from what is generated here.

    Or some way before: the last words of a prompt are often not those that the next one repeats.
    """
    shared = state.shared
    slack: i64 = max(2 * shared.windows.sizes[life_cycle], LEAST_SLACK_TOKENS)
    end = state.request.prompt_length - slack
    return shared.windows.compute_begin(life_cycle, end if end > 0 else 0)


def _find_prompt_end(state: SequenceState) -> i64:
    tokens_per_block = state.shared.tokens_per_block
    return (state.request.prompt_length + tokens_per_block - 1) // tokens_per_block
