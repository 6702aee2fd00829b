"""The steps of a sequence that go through many blocks: the runs in which it holds a page, and `page_runs` on each.

For one life cycle these are two: the sinks, and everything from the window's beginning on. For all life cycles together the
borders of either cut the sequence into runs in which the same life cycles hold a page. All this is so while no block is scratch;
the callers go page by page where one is, and where a page has a priority of its own.
"""

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.ids import PRIORITY_DEFAULT
from ..reuse.block import Block
from ..storage.page_runs import (
    release_run,
    release_run_evict_first,
    hold_run,
    lock_run,
    make_locked_run,
)
from .sequence_state import SequenceState


def list_first_pages(blocks: list[Block], begin: i64, end: i64) -> vec[i64]:
    if begin > 0 or end < len(blocks):
        blocks = blocks[int(begin) : int(end)]
    return vec[i64]([block.first_page for block in blocks])


def _sinks_end(state: SequenceState, life_cycle: i64) -> i64:
    sinks_end = state.request.windows.num_sink_blocks[life_cycle]
    return sinks_end if sinks_end < state.num_blocks else state.num_blocks


def _window_begin(state: SequenceState, life_cycle: i64) -> i64:
    begin = state.window_begins[life_cycle]
    return begin if begin < state.num_blocks else state.num_blocks


def hold_pages(state: SequenceState, first_pages: vec[i64]) -> None:
    """Hold what the sequence, which has just got its blocks, is going to need."""
    storage = state.shared.storage
    for life_cycle in range(state.shared.num_life_cycles):
        hold_run(storage, first_pages, life_cycle, 0, _sinks_end(state, life_cycle))
        hold_run(storage, first_pages, life_cycle, _window_begin(state, life_cycle), state.num_blocks)


def use_pages(state: SequenceState) -> None:
    """Policies hear that the sequence's pages are in use: on level 0 all but those behind a residency window."""
    storage = state.shared.storage
    first_pages = list_first_pages(state.blocks, 0, state.num_blocks)
    for pool_group in range(storage.num_pool_groups):
        pages = vec[i64]([0] * (state.num_blocks * state.shared.num_life_cycles))
        count: i64 = 0
        for life_cycle in range(state.shared.num_life_cycles):
            if storage.pool_group_of[life_cycle] == pool_group:
                for ordinal in range(_sinks_end(state, life_cycle)):
                    pages[count] = first_pages[ordinal] + life_cycle
                    count += 1
                for ordinal in range(_window_begin(state, life_cycle), state.num_blocks):
                    pages[count] = first_pages[ordinal] + life_cycle
                    count += 1
        storage.queues[pool_group].use_held_run(pages, count)
    for life_cycle in range(state.shared.num_life_cycles):
        if state.request.windows.keeps[life_cycle] != 0:
            for ordinal in range(_sinks_end(state, life_cycle), _window_begin(state, life_cycle)):
                page = first_pages[ordinal] + life_cycle
                index = storage.rows.level(page) * storage.num_pool_groups + storage.pool_group_of[life_cycle]
                storage.queues[index].use_held_run(vec[i64]([page]), 1)


def lock_pages(state: SequenceState, first_pages: vec[i64], life_cycle: i64) -> None:
    storage = state.shared.storage
    table = state.tables[life_cycle]
    sinks_end = _sinks_end(state, life_cycle)
    if sinks_end > 0:
        table.set_run(0, lock_run(storage, first_pages, life_cycle, 0, sinks_end, state.timeline))
    begin = _window_begin(state, life_cycle)
    if begin < state.num_blocks:
        table.set_run(begin, lock_run(storage, first_pages, life_cycle, begin, state.num_blocks, state.timeline))


def make_pages(state: SequenceState, first_pages: vec[i64], first_block: i64, life_cycle: i64) -> None:
    """A locked page for each of the last blocks, from ``first_block`` on, that the life cycle will read."""
    storage = state.shared.storage
    table = state.tables[life_cycle]
    timeline = state.timeline
    end = _sinks_end(state, life_cycle) - first_block
    if end > 0:
        table.set_run(first_block, make_locked_run(storage, first_pages, life_cycle, 0, end, PRIORITY_DEFAULT, timeline))
    begin = _window_begin(state, life_cycle) - first_block
    if begin < 0:
        begin = 0
    end = len(first_pages)
    if begin < end:
        slots = make_locked_run(storage, first_pages, life_cycle, begin, end, PRIORITY_DEFAULT, timeline)
        table.set_run(first_block + begin, slots)


def release_published(state: SequenceState, mark: i64) -> None:
    """All pages of the published path of an active sequence, the last block first."""
    storage = state.shared.storage
    first_pages = list_first_pages(state.blocks, 0, state.num_published)
    end = state.num_published
    while end > 0:
        life_cycles = _list_holders(state, end - 1)
        begin = _find_run_begin(state, end - 1)
        if len(life_cycles) > 0:
            release_run(storage, first_pages, life_cycles, begin, end, state.timeline, mark)
        end = begin


def _list_holders(state: SequenceState, ordinal: i64) -> vec[i64]:
    """The life cycles that hold a page of the block."""
    life_cycles = vec[i64]()
    for life_cycle in range(state.shared.num_life_cycles):
        if state.holds_page(life_cycle, ordinal):
            life_cycles = append(life_cycles, life_cycle)
    return life_cycles


def _find_run_begin(state: SequenceState, ordinal: i64) -> i64:
    """The first block of those up to ``ordinal`` of which the same life cycles hold a page."""
    begin: i64 = 0
    for life_cycle in range(state.shared.num_life_cycles):
        border = state.window_begins[life_cycle]
        if border > ordinal:
            border = state.request.windows.num_sink_blocks[life_cycle]
        if begin < border <= ordinal:
            begin = border
    return begin


def release_passed(state: SequenceState, life_cycle: i64, begin: i64, end: i64, mark: i64, evict_first: bool) -> None:
    """Out-of-window pages of published blocks, the last block first; ``evict_first``: that one goes before all others."""
    first_pages = list_first_pages(state.blocks, begin, end)
    if evict_first:
        release_run_evict_first(state.shared.storage, first_pages, life_cycle, 0, end - begin, state.timeline, mark)
    else:
        release_run(state.shared.storage, first_pages, vec[i64]([life_cycle]), 0, end - begin, state.timeline, mark)
