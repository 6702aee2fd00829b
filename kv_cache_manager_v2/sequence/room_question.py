"""A room question: whether a `resize`, or one after another of a batch, would find its slots. Asking changes nothing.

A sequence is planned as `resize_plan.plan_resize` plans it, after what the sequences before it would have done: `take` adds that up.
Evictions need no simulation: they turn droppable pages into free slots and move held pages down, and `RoomCount` adds these up. Pages
that sequences of the batch share are free or evictable once the last of them has released them, so each planned release is counted.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..storage.refusal import Refusal
from .beams import list_beams
from .forked_blocks import NO_ORDINALS, find_first_written, list_copies
from .published_tail import is_tail_its_own
from .resize_plan import ResizePlan, TurnPlan, add_slots, count_peak, is_copy_of_tail, plan_turn
from .sequence_state import SequenceState
from .shared_state import NEVER, SharedState


@final
@mypyc_attr(native_class=True)
class RoomQuestion:
    """One `find` for each sequence, in the order of the calls, and `take` between two of them."""

    __slots__ = ("_shared", "_plan", "_taken", "_newly_held", "_num_released", "_num_left", "_gone_on")

    _shared: Final[SharedState]
    _plan: ResizePlan | None
    """Plan of the last `find`, if it found room."""
    _taken: vec[i64]
    """Per pool group, slots that the sequences before this one take, less those that they make free or evictable."""
    _newly_held: vec[i64]
    """Per pool group, pages that suspended sequences hold and that nothing locks any more then."""
    _num_released: Final[dict[int, int]]
    """By page, how many sequences have released it by then."""
    _num_left: Final[dict[int, int]]
    """By first page, how many sequences that had a shared block as their own have left it by then."""
    _gone_on: Final[dict[int, int]]
    """By twin, the published page that it goes on as by then."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._plan = None
        self._taken = vec[i64]([0] * shared.storage.num_pool_groups)
        self._newly_held = vec[i64]([0] * shared.storage.num_pool_groups)
        self._num_released = {}
        self._num_left = {}
        self._gone_on = {}

    def find(self, state: SequenceState, capacity: i64, history: i64) -> Refusal | None:
        """Why the resize would be refused; None if it would not. The caller has validated the numbers."""
        shared = self._shared
        if shared.storage.closed.has_disks:
            shared.storage.closed.look()
        plan = ResizePlan(capacity, history, (capacity + shared.tokens_per_block - 1) // shared.tokens_per_block)
        self._plan = None
        beams = list_beams(state)
        for position, beam in enumerate(beams):
            copies = NO_ORDINALS
            first_written: i64 = NEVER
            if beam.tail.is_shared or beam.forked_end > 0:
                first_written = find_first_written(beam, capacity, history)
                copies = self._leave_out_last_owned(beams, position, list_copies(beam, capacity, history))
            plan.turns.append(self._plan_turn(beam, copies, first_written, plan))
        refusal = self._look(count_peak(plan.turns))
        turn = plan.turns[0]
        if refusal is not None and len(beams) == 1 and is_copy_of_tail(turn):
            if is_tail_its_own(state, self._num_released, self._num_left):
                plan.turns[0] = self._plan_turn(state, NO_ORDINALS, turn.first_written, plan)
                refusal = self._look(count_peak(plan.turns))
        if refusal is None:
            self._plan = plan
        return refusal

    def take(self) -> None:
        """The resize that was asked for last would be carried out: the next question comes after it."""
        plan = self._plan
        assert plan is not None, "a resize that is refused takes nothing"
        for turn in plan.turns:
            state = turn.state
            for life_cycle in range(self._shared.num_life_cycles):
                pool_group = self._shared.storage.pool_group_of[life_cycle]
                for ordinal in _list_released(turn, plan, life_cycle, True):
                    self._release(state.page_of(life_cycle, ordinal), pool_group)
            for pool_group in range(self._shared.storage.num_pool_groups):
                self._taken[pool_group] += turn.needed[pool_group]
                self._taken[pool_group] -= _count_scratch_released(turn, plan, pool_group)
            ordinals = list(turn.copies)
            ordinals.extend(range(int(plan.num_blocks), int(state.num_blocks)))
            for ordinal in ordinals:
                first_page = int(state.blocks[ordinal].first_page)
                self._num_left[first_page] = self._num_left.get(first_page, 0) + 1

    def _release(self, page: i64, pool_group: i64) -> None:
        storage = self._shared.storage
        page = self._page_by_then(page)
        count = self._num_released.get(int(page), 0) + 1
        self._num_released[int(page)] = count
        num_holds, num_locks = self._count_users(page)
        if num_locks == count and self._let_twin_go_on(page):
            self._taken[pool_group] -= 1
        elif num_holds == count:
            self._taken[pool_group] -= 1
        elif num_locks == count and storage.last_level > 0:
            self._newly_held[pool_group] += 1

    def _page_by_then(self, page: i64) -> i64:
        """The published page that a twin goes on as by then, or the page itself."""
        return self._gone_on.get(int(page), int(page))

    def _count_users(self, page: i64) -> tuple[int, int]:
        """Holds and locks of now, with those of the twins that went on as that page by then."""
        rows = self._shared.storage.rows
        num_holds, num_locks = int(rows.num_holds(page)), int(rows.num_locks(page))
        for twin, published in self._gone_on.items():
            if published == int(page):
                num_holds += int(rows.num_holds(twin))
                num_locks += int(rows.num_locks(twin))
        return num_holds, num_locks

    def _let_twin_go_on(self, page: i64) -> bool:
        """The page has lost its last lock: its oldest twin, if it has one, takes its place, and its slot is free."""
        twin_pages = self._shared.claims.twin_pages
        if twin_pages is not None:
            for twin in twin_pages.twins_of(page):
                if twin not in self._gone_on:
                    self._gone_on[twin] = int(page)
                    return True
        return False

    def _plan_turn(self, state: SequenceState, copies: list[int], first_written: i64, plan: ResizePlan) -> TurnPlan:
        """With the pages among what it releases that the sequences before it have released by then."""
        turn = plan_turn(state, copies, first_written, plan)
        if len(self._num_released) > 0:
            rows = self._shared.storage.rows
            for life_cycle in range(self._shared.num_life_cycles):
                for ordinal in _list_released(turn, plan, life_cycle, False):
                    own = state.page_of(life_cycle, ordinal)
                    page = self._page_by_then(own)
                    num_holds, _num_locks = self._count_users(page)
                    is_last = num_holds == self._num_released.get(int(page), 0) + 1
                    # The plan has counted the pages that no other sequence has now.
                    turn.released[self._shared.storage.pool_group_of[life_cycle]] += int(is_last) - int(rows.num_holds(own) == 1)
        return turn

    def _leave_out_last_owned(self, beams: list[SequenceState], position: int, copies: list[int]) -> list[int]:
        """Without the blocks that are the beam's alone by then: it writes these in place."""
        left: list[int] = []
        for ordinal in copies:
            block = beams[position].blocks[ordinal]
            num_gone = self._num_left.get(int(block.first_page), 0)
            for earlier in range(position):
                if beams[earlier].blocks[ordinal] is block:
                    num_gone += 1
            if block.parent is not None or int(block.num_co_owners) > num_gone:
                left.append(ordinal)
        return left

    def _look(self, peak: vec[i64]) -> Refusal | None:
        """Ask `RoomCount` for so many slots beyond those that are taken by then, and remove the traces of a refusal."""
        storage = self._shared.storage
        nothing = vec[i64]([0] * storage.num_pool_groups)
        held_less = vec[i64]([-count for count in self._newly_held])
        mark = storage.digest.mark()
        last_refusal = storage.last_refusal
        if not self._shared.traffic.room_count.find_onboard_refusal(add_slots(self._taken, peak), held_less, nothing, nothing):
            return None
        refusal = storage.last_refusal
        assert refusal is not None, "a call was refused for no reason"
        storage.num_refusals[refusal.level * storage.num_pool_groups + refusal.pool_group] -= 1
        storage.last_refusal = last_refusal
        storage.digest.roll_back(mark)
        return refusal


def _list_released(turn: TurnPlan, plan: ResizePlan, life_cycle: i64, with_copied: bool) -> list[int]:
    """Ordinals of the blocks whose page the sequence releases; ``with_copied``: also of those that it copies for itself."""
    state = turn.state
    kept = int(state.num_blocks if state.num_blocks < plan.num_blocks else plan.num_blocks)
    begin = int(state.window_begins[life_cycle])
    ordinals = set(range(begin, min(int(state.shared.windows.compute_begin(life_cycle, plan.history)), kept)))
    ordinals.update(range(kept, int(state.num_blocks)))
    if state.scratch.is_enabled and plan.capacity != state.capacity:
        first = int(state.scratch.compute_begin(life_cycle, plan.history, plan.capacity))
        end = int(state.scratch.compute_end(life_cycle, plan.history, plan.capacity))
        ordinals.update(range(first, min(end, int(state.num_blocks))))
    if with_copied:
        ordinals.update(turn.copies)
    return [ordinal for ordinal in sorted(ordinals) if state.holds_page(life_cycle, ordinal)]


def _count_scratch_released(turn: TurnPlan, plan: ResizePlan, pool_group: i64) -> i64:
    """Scratch slots among what a plan releases."""
    state = turn.state
    shared = state.shared
    count: i64 = 0
    moves_scratch = state.scratch.is_enabled and plan.capacity != state.capacity
    for life_cycle in range(shared.num_life_cycles):
        if shared.storage.pool_group_of[life_cycle] == pool_group:
            num_slots: i64 = len(state.scratch.slots[life_cycle])
            if moves_scratch:
                begin = state.scratch.compute_begin(life_cycle, plan.history, plan.capacity)
                end = state.scratch.compute_end(life_cycle, plan.history, plan.capacity)
                wanted = state.scratch.count_slots(life_cycle, end - begin)
                if wanted < num_slots:
                    count += num_slots - wanted
            elif state.scratch.is_out_of(life_cycle, shared.windows.compute_begin(life_cycle, plan.history)):
                count += num_slots
    return count
