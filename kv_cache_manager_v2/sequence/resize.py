"""`resize`: make room for a step and move the windows, in one go, all or nothing.

Plan first: which blocks join, which pages each life cycle needs and gives back, what the user's callback says, whether the
slots are to be had. Then apply, in the order that keeps the number of slots in use smallest: give up, evict, take.
"""

from librt.vecs import vec
from mypy_extensions import i64

from ..base.ids import BAD_PAGE_INDEX, PRIORITY_DEFAULT
from ..reuse.block import Block
from .beams import list_beams, list_copies_of_beam
from .block_runs import list_first_pages, make_pages
from .copies_in_place import InPlaceCopies
from .forked_blocks import (
    NO_ORDINALS,
    cut_forked,
    find_first_written,
    give_up_block,
    list_copies,
    settle_forked,
)
from .next_block import try_next_block
from .page_users import count_given_back, give_up_page
from .resize_plan import add_held_copies, leave_out_copies, plan_resize, will_hold_page
from .sequence_state import SequenceState
from .shared_state import NEVER
from .small_step import stays_within_blocks
from .tail_copy import (
    can_take_tail_back,
    copy_shared_blocks,
    free_copies,
    go_on_with_copies,
    stage_copies,
    take_tail_back,
)
from .usage_books import enter_growth
from .window_move import move_windows


def try_resize(state: SequenceState, capacity: i64, history: i64) -> bool:
    """False, and nothing changed, if there is no room. The sequence is active; ``history <= capacity``."""
    if len(state.beams) > 0:
        return _resize_beams(state, capacity, history)
    return _resize_one(state, capacity, history)


def _resize_beams(state: SequenceState, capacity: i64, history: i64) -> bool:
    """Planned for each beam after the ones before it, then done for each: what was planned is there."""
    shared = state.shared
    beams = list_beams(state)
    needed = vec[i64]([0] * shared.storage.num_pool_groups)
    given_back = vec[i64]([0] * shared.storage.num_pool_groups)
    copies_of_beams: list[list[int]] = []
    position: i64 = 0
    for beam in beams:
        copies = list_copies_of_beam(beams, position, capacity, history)
        plan_resize(beam, capacity, history, copies, needed, given_back)
        if shared.room_count.find_refusal(needed, given_back):
            return False
        copies_of_beams.append(copies)
        position += 1
    _make_room_beforehand(state, needed, given_back)
    # Copies first, which the device may refuse; then beam 0, which alone may ask the user for priorities.
    if not _has_room_for_copies(beams, copies_of_beams):
        return _resize_beams_in_place(beams, capacity, history, copies_of_beams)
    digest = shared.storage.digest.value
    staged = _stage_copies_of_beams(beams, copies_of_beams)
    is_done = False
    try:
        mark = shared.order.mark(state.timeline)
        is_done = _resize_one(state, capacity, history)
    finally:
        if not is_done:
            _free_copies_of_beams(beams, staged)
            shared.storage.digest.value = digest
    if not is_done:
        return False
    shared.guard.begin_change()
    position = 0
    for beam in beams:
        if position > 0:
            if len(staged[position]) > 0:
                go_on_with_copies(beam, copies_of_beams[position], staged[position], mark)
            is_done = _resize_one(beam, capacity, history)
            assert is_done, "room that was planned for all beams was not there for each"
        position += 1
    shared.guard.end_change()
    return True


def _stage_copies_of_beams(beams: list[SequenceState], copies_of_beams: list[list[int]]) -> list[list[Block]]:
    """What each further beam is going to copy, copied before anything changes: `PageMoveError` or the device's own error, and
    nothing has."""
    staged: list[list[Block]] = [[] for _ in beams]
    storage = beams[0].shared.storage
    beams[0].shared.room.make_room(_count_all_copies(beams, copies_of_beams))
    digest = storage.digest.value
    try:
        position = 0
        for beam in beams:
            copies = copies_of_beams[position]
            if position > 0 and len(copies) > 0:
                staged[position] = stage_copies(beam, copies, [PRIORITY_DEFAULT] * (beam.shared.num_life_cycles * len(copies)))
            position += 1
    except BaseException:
        _free_copies_of_beams(beams, staged)
        storage.digest.value = digest
        raise
    return staged


def _count_all_copies(beams: list[SequenceState], copies_of_beams: list[list[int]]) -> vec[i64]:
    needed = vec[i64]([0] * beams[0].shared.storage.num_pool_groups)
    position = 0
    for beam in beams:
        add_held_copies(beam, copies_of_beams[position], needed)
        position += 1
    return needed


def _has_room_for_copies(beams: list[SequenceState], copies_of_beams: list[list[int]]) -> bool:
    """Whether there is room for all copies before the call gives pages back."""
    needed = _count_all_copies(beams, copies_of_beams)
    pool_group: i64 = 0
    while pool_group < len(needed):
        if not beams[0].shared.room_count.has_room(pool_group, needed[pool_group]):
            return False
        pool_group += 1
    return True


def _resize_beams_in_place(
    beams: list[SequenceState], capacity: i64, history: i64, copies_of_beams: list[list[int]]
) -> bool:
    """The only room for copies is what the call gives back."""
    state = beams[0]
    shared = state.shared
    num_blocks = (capacity + shared.tokens_per_block - 1) // shared.tokens_per_block
    asked = _ask_priorities(state, num_blocks, capacity, history, copies_of_beams[0])
    in_place: InPlaceCopies | None = _copy_in_place(beams, capacity, history, copies_of_beams, asked)
    shared.guard.begin_change()
    position = 0
    for beam in beams:
        is_done = _resize_one(beam, capacity, history, in_place, asked if position == 0 else None)
        assert is_done, "room that was planned for all beams was not there for each"
        position += 1
    shared.guard.end_change()
    return True


def _free_copies_of_beams(beams: list[SequenceState], staged: list[list[Block]]) -> None:
    """The last one first: the next call takes the same slots."""
    position = len(beams) - 1
    while position > 0:
        free_copies(beams[position], staged[position])
        position -= 1


def _resize_one(
    state: SequenceState,
    capacity: i64,
    history: i64,
    in_place: InPlaceCopies | None = None,
    asked: list[int] | None = None,
) -> bool:
    """``in_place``: copies that are made already. ``asked``: priorities that the user has given for them and the new blocks."""
    if stays_within_blocks(state, capacity, history):
        if state.snapshot_plan is not None:
            state.snapshot_plan.note_room(state.num_committed, state.capacity, capacity, history)
        state.capacity = capacity
        state.history = history
        return True
    counters = state.counters
    if counters is None:
        return _resize_blocks(state, capacity, history, in_place, asked)
    old_num_blocks = state.num_blocks
    pages = state.shared.storage.counters
    pages.caller = counters.usage.pages
    try:
        is_done = _resize_blocks(state, capacity, history, in_place, asked)
    finally:
        pages.caller = None
    if is_done:
        enter_growth(state, counters, old_num_blocks)
    return is_done


def _resize_blocks(
    state: SequenceState, capacity: i64, history: i64, in_place: InPlaceCopies | None, asked: list[int] | None
) -> bool:
    if in_place is None and asked is None and try_next_block(state, capacity, history):
        return True
    shared = state.shared
    num_blocks = (capacity + shared.tokens_per_block - 1) // shared.tokens_per_block
    copies = NO_ORDINALS
    first_written: i64 = NEVER
    if state.tail_is_shared or state.forked_end > 0:
        copies = list_copies(state, capacity, history)
        first_written = find_first_written(state, capacity, history)
    needed = vec[i64]([0] * shared.storage.num_pool_groups)
    given_back = vec[i64]([0] * shared.storage.num_pool_groups)
    plan_resize(state, capacity, history, copies, needed, given_back)
    takes_tail_back = False
    if in_place is None and shared.room_count.find_refusal(needed, given_back):
        # The one block to be copied may be another one, which a fork or a lease has: only the tail can be taken back.
        is_tail = len(copies) == 1 and state.tail_is_shared and copies[0] == state.num_published
        if not is_tail or not can_take_tail_back(state):
            return False
        leave_out_copies(state, copies, capacity, history, needed)
        if shared.room_count.find_refusal(needed, given_back):
            return False
        takes_tail_back = True
        copies = NO_ORDINALS
    priorities = _ask_priorities(state, num_blocks, capacity, history, copies) if asked is None else asked
    num_copies: i64 = len(copies)

    if in_place is None:
        _make_room_beforehand(state, needed, given_back)
        if len(copies) > 0 and _copy_first(state, copies, priorities):
            leave_out_copies(state, copies, capacity, history, needed)
            copies = NO_ORDINALS
        elif len(copies) > 0:
            in_place = _copy_in_place([state], capacity, history, [copies], priorities)
    if in_place is not None:
        leave_out_copies(state, copies, capacity, history, needed)
        copies = NO_ORDINALS
    shared.guard.begin_change()
    if takes_tail_back:
        take_tail_back(state)
    _give_up(state, num_blocks, capacity, history)
    if in_place is not None:
        in_place.settle(state)
    if state.snapshot_plan is not None:
        state.snapshot_plan.note_room(state.num_committed, state.capacity, capacity, history)
    state.history = history
    state.capacity = capacity
    shared.room.make_room_surely(needed)
    if len(copies) > 0:
        copy_shared_blocks(state, copies, priorities)
    if first_written < state.forked_end:
        settle_forked(state, first_written)
    _add_blocks(state, num_blocks, priorities, num_copies)
    if state.scratch.num_blocks > 0:
        _take_scratch(state)
    shared.guard.end_change()
    return True


def _give_up(state: SequenceState, num_blocks: i64, capacity: i64, history: i64) -> None:
    """What the coming step does not need: blocks behind the end, pages that the windows pass, scratch slots, pages of scratch blocks."""
    moves_scratch = state.scratch.is_enabled and capacity != state.capacity
    if num_blocks >= state.num_blocks and history < state.next_window_move and not moves_scratch:
        return
    mark = state.shared.order.mark(state.timeline)
    _cut_blocks(state, num_blocks, mark)
    move_windows(state, history, mark)
    if moves_scratch:
        _move_scratch(state, capacity, history, mark)


def _take_scratch(state: SequenceState) -> None:
    life_cycle: i64 = 0
    while life_cycle < state.shared.num_life_cycles:
        state.scratch.take(life_cycle, state.timeline)
        life_cycle += 1


def _copy_in_place(
    states: list[SequenceState], capacity: i64, history: i64, copies_of_states: list[list[int]], priorities: list[int]
) -> InPlaceCopies | None:
    """The only room for copies is what the call gives back: they are made before it does. None if that is more than pages.

    ``priorities``: those of the first one's.
    """
    shared = states[0].shared
    needed = vec[i64]([0] * shared.storage.num_pool_groups)
    given_back = vec[i64]([0] * shared.storage.num_pool_groups)
    in_place = InPlaceCopies(shared.storage.num_pool_groups)
    for turn, state in enumerate(states):
        copies = copies_of_states[turn]
        plan_resize(state, capacity, history, copies, needed, given_back)
        in_place.begin_turn(state, copies, needed, given_back)
        # Private ones first: nobody will want their bytes.
        _add_donors(in_place, state, capacity, history, copies, False)
        _add_donors(in_place, state, capacity, history, copies, True)
        position = 0
        for copied in copies:
            in_place.begin_block()
            life_cycle = 0
            while life_cycle < shared.num_life_cycles:
                if will_hold_page(state, life_cycle, copied, capacity, history):
                    in_place.add_copy(life_cycle, priorities[position] if turn == 0 else PRIORITY_DEFAULT)
                position += 1
                life_cycle += 1
    if in_place.suffices(shared.room_count):
        in_place.enqueue()
        return in_place
    in_place.give_up()
    return None


def _add_donors(
    in_place: InPlaceCopies, state: SequenceState, capacity: i64, history: i64, copies: list[int], published: bool
) -> None:
    """Pages that the step gives up, and nobody else has."""
    shared = state.shared
    num_blocks = (capacity + shared.tokens_per_block - 1) // shared.tokens_per_block
    life_cycle: i64 = 0
    while life_cycle < shared.num_life_cycles:
        ordinal: i64 = 0
        while ordinal < state.num_blocks:
            if (
                (ordinal >= num_blocks or not will_hold_page(state, life_cycle, ordinal, capacity, history))
                and state.is_published(ordinal) == published
                and int(ordinal) not in copies
                and count_given_back(state, life_cycle, ordinal, ordinal + 1) == 1
            ):
                page = state.blocks[ordinal].first_page + life_cycle
                in_place.add_donor(page, shared.storage.pool_group_of[life_cycle])
            ordinal += 1
        life_cycle += 1


def _make_room_beforehand(state: SequenceState, needed: vec[i64], given_back: vec[i64]) -> None:
    """All moving of pages that the device may refuse comes before the first change.

    What is missing afterwards is no more than the call gives back, and can be dropped where it cannot be moved.
    """
    storage = state.shared.storage
    pool_group: i64 = 0
    while pool_group < storage.num_pool_groups:
        missing = needed[pool_group] - given_back[pool_group]
        if missing > storage.allocators[pool_group].num_free:
            state.shared.room.free_slots(0, pool_group, missing)
        pool_group += 1


def _copy_first(state: SequenceState, copies: list[int], priorities: list[int]) -> bool:
    """Copy shared blocks before anything else changes, so that a device that cannot leaves all as it was.

    False if there is room for the copies only once the call has given its own pages back.
    """
    storage = state.shared.storage
    needed = vec[i64]([0] * storage.num_pool_groups)
    add_held_copies(state, copies, needed)
    pool_group: i64 = 0
    while pool_group < storage.num_pool_groups:
        if not state.shared.room_count.has_room(pool_group, needed[pool_group]):
            return False
        pool_group += 1
    state.shared.room.make_room(needed)
    copy_shared_blocks(state, copies, priorities)
    return True


def _move_scratch(state: SequenceState, capacity: i64, history: i64, mark: i64) -> None:
    """The old range is stale by now; blocks of the new one that had pages give them up, surplus slots go back."""
    scratch = state.scratch
    life_cycle: i64 = 0
    while life_cycle < state.shared.num_life_cycles:
        begin = scratch.compute_begin(life_cycle, history, capacity)
        end = scratch.compute_end(life_cycle, history, capacity)
        ordinal = begin
        while ordinal < end and ordinal < state.num_blocks:
            if state.holds_page(life_cycle, ordinal):
                give_up_page(state, life_cycle, ordinal, mark)
                state.tables[life_cycle].set(ordinal, BAD_PAGE_INDEX)
            ordinal += 1
        scratch.give_back(life_cycle, scratch.count_slots(life_cycle, end - begin), mark)
        scratch.set_range(life_cycle, begin, end)
        life_cycle += 1


def _ask_priorities(
    state: SequenceState, num_blocks: i64, capacity: i64, history: i64, copies: list[int]
) -> list[int]:
    """For each life cycle, first of each copied block, then of each new block; a filler where no page will be made.

    Asked once it is known that there is room, and before anything changes.
    """
    num_life_cycles = state.shared.num_life_cycles
    if state.priority_callback is None:
        return [PRIORITY_DEFAULT] * (num_life_cycles * len(copies)) if len(copies) > 0 else NO_ORDINALS
    priorities: list[int] = []
    for copied in copies:
        _append_priorities(priorities, state, copied, capacity, history)
    ordinal = state.num_blocks
    while ordinal < num_blocks:
        _append_priorities(priorities, state, ordinal, capacity, history)
        ordinal += 1
    return priorities


def _append_priorities(
    priorities: list[int], state: SequenceState, ordinal: i64, capacity: i64, history: i64
) -> None:
    life_cycle: i64 = 0
    while life_cycle < state.shared.num_life_cycles:
        if will_hold_page(state, life_cycle, ordinal, capacity, history):
            priorities.append(int(state.ask_priority(ordinal, life_cycle)))
        else:
            priorities.append(PRIORITY_DEFAULT)
        life_cycle += 1


def _cut_blocks(state: SequenceState, num_blocks: i64, mark: i64) -> None:
    """The capacity shrinks below whole blocks: they hold no committed token of ours."""
    if num_blocks >= state.num_blocks:
        return
    shared = state.shared
    ordinal = state.num_blocks - 1
    while ordinal >= num_blocks:
        life_cycle: i64 = 0
        while life_cycle < shared.num_life_cycles:
            if state.holds_page(life_cycle, ordinal):
                give_up_page(state, life_cycle, ordinal, mark)
            life_cycle += 1
        give_up_block(state, ordinal)
        state.blocks.pop()
        ordinal -= 1
    for table in state.tables:
        table.resize(num_blocks)
    state.num_blocks = num_blocks
    cut_forked(state, num_blocks)
    if state.num_published >= num_blocks:
        state.tail_is_shared = False


def _add_blocks(state: SequenceState, num_blocks: i64, priorities: list[int], num_copies: i64) -> None:
    """Private blocks up to ``num_blocks``, with a page for each life cycle that will read them."""
    if num_blocks <= state.num_blocks:
        return
    shared = state.shared
    storage = shared.storage
    pool = shared.tree.pool
    old_num_blocks = state.num_blocks
    if num_blocks - old_num_blocks == 1:
        state.blocks.append(pool.take())
    else:
        pool.take_many(num_blocks - old_num_blocks, state.blocks)
    state.num_blocks = num_blocks
    asked = state.priority_callback is not None
    # For the one block that a decode step begins, the lists that a run needs would cost more than they save.
    if not asked and state.scratch.num_blocks == 0 and num_blocks - old_num_blocks > 1:
        first_pages = list_first_pages(state.blocks, old_num_blocks, num_blocks)
        for group, table in enumerate(state.tables):
            table.resize(num_blocks)
            make_pages(state, first_pages, old_num_blocks, group)
        return
    life_cycle: i64 = 0
    while life_cycle < shared.num_life_cycles:
        pool_group = storage.pool_group_of[life_cycle]
        table = state.tables[life_cycle]
        table.resize(num_blocks)
        ordinal = old_num_blocks
        while ordinal < num_blocks:
            if state.holds_page(life_cycle, ordinal):
                priority: i64 = PRIORITY_DEFAULT
                if asked:
                    priority = priorities[(ordinal - old_num_blocks + num_copies) * shared.num_life_cycles + life_cycle]
                page = state.blocks[ordinal].first_page + life_cycle
                table.set(ordinal, storage.make_locked_page(page, pool_group, priority, state.timeline))
            ordinal += 1
        life_cycle += 1
