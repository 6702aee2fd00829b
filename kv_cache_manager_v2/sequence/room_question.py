"""A room question: whether a `resize`, or one after another of a batch, would find its slots: plans that are not carried out.

A sequence is planned as `resize_plan.plan_resize` plans it, after what the sequences before it would have done: `SlotLedger` has that.
"""

from typing import Final, final

from mypy_extensions import i64

from ..storage.refusal import Refusal
from .beams import list_beams
from .resize_plan import ResizePlan, list_released, plan_resize
from .sequence_state import SequenceState
from .shared_state import SharedState
from .slot_ledger import SlotLedger


@final
class RoomQuestion:
    """One `find` for each sequence, in the order of the calls, and `take` between two of them."""

    __slots__ = ("_shared", "_plan", "_ledger")

    def __init__(self, shared: SharedState) -> None:
        self._shared: Final = shared
        self._plan: ResizePlan | None = None
        """Plan of the last `find`, if it found room."""
        self._ledger: Final = SlotLedger(shared)

    def find(self, state: SequenceState, capacity: i64, history: i64) -> Refusal | None:
        """Why the resize would be refused; None if it would not. The caller has validated the numbers. A refusal leaves no trace."""
        storage = self._shared.storage
        if storage.closed.has_disks:
            storage.closed.look()
        mark = storage.digest.mark()
        last_refusal = storage.last_refusal
        self._plan = plan_resize(list_beams(state), capacity, history, self._ledger)
        storage.digest.roll_back(mark)
        return None if self._plan is not None else storage.take_refusal_back(last_refusal)

    def take(self) -> None:
        """The resize that was asked for last would be carried out: the next question comes after it."""
        plan = self._plan
        assert plan is not None, "a resize that is refused takes nothing"
        ledger = self._ledger
        for turn in plan.turns:
            for pool_group in range(self._shared.storage.num_pool_groups):
                ledger.taken[pool_group] += turn.needed[pool_group] - turn.released[pool_group]
            # Of what it releases only scratch slots are counted like that: a page is free once the last of all has released it.
            for life_cycle in range(self._shared.num_life_cycles):
                for ordinal in list_released(turn.state, plan, life_cycle):
                    if ledger.is_last(turn.state.page_of(life_cycle, ordinal)):
                        ledger.taken[self._shared.storage.pool_group_of[life_cycle]] += 1
        for turn in plan.turns:
            for life_cycle in range(self._shared.num_life_cycles):
                copied = [ordinal for ordinal in turn.copies if turn.state.holds_page(life_cycle, ordinal)]
                for ordinal in dict.fromkeys(list_released(turn.state, plan, life_cycle) + copied):
                    ledger.release(turn.state.page_of(life_cycle, ordinal), self._shared.storage.pool_group_of[life_cycle])
            for ordinal in [*turn.copies, *range(int(plan.num_blocks), int(turn.state.num_blocks))]:
                first_page = int(turn.state.blocks[ordinal].first_page)
                ledger.num_left[first_page] = ledger.num_left.get(first_page, 0) + 1
