"""The plan of one `resize` or resume: a value that says what joins, what is released and what is copied, made before anything changes.

`plan_resize` works it out for a sequence, or for all beams of one, and finds out whether the slots are to be had; a refusal changes
nothing. `resize.try_resize` applies it.

Shared blocks that the step writes are copied before anything is released, so that a device that refuses a copy changes nothing: the
slots for the copies are free or evictable beforehand, or the resize is refused. A block holds a page of a life cycle after the resize
if the next token reads the block (a sink, or from the window's beginning on) and the block is not among the step's scratch blocks.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.ids import PRIORITY_DEFAULT
from ..storage.onboarding import OnboardList
from .forked_blocks import NO_ORDINALS, find_first_written, list_copies
from .published_tail import is_tail_its_own
from .recurrent_state import add_needed_state_slots, needs_state_slots
from .scratch import add_needed_slots
from .sequence_state import ACTIVE, SequenceState
from .shared_state import NEVER
from .slot_ledger import SlotLedger


NO_SLOTS: Final = vec[i64]()


@final
class TurnPlan:
    """Effect of the resize on one sequence, or on one beam, which have their turns in order. Slots are per pool group."""

    __slots__ = ("state", "copies", "first_written", "needed", "copied", "released", "begins_state")

    def __init__(self, state: SequenceState, copies: list[int], first_written: i64) -> None:
        self.state: Final = state
        self.copies: Final = copies
        """Ordinals of the shared blocks that the step writes."""
        self.first_written: Final = first_written
        """The first block that the step writes; NEVER where no block can be shared."""
        num_pool_groups = state.shared.storage.num_pool_groups
        self.needed: Final = vec[i64]([0] * num_pool_groups)
        """Slots for new pages, scratch blocks and copies."""
        self.copied: vec[i64] = vec[i64]([0] * num_pool_groups) if len(copies) > 0 else vec[i64]()
        """Of ``needed``, those for copies that the sequence still holds after the resize; empty where nothing is copied."""
        self.released: Final = vec[i64]([0] * num_pool_groups)
        """Slots that become free or evictable. A page that another beam holds too is not among them."""
        self.begins_state: Final[bool] = needs_state_slots(state)
        """Whether a resume takes slots of recurrent state."""


@final
class ResizePlan:
    """One `resize` to ``capacity`` and ``history``, in tokens, or a resume that leaves these: a turn for the sequence, or for each beam."""

    __slots__ = ("capacity", "history", "num_blocks", "turns", "peak", "withdraws_tail", "priorities")

    def __init__(self, capacity: i64, history: i64, num_blocks: i64) -> None:
        self.capacity: Final = capacity
        self.history: Final = history
        self.num_blocks: Final = num_blocks
        """Blocks of each sequence or beam after the resize."""
        self.turns: Final[list[TurnPlan]] = []
        self.peak: vec[i64] = NO_SLOTS
        """The most slots, per pool group, that the resize takes at any moment beyond those that it has released by then."""
        self.withdraws_tail = False
        """The published tail is not copied: it leaves the tree, and the sequence writes it."""
        self.priorities: list[int] = NO_ORDINALS
        """Priorities of the first turn's pages, as `ask_priorities` says; empty where all have the default."""

    def __repr__(self) -> str:
        turns = [
            f"sequence {turn.state.id}: blocks {turn.state.num_blocks} to {self.num_blocks}, copies {turn.copies}, slots "
            f"+{list(turn.needed)}, of which {list(turn.copied)} for copies, -{list(turn.released)} released"
            for turn in self.turns
        ]
        tail = ", withdraws the tail" if self.withdraws_tail else ""
        return f"<ResizePlan to {self.capacity}, history {self.history}{tail}; {'; '.join(turns)}>"


def plan_resize(states: list[SequenceState], capacity: i64, history: i64, ledger: SlotLedger | None = None) -> ResizePlan | None:
    """None, with `PageStorage.last_refusal` set and nothing changed, if the slots are not to be had; ``ledger``: as if the resizes
    that it records had been made.

    Each beam is planned after the ones before it: of a block that only beams share the last one writes in place.
    """
    shared = states[0].shared
    plan = ResizePlan(capacity, history, (capacity + shared.tokens_per_block - 1) // shared.tokens_per_block)
    for position, state in enumerate(states):
        copies = NO_ORDINALS
        first_written: i64 = NEVER
        if state.tail.is_published or state.forked_end > 0:
            first_written = find_first_written(state, capacity, history)
            copies = list_copies(state, capacity, history)
            if position > 0 or ledger is not None:
                copies = _leave_out_last_owned(states, position, copies, ledger)
        plan.turns.append(plan_turn(state, copies, first_written, plan, ledger))
    return plan if _find_room(plan, ledger, None) else None


def plan_resume(states: list[SequenceState], wanted: OnboardList | None) -> ResizePlan | None:
    """The same for a resume, which leaves the numbers as they are. ``wanted``: the pages that it brings up; None on one level."""
    first = states[0]
    plan = ResizePlan(first.capacity, first.history, first.num_blocks)
    for state in states:
        copies = NO_ORDINALS
        if state.tail.copies_on_resume:
            copies = [int(state.num_published)]
        plan.turns.append(plan_turn(state, copies, NEVER, plan, None))
    ask_priorities(plan)
    return plan if _find_room(plan, None, wanted) else None


def _find_room(plan: ResizePlan, ledger: SlotLedger | None, wanted: OnboardList | None) -> bool:
    """Whether the slots are to be had, if need be without a copy of the published tail."""
    turn = plan.turns[0]
    before = turn.state.shared.storage.last_refusal
    if not _lacks_room(plan, ledger, wanted):
        return True
    # A block that a fork or a lease has cannot be withdrawn.
    is_copy_of_tail = turn.state.tail.is_published and turn.copies == [int(turn.state.num_published)]
    if len(plan.turns) > 1 or not is_copy_of_tail or not is_tail_its_own(turn.state, ledger):
        return False
    turn.state.shared.storage.take_refusal_back(before)
    plan.turns[0] = plan_turn(turn.state, NO_ORDINALS, turn.first_written, plan, ledger)
    plan.withdraws_tail = True
    return not _lacks_room(plan, ledger, wanted)


def _lacks_room(plan: ResizePlan, ledger: SlotLedger | None, wanted: OnboardList | None) -> bool:
    plan.peak = count_peak(plan.turns)
    if ledger is not None:
        return ledger.find_refusal(plan.peak)
    room_count = plan.turns[0].state.shared.traffic.room_count
    if wanted is None:
        return room_count.find_refusal(plan.peak)
    return room_count.find_onboard_refusal(plan.peak, wanted.num_here, wanted.num_below, wanted.num_freed)


def ask_priorities(plan: ResizePlan) -> None:
    """The user's priorities for pages of the first turn, which alone has a callback: per life cycle, first of each copied block, then of
    each new block; a filler where no page will be made. What the callback raises is raised."""
    turn = plan.turns[0]
    state = turn.state
    if state.request.priority_callback is None:
        return
    plan.priorities = []
    for ordinal in [*turn.copies, *range(int(state.num_blocks), int(plan.num_blocks))]:
        for life_cycle in range(state.shared.num_life_cycles):
            if will_hold_page(state, life_cycle, ordinal, plan.capacity, plan.history):
                plan.priorities.append(int(state.ask_priority(ordinal, life_cycle)))
            else:
                plan.priorities.append(PRIORITY_DEFAULT)


def _leave_out_last_owned(beams: list[SequenceState], position: i64, copies: list[int], ledger: SlotLedger | None) -> list[int]:
    """Without the blocks that are the beam's alone once the sequences and beams before it have copied them: it writes these in place."""
    left: list[int] = []
    for ordinal in copies:
        block = beams[position].blocks[ordinal]
        num_gone: i64 = 0
        if ledger is not None:
            num_gone = ledger.num_left.get(int(block.first_page), 0)
        for earlier in range(position):
            if beams[earlier].blocks[ordinal] is block:
                num_gone += 1
        if block.parent is not None or i64(block.num_co_owners) > num_gone:
            left.append(ordinal)
    return left


def plan_turn(state: SequenceState, copies: list[int], first_written: i64, plan: ResizePlan, ledger: SlotLedger | None) -> TurnPlan:
    """The slots that one sequence or beam takes and releases, given what the beams before it have done so far."""
    shared = state.shared
    turn = TurnPlan(state, copies, first_written)
    moves_scratch = state.scratch.is_enabled and plan.capacity != state.capacity
    for life_cycle in range(shared.num_life_cycles):
        pool_group = shared.storage.pool_group_of[life_cycle]
        new_begin = state.request.windows.compute_begin(life_cycle, plan.history)
        turn.needed[pool_group] += state.request.windows.count_new_pages(life_cycle, state.num_blocks, plan.num_blocks, new_begin)
        if moves_scratch:
            _plan_scratch(turn, life_cycle, plan.capacity, plan.history)
        elif state.scratch.is_out_of(life_cycle, new_begin):
            turn.released[pool_group] += len(state.scratch.slots[life_cycle])
        for ordinal in copies:
            if will_hold_page(state, life_cycle, ordinal, plan.capacity, plan.history):
                turn.copied[pool_group] += 1
                turn.needed[pool_group] += 1
        for ordinal in list_released(state, plan, life_cycle):
            page = state.page_of(life_cycle, ordinal)
            if ledger is None and shared.storage.rows.num_holds(page) == 1 or ledger is not None and ledger.is_last(page):
                turn.released[pool_group] += 1
    if state.status != ACTIVE:
        add_needed_slots(state.scratch, turn.needed)
        add_needed_state_slots(state, turn.needed)
    return turn


def list_released(state: SequenceState, plan: ResizePlan, life_cycle: i64) -> list[int]:
    """Ordinals of the blocks whose page the sequence releases: behind the window, in the next step's scratch range, behind the end."""
    ordinals: list[int] = []
    kept = state.num_blocks if state.num_blocks < plan.num_blocks else plan.num_blocks
    if state.request.windows.keeps[life_cycle] == 0:
        new_begin = state.request.windows.compute_begin(life_cycle, plan.history)
        _append_held(ordinals, state, life_cycle, state.window_begins[life_cycle], new_begin if new_begin < kept else kept)
    if state.scratch.is_enabled and plan.capacity != state.capacity:
        # All of the range is at or after the new window's beginning.
        begin = state.scratch.compute_begin(life_cycle, plan.history, plan.capacity)
        end = state.scratch.compute_end(life_cycle, plan.history, plan.capacity)
        _append_held(ordinals, state, life_cycle, begin, end if end < kept else kept)
    _append_held(ordinals, state, life_cycle, kept, state.num_blocks)
    return ordinals


def _append_held(ordinals: list[int], state: SequenceState, life_cycle: i64, begin: i64, end: i64) -> None:
    for ordinal in range(begin, end):
        if state.holds_page(life_cycle, ordinal):
            ordinals.append(ordinal)


def _plan_scratch(turn: TurnPlan, life_cycle: i64, capacity: i64, history: i64) -> None:
    """Count what the next step's scratch range changes: slots taken and released, and pages that its blocks do without."""
    state = turn.state
    scratch = state.scratch
    pool_group = state.shared.storage.pool_group_of[life_cycle]
    begin = scratch.compute_begin(life_cycle, history, capacity)
    end = scratch.compute_end(life_cycle, history, capacity)
    num_slots: i64 = len(scratch.slots[life_cycle])
    wanted = scratch.count_slots(life_cycle, end - begin)
    if wanted > num_slots:
        turn.needed[pool_group] += wanted - num_slots
    else:
        turn.released[pool_group] += num_slots - wanted
    # All of the range is at or after the new window's beginning, so count_new_pages counted its new blocks.
    first_new = begin if begin > state.num_blocks else state.num_blocks
    if end > first_new:
        turn.needed[pool_group] -= end - first_new


def will_hold_page(state: SequenceState, life_cycle: i64, ordinal: i64, capacity: i64, history: i64) -> bool:
    """Whether that block has a page of the life cycle after the resize."""
    window_begin = state.request.windows.compute_begin(life_cycle, history)
    if state.request.windows.count_new_pages(life_cycle, ordinal, ordinal + 1, window_begin) == 0:
        return False
    scratch = state.scratch
    if not scratch.is_enabled or capacity == state.capacity or ordinal < scratch.compute_begin(life_cycle, history, capacity):
        return True
    return ordinal >= scratch.compute_end(life_cycle, history, capacity)


def count_peak(turns: list[TurnPlan]) -> vec[i64]:
    """`ResizePlan.peak`: first the copies of all turns, one for each page that a copied block has now; then turn follows turn."""
    if len(turns) == 1 and len(turns[0].copies) == 0:
        return subtract_slots(turns[0].needed, turns[0].released)
    copied = [_count_copies(turn) for turn in turns]
    taken = copied[0]
    for other in copied[1:]:
        taken = add_slots(taken, other)
    peak = taken
    for position, turn in enumerate(turns):
        taken = subtract_slots(add_slots(taken, turn.needed), add_slots(turn.released, copied[position]))
        peak = vec[i64]([max(peak[index], taken[index]) for index in range(len(peak))])
    return peak


def _count_copies(turn: TurnPlan) -> vec[i64]:
    storage = turn.state.shared.storage
    count = vec[i64]([0] * storage.num_pool_groups)
    for life_cycle in range(turn.state.shared.num_life_cycles):
        for ordinal in turn.copies:
            if turn.state.holds_page(life_cycle, ordinal):
                count[storage.pool_group_of[life_cycle]] += 1
    return count


def add_slots(first: vec[i64], second: vec[i64]) -> vec[i64]:
    """Per pool group."""
    return vec[i64]([first[pool_group] + second[pool_group] for pool_group in range(len(first))])


def subtract_slots(first: vec[i64], second: vec[i64]) -> vec[i64]:
    """Per pool group."""
    return vec[i64]([first[pool_group] - second[pool_group] for pool_group in range(len(first))])
