"""Residency windows: while a sequence is ACTIVE, old pages of a layer group without a window need not be on level 0.

    locked on level 0   the sinks, the window, every page that may be written, and what `require_blocks` has named since the last resize
    held                the others, on level 0 or below it; their base page indices are bad

The window moves as that of a sliding-window layer does (`move_windows`), but what comes to lie behind it stays held. While SUSPENDED a
sequence holds all its pages either way, so only then a window is changed or taken away: no page changes. What would need the old pages on
level 0 is refused (`require_no_window`).
"""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i32, i64, u8

from ..base.errors import LogicError
from ..base.ids import BAD_PAGE_INDEX, GPU_LEVEL
from ..device.stream_order import NO_POINT
from ..storage.onboarding import OnboardList
from .planned_rules import phrase_of
from .sequence_state import ACTIVE, SequenceState
from .shared_state import UNBOUNDED, Windows
from .whole_prefix import bring_up

_NO_ORDINALS: Final = vec[i64]()


def has_window(state: SequenceState) -> bool:
    return state.request.windows is not state.shared.windows


def require_no_window(state: SequenceState, call: str) -> None:
    """`LogicError` where a call needs all pages of the sequence on level 0, or blocks that others share."""
    if has_window(state):
        raise LogicError(
            f"sequence {state.id}: {phrase_of(call)} with a residency window, behind which pages may lie below level 0; suspend() and take "
            "it away with set_residency_window(layer_group_id, None) first"
        )


def validate_window(state: SequenceState, life_cycle: i64) -> None:
    """`LogicError` where a sequence can have no window."""
    shared = state.shared
    name = f"sequence {state.id}: set_residency_window()"
    if shared.windows.sizes[life_cycle] != UNBOUNDED or not shared.life_cycles[life_cycle].has_page_per_block:
        raise LogicError(f"{name} of layer group {life_cycle}, whose layers do not read all tokens; it is for those that do")
    if shared.storage.last_level == 0:
        raise LogicError(f"{name} with one cache level: there is nothing below it that old pages could go to; add a HostCacheTierConfig")
    shared.traffic.require_own_memory("set_residency_window()", "the engine keeps all pages of a running sequence on level 0")
    if shared.has_state:
        raise LogicError(f"{name} with recurrent layers, whose snapshots are taken with all pages on level 0")
    if shared.claims.twin_pages is not None:
        raise LogicError(f"{name} with allow_seq_rebasing=False: pages that leave level 0 come back to other indices")
    if state.scratch.is_enabled:
        raise LogicError(f"{name} while scratch slots are in use; set enable_swa_scratch_reuse to False first")
    forks = state.sharing.forks
    if state.has_beams or state.forked_end > 0 or (forks is not None and len(forks) > 1):
        raise LogicError(
            f"{name} of a sequence that shares, or has shared, uncommitted blocks with beams, forks, leases or plans, whose pages stay on "
            "level 0; rewind(num_committed_tokens), or make a new sequence with create_kv_cache()"
        )


def set_window(state: SequenceState, life_cycle: i64, window_size: i64, num_sink_tokens: i64) -> None:
    """Validated; UNBOUNDED takes the window away. The sequence is suspended, or has had no window of that group."""
    shared = state.shared
    size = shared.tokens_per_block
    num_sinks = (num_sink_tokens + size - 1) // size
    windows = Windows(shared.life_cycles, None, size)
    for other in range(shared.num_life_cycles):
        if other == life_cycle:
            _set_one(windows, other, window_size, num_sinks)
        elif state.request.windows.keeps[other] != 0:
            _set_one(windows, other, state.request.windows.sizes[other], state.request.windows.num_sink_blocks[other])
    mark = shared.order.mark(state.timeline) if state.status == ACTIVE else NO_POINT
    with shared.storage.changes:
        end_window(state)
        if any([keeps != 0 for keeps in windows.keeps]):
            state.request.windows = windows
            shared.claims.num_windowed += 1
        begin = state.request.windows.compute_begin(life_cycle, state.history)
        state.window_begins[life_cycle] = begin
        if state.status == ACTIVE:
            unlock_passed(state, life_cycle, num_sinks, begin, mark)
        state.record_next_window_move()


def end_window(state: SequenceState) -> None:
    """The sequence has no residency window from now on; where its windows begin is the caller's to say."""
    if has_window(state):
        state.request.windows = state.shared.windows
        state.shared.claims.num_windowed -= 1


def _set_one(windows: Windows, life_cycle: i64, window_size: i64, num_sinks: i64) -> None:
    if window_size != UNBOUNDED:
        windows.sizes[life_cycle] = window_size
        windows.num_sink_blocks[life_cycle] = num_sinks
        windows.least_begins[life_cycle] = num_sinks
        windows.keeps[life_cycle] = 1


def unlock_passed(state: SequenceState, life_cycle: i64, begin: i64, end: i64, mark: i64) -> None:
    """Those blocks, of which not all need be there, lie behind the window from now on."""
    storage = state.shared.storage
    if end > state.num_blocks:
        end = state.num_blocks
    table = state.tables[life_cycle]
    required = set([int(ordinal) for ordinal in table.required])
    for ordinal in range(begin, end):
        if int(ordinal) not in required:
            storage.unlock(state.blocks[ordinal].first_page + life_cycle, storage.pool_group_of[life_cycle], state.timeline, mark)
            table.set(ordinal, BAD_PAGE_INDEX)


def require(state: SequenceState, life_cycle: i64, ordinals: vec[i64]) -> bool:
    """Lock those blocks' pages on level 0; False, and nothing has changed, if there is no room. The sequence is active."""
    if state.request.windows.keeps[life_cycle] == 0:
        return True
    shared = state.shared
    storage = shared.storage
    if storage.closed.has_disks:
        storage.closed.look()
    table = state.tables[life_cycle]
    pool_group = storage.pool_group_of[life_cycle]
    wanted = OnboardList(storage, GPU_LEVEL)
    added = vec[i64]()
    known = set([int(ordinal) for ordinal in table.required])
    for ordinal in ordinals:
        if int(ordinal) not in known:
            known.add(int(ordinal))
            added = append(added, ordinal)
            page = state.blocks[ordinal].first_page + life_cycle
            if state.keeps_page(life_cycle, ordinal):
                wanted.add(page, storage.rows.level(page), pool_group, storage.rows.is_queued(page))
    nothing = vec[i64]([0] * storage.num_pool_groups)
    if shared.traffic.room_count.find_onboard_refusal(nothing, wanted.num_here, wanted.num_below, wanted.num_freed):
        return False
    if wanted.needs_work(nothing):
        bring_up(state, wanted, nothing, True)
    with storage.changes:
        _lock(state, life_cycle, added)
        state.next_slow_capacity = 0
    return True


def _lock(state: SequenceState, life_cycle: i64, ordinals: vec[i64]) -> None:
    """Pages on level 0, of which those in the window are locked already."""
    storage = state.shared.storage
    table = state.tables[life_cycle]
    for ordinal in ordinals:
        if state.keeps_page(life_cycle, ordinal):
            page = state.blocks[ordinal].first_page + life_cycle
            table.set(ordinal, int(storage.lock(page, storage.pool_group_of[life_cycle], state.timeline)))
        table.required = append(table.required, ordinal)


def end_required(state: SequenceState) -> list[vec[i64]]:
    """Unlock what was required since the last resize, of an active sequence. Returns it, by life cycle."""
    shared = state.shared
    ended = [table.required for table in state.tables]
    if any([len(required) > 0 for required in ended]):
        mark = shared.order.mark(state.timeline)
        with shared.storage.changes:
            for life_cycle in range(shared.num_life_cycles):
                table = state.tables[life_cycle]
                for ordinal in table.required:
                    if state.keeps_page(life_cycle, ordinal):
                        page = state.blocks[ordinal].first_page + life_cycle
                        shared.storage.unlock(page, shared.storage.pool_group_of[life_cycle], state.timeline, mark)
                        table.set(ordinal, BAD_PAGE_INDEX)
                table.required = _NO_ORDINALS
    return ended


def lock_again(state: SequenceState, ended: list[vec[i64]]) -> None:
    """A resize was refused, and has moved no page: what was required is so again."""
    with state.shared.storage.changes:
        for life_cycle in range(state.shared.num_life_cycles):
            _lock(state, life_cycle, ended[life_cycle])


def list_levels(state: SequenceState, life_cycle: i64) -> vec[u8]:
    """Per block, the level of its page; 255, which is -1 as int8, where the sequence holds none."""
    rows = state.shared.storage.rows
    nowhere: u8 = 255
    levels = vec[u8]([nowhere] * int(state.num_blocks))
    for ordinal in range(state.num_blocks):
        page = state.page_of(life_cycle, ordinal)
        if state.has_page(life_cycle, ordinal) and rows.has_page(page):
            levels[ordinal] = u8(rows.level(page))
    return levels


def list_slots(state: SequenceState, life_cycle: i64) -> vec[i32]:
    """Per block, the slot of its page on its level; `BAD_PAGE_INDEX` where the sequence holds none."""
    rows = state.shared.storage.rows
    bad: i32 = BAD_PAGE_INDEX
    slots = vec[i32]([bad] * int(state.num_blocks))
    for ordinal in range(state.num_blocks):
        page = state.page_of(life_cycle, ordinal)
        if state.has_page(life_cycle, ordinal) and rows.has_page(page):
            slots[ordinal] = i32(rows.slot(page))
    return slots
