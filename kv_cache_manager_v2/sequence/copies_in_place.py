"""Copy-on-write into slots that this resize frees.

The copies go right into the slots of pages that the resize is about to release, before anything changes and as one batch, which the
device takes or refuses as a whole. Refused, nothing has changed, for nothing was written. Taken, the rest is bookkeeping:

    add        a copy, and the page that lends its slot (its *donor*); the copy gets a free slot where there is no donor
    suffices   whether each sequence or beam has room in its turn that way
    enqueue    one batch for all copies, of a sequence and its beams
    settle     in the change, once a sequence or beam has released its pages: the slots of donors become those of the copies
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from ..storage.page_removal import drop_with_owner
from ..base.errors import PartlyCopiedError
from ..base.ids import PRIORITY_DEFAULT
from ..events.removal_cause import CAPACITY
from ..reuse.block import Block
from ..stats.page_counters import PageCounters
from ..storage.decision_digest import VICTIM
from ..storage.page_bytes import copy_slots_at_once
from ..storage.room_count import RoomCount
from .forked_blocks import NO_ORDINALS
from .page_users import count_given_back
from .resize_plan import ResizePlan, TurnPlan, add_slots, will_hold_page
from .sequence_state import SequenceState
from .staged_copies import take_copies

_NO_DONOR: Final = -1


@final
@mypyc_attr(native_class=True)
class _Copy:
    """One page."""

    __slots__ = ("turn", "pool_group", "source", "page", "priority", "donor", "donors_turn", "slot", "has_slot")

    turn: Final[i64]
    """Whose it is."""
    pool_group: Final[i64]
    source: Final[i64]
    page: Final[i64]
    priority: Final[i64]
    donor: i64
    donors_turn: i64
    slot: i64
    has_slot: bool
    """A free slot was taken for it."""

    def __init__(self, turn: i64, pool_group: i64, source: i64, page: i64, priority: i64) -> None:
        self.turn = turn
        self.pool_group = pool_group
        self.source = source
        self.page = page
        self.priority = priority
        self.donor = _NO_DONOR
        self.donors_turn = turn
        self.slot = 0
        self.has_slot = False


@final
@mypyc_attr(native_class=True)
class InPlaceCopies:
    """Of one step of a sequence and its beams, which have their *turns* one after the other."""

    __slots__ = ("_states", "_ordinals", "_targets", "_copies", "_donors", "_donors_turns", "_needed", "_given_back", "_mark")

    _states: Final[list[SequenceState]]
    _ordinals: Final[list[list[int]]]
    _targets: Final[list[list[Block]]]
    _copies: Final[list[_Copy]]
    _donors: Final[list[list[int]]]  # by pool group, those that are not taken yet
    _donors_turns: Final[list[list[int]]]
    _needed: Final[list[vec[i64]]]  # by turn: of all beams so far
    _given_back: Final[list[vec[i64]]]
    _mark: i64  # after the copies

    def __init__(self, num_pool_groups: i64) -> None:
        self._states = []
        self._ordinals = []
        self._targets = []
        self._copies = []
        self._donors = [[] for _ in range(num_pool_groups)]
        self._donors_turns = [[] for _ in range(num_pool_groups)]
        self._needed = []
        self._given_back = []
        self._mark = 0

    # -- planning -----------------------------------------------------------------------------------------------------

    def begin_turn(self, state: SequenceState, ordinals: list[int], needed: vec[i64], given_back: vec[i64]) -> None:
        """The next sequence or beam, and what it takes and releases together with those before it."""
        self._states.append(state)
        self._ordinals.append(ordinals)
        self._targets.append([])
        self._needed.append(needed)
        self._given_back.append(given_back)

    def add_donor(self, page: i64, pool_group: i64) -> None:
        """A page that only the present one holds, and releases."""
        self._donors[pool_group].append(int(page))
        self._donors_turns[pool_group].append(len(self._states) - 1)

    def begin_block(self) -> None:
        """The next of the present one's blocks."""
        self._targets[-1].append(self._states[0].shared.tree.pool.take())

    def add_copy(self, life_cycle: i64, priority: i64) -> None:
        """The present block's page."""
        turn = len(self._states) - 1
        ordinal = self._ordinals[turn][len(self._targets[turn]) - 1]
        source = self._states[turn].page_of(life_cycle, ordinal)
        pool_group = self._states[turn].shared.storage.pool_group_of[life_cycle]
        copy = _Copy(turn, pool_group, source, self._targets[turn][-1].first_page + life_cycle, priority)
        donors = self._donors[pool_group]
        if len(donors) > 0:
            copy.donor = donors.pop(0)
            copy.donors_turn = self._donors_turns[pool_group].pop(0)
        self._copies.append(copy)

    def suffices(self, room_count: RoomCount) -> bool:
        """Whether all free slots that the copies need are there, and no turn misses what later ones have taken by then."""
        storage = self._states[0].shared.storage
        for pool_group in range(storage.num_pool_groups):
            num_free: i64 = 0
            for copy in self._copies:
                if copy.pool_group == pool_group and copy.donor == _NO_DONOR:
                    num_free += 1
            if num_free > storage.allocators[pool_group].num_free:
                return False
            turn: i64
            for turn in range(len(self._states)):
                asked = self._needed[turn][pool_group] - self._given_back[turn][pool_group]
                if not room_count.has_room(pool_group, asked + self._count_early(pool_group, turn)):
                    return False
        return True

    def _count_early(self, pool_group: i64, turn: i64) -> i64:
        """Slots that those behind ``turn`` have by then, free ones or of donors."""
        count: i64 = 0
        for copy in self._copies:
            if copy.pool_group == pool_group and copy.turn > turn and (copy.donor == _NO_DONOR or copy.donors_turn <= turn):
                count += 1
        return count

    def cancel(self) -> None:
        """It is not carried out."""
        pool = self._states[0].shared.tree.pool
        for targets in self._targets:
            while len(targets) > 0:
                pool.release(targets.pop())

    # -- carrying out -------------------------------------------------------------------------------------------------

    def enqueue(self) -> None:
        """All copies at once. The device's error if it refuses them, and nothing has changed."""
        state = self._states[0]
        shared = state.shared
        storage = shared.storage
        pool_groups = vec[i64]()
        sources = vec[i64]()
        targets = vec[i64]()
        try:
            for copy in self._copies:
                allocator = storage.allocators[copy.pool_group]
                copy.has_slot = copy.donor == _NO_DONOR
                copy.slot = allocator.allocate() if copy.has_slot else storage.rows.slot(copy.donor)
                shared.order.wait(state.timeline, allocator.ready[copy.slot])
                if not copy.has_slot and storage.copies.has_copy(copy.donor):
                    # The page may be on its way down, early: that reads the slot.
                    shared.order.wait(state.timeline, storage.copies.read_point(copy.donor))
                pool_groups = append(pool_groups, copy.pool_group)
                sources = append(sources, storage.rows.slot(copy.source))
                targets = append(targets, copy.slot)
            if len(targets) > 0:
                # No layer may need any of the blocks any more, as their windows pass them in this step.
                copy_slots_at_once(storage, pool_groups, sources, targets, state.stream)
        except PartlyCopiedError:
            # Pages that the sequence still has may be overwritten: this cannot be undone.
            shared.guard.begin_change()
            raise
        except BaseException:
            # Nothing was written. The last slot taken is the first on the stack again: the next call takes the same ones.
            position = len(self._copies) - 1
            while position >= 0:
                refused = self._copies[position]
                if refused.has_slot:
                    storage.allocators[refused.pool_group].free_as_it_is(refused.slot)
                position -= 1
            self.cancel()
            raise
        shared.guard.begin_change()
        self._mark = shared.order.mark(state.timeline)
        for copy in self._copies:
            if not copy.has_slot:
                storage.slots.keep_bytes(copy.pool_group, copy.slot)
        shared.guard.end_change()

    def settle(self, state: SequenceState, account: PageCounters | None) -> None:
        """One of the sequence and its beams has released what the step releases, and goes on with its copies. Cannot fail."""
        storage = state.shared.storage
        turn = 0
        while self._states[turn] is not state:
            turn += 1
        for copy in self._copies:
            if copy.donor != _NO_DONOR and copy.donors_turn == turn:
                if storage.rows.has_page(copy.donor):
                    # Published, and its bytes are gone.
                    storage.digest.record(VICTIM, copy.donor)
                    drop_with_owner(storage, copy.donor, copy.pool_group, CAPACITY, account)
                storage.allocators[copy.pool_group].take_out(copy.slot)
        for copy in self._copies:
            if copy.turn == turn:
                storage.make_locked_page_at(copy.page, copy.pool_group, copy.slot, copy.priority)
                storage.reads.record_copy(copy.source, copy.page)
        take_copies(state, self._ordinals[turn], self._targets[turn], self._mark, account)


def plan_in_place(plan: ResizePlan) -> InPlaceCopies | None:
    """Where each copy goes; None if what the resize releases is more than pages, so that not all copies find a slot."""
    shared = plan.turns[0].state.shared
    needed = vec[i64]([0] * shared.storage.num_pool_groups)
    released = vec[i64]([0] * shared.storage.num_pool_groups)
    in_place = InPlaceCopies(shared.storage.num_pool_groups)
    priorities = plan.priorities
    for turn in plan.turns:
        needed = add_slots(needed, turn.needed)
        released = add_slots(released, turn.released)
        in_place.begin_turn(turn.state, turn.copies, needed, released)
        # Private pages first: no later prompt could use their bytes.
        _add_donors(in_place, plan, turn, False)
        _add_donors(in_place, plan, turn, True)
        position = 0
        for copied in turn.copies:
            in_place.begin_block()
            for life_cycle in range(shared.num_life_cycles):
                if will_hold_page(turn.state, life_cycle, copied, plan.capacity, plan.history):
                    in_place.add_copy(life_cycle, PRIORITY_DEFAULT if len(priorities) == 0 else priorities[position])
                position += 1
        priorities = NO_ORDINALS
    if in_place.suffices(shared.traffic.room_count):
        return in_place
    in_place.cancel()
    return None


def _add_donors(in_place: InPlaceCopies, plan: ResizePlan, turn: TurnPlan, published: bool) -> None:
    """Pages that the turn releases, and that no other sequence holds."""
    state = turn.state
    shared = state.shared
    for life_cycle in range(shared.num_life_cycles):
        for ordinal in range(state.num_blocks):
            if (
                (ordinal >= plan.num_blocks or not will_hold_page(state, life_cycle, ordinal, plan.capacity, plan.history))
                and state.is_published(ordinal) == published
                and int(ordinal) not in turn.copies
                and count_given_back(state, life_cycle, ordinal, ordinal + 1) == 1
            ):
                page = state.page_of(life_cycle, ordinal)
                if shared.claims.twin_pages is not None and shared.claims.twin_pages.is_involved(page):
                    continue  # its slot is not the one that becomes free, or a twin goes on as this page
                in_place.add_donor(page, shared.storage.pool_group_of[life_cycle])
