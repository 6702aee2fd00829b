"""A finish question: whether open sequences can be resumed one after the other, each grown and closed, the others suspended meanwhile.

Asking changes nothing. Per pool group, as `RoomCount` will count:

    on level 0       what the sequence has locked at its widest               <=  slots of level 0 within reach
    on all levels    that, and the held pages of the sequences after it       <=  slots of all open levels within reach

*Within reach* are free slots, those of droppable pages and of held pages, and what the listed sequences use. Leased pages, pages that an
active sequence outside the list has locked, quarantined slots and closed levels are not. A sequence that finishes only frees slots, so
the first of the list that can finish goes first: if there is an order, this finds one.

Most questions need no order: all that the sequences can still take has room at once (`find_easy_plan`, a few additions for each sequence).
The others look at each page of each listed sequence.

Where a window moves on in mid-run, a sequence has beams or scratch slots, or a twin is leased, the count is an upper bound: the answer
may be no where there is an order, never yes where there is none.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from ..base.ids import GPU_LEVEL
from ..storage.refusal import Refusal
from .finish_demand import FinishDemand, count_holds, count_locks
from .finish_plan import FinishPlan
from .published_tail import is_tail_its_own
from .recurrent_state import add_needed_state_slots
from .scratch import add_needed_slots
from .sequence_state import ACTIVE, SequenceState
from .shared_state import SharedState


@final
@mypyc_attr(native_class=True)
class _Holdings:
    """Where the pages of one listed sequence are. Counts are per pool group."""

    __slots__ = ("num_pages", "num_owned", "num_loose", "num_kept", "num_stranded", "num_outside_kept", "shared", "loose", "behind")

    num_pages: Final[vec[i64]]
    """Pages within reach, and on closed levels, from which a resume brings them up."""
    num_owned: Final[vec[i64]]
    """Of these, pages on open levels that no other sequence holds."""
    num_loose: Final[vec[i64]]
    """Of ``num_owned``, pages that it may release before its end."""
    num_kept: Final[vec[i64]]
    """Pages on open levels that it holds to its end, with others or alone."""
    num_stranded: Final[vec[i64]]
    """Pages on closed levels."""
    num_outside_kept: Final[vec[i64]]
    """Pages out of reach, on level 0, that it holds to its end."""
    shared: Final[list[vec[i64]]]
    """By pool group, pages on open levels that others hold too."""
    loose: Final[list[vec[i64]]]
    """Of these, pages that it may release before its end."""
    behind: Final[list[vec[i64]]]
    """Of ``loose``, pages that no step writes: a window may leave them behind."""

    def __init__(self, num_pool_groups: i64) -> None:
        self.num_pages = vec[i64]([0] * num_pool_groups)
        self.num_owned = vec[i64]([0] * num_pool_groups)
        self.num_loose = vec[i64]([0] * num_pool_groups)
        self.num_kept = vec[i64]([0] * num_pool_groups)
        self.num_stranded = vec[i64]([0] * num_pool_groups)
        self.num_outside_kept = vec[i64]([0] * num_pool_groups)
        self.shared = [vec[i64]() for _ in range(num_pool_groups)]
        self.loose = [vec[i64]() for _ in range(num_pool_groups)]
        self.behind = [vec[i64]() for _ in range(num_pool_groups)]


@final
@mypyc_attr(native_class=True)
class FinishQuestion:
    """One question about the sequences of a list, which the caller has validated."""

    __slots__ = (
        "_shared", "_demands", "_holdings", "_users", "_locks", "_twin_uses", "_with_twins", "_num_released", "_num_left",
        "_reach", "_top_reach", "_held", "_num_locked", "_is_too_wide",
    )  # fmt: skip

    _shared: Final[SharedState]
    _demands: Final[list[FinishDemand]]
    _holdings: Final[list[_Holdings]]
    _users: Final[dict[int, int]]
    """By page that several hold: the listed sequences that have not finished, and one more if any other sequence or lease holds it."""
    _locks: Final[dict[int, int]]
    """By such a page, the locks of listed sequences."""
    _twin_uses: Final[dict[int, int]]
    """By twin, the listed sequences that have it instead of the published page."""
    _with_twins: Final[set[int]]
    """Pages whose twins have been counted."""
    _num_released: Final[dict[int, int]]
    """By such a page, the holds of sequences that have finished."""
    _num_left: Final[dict[int, int]]
    """By first page, the finished sequences that had the block behind their published path."""
    _reach: Final[vec[i64]]
    """Slots within reach on all open levels, per pool group."""
    _top_reach: Final[vec[i64]]
    """The same on level 0."""
    _held: Final[vec[i64]]
    """Of ``_reach``, slots of pages that must not be dropped now."""
    _num_locked: Final[vec[i64]]
    """Slots that stay locked while the listed sequences are suspended."""
    _is_too_wide: bool
    """Whether the sequence that was looked at last takes more than level 0 has, so that no other one's end helps."""

    def __init__(self, shared: SharedState, states: list[SequenceState], remaining: vec[i64], max_step: i64) -> None:
        storage = shared.storage
        self._shared = shared
        self._demands = [FinishDemand(state, remaining[position], max_step) for position, state in enumerate(states)]
        self._holdings = [_Holdings(storage.num_pool_groups) for _ in states]
        self._users = {}
        self._locks = {}
        self._twin_uses = {}
        self._with_twins = set()
        self._num_released = {}
        self._num_left = {}
        self._reach = vec[i64]([0] * storage.num_pool_groups)
        self._top_reach = vec[i64]([0] * storage.num_pool_groups)
        self._held = vec[i64]([0] * storage.num_pool_groups)
        self._num_locked = storage.num_locked[:]
        self._is_too_wide = False
        self._count_levels()
        self._count_users()
        counted: set[int] = set()
        for position, demand in enumerate(self._demands):
            self._count_scratch(demand)
            for life_cycle in range(shared.num_life_cycles):
                number: i64 = 0
                for page in demand.pages[life_cycle]:
                    is_kept = number < demand.num_kept[life_cycle]
                    self._count_page(demand, self._holdings[position], life_cycle, page, is_kept, counted)
                    number += 1

    def find(self) -> FinishPlan:
        """The answer; for once, as the sequences that can finish are taken out of the counts."""
        order: list[int] = []
        waiting = list(range(len(self._demands)))
        spare = self._reach[:]
        refusal = self._find_overuse() if len(waiting) > 0 else None
        while refusal is None and len(waiting) > 0:
            left: list[int] = []
            names_too_wide = False
            for position in waiting:
                found = self._look(position, spare)
                if found is None:
                    order.append(position)
                    self._finish(position)
                    continue
                left.append(position)
                lacks_less = refusal is None or found.asked - found.free < refusal.asked - refusal.free
                if lacks_less if self._is_too_wide == names_too_wide else self._is_too_wide:
                    refusal = found
                    names_too_wide = self._is_too_wide
            if len(left) < len(waiting):
                refusal = None
            waiting = left
        return FinishPlan(tuple(order), refusal, tuple([0 if refusal is not None else int(count) for count in spare]))

    # -- counting ---------------------------------------------------------------------------------------------------------

    def _count_levels(self) -> None:
        storage = self._shared.storage
        for level in range(storage.num_levels):
            if level != GPU_LEVEL and level >= storage.closed.first:
                return
            for pool_group in range(storage.num_pool_groups):
                index = level * storage.num_pool_groups + pool_group
                held = storage.held_queues[index].num_pages
                self._held[pool_group] += held
                self._reach[pool_group] += storage.allocators[index].num_free + storage.queues[index].num_pages + held
                if level == GPU_LEVEL:
                    self._top_reach[pool_group] = self._reach[pool_group]

    def _count_users(self) -> None:
        listed: dict[int, int] = {}
        for demand in self._demands:
            for twin, uses in demand.num_twin_uses.items():
                self._twin_uses[twin] = self._twin_uses.get(twin, 0) + uses
            for page, count in demand.num_shared_uses.items():
                listed[page] = listed.get(page, 0) + count
                self._users[page] = self._users.get(page, 0) + 1
                if demand.state.status == ACTIVE:
                    self._locks[page] = self._locks.get(page, 0) + count
        for page, count in listed.items():
            if count_holds(self._shared, page) > count:
                self._users[page] += 1

    def _count_scratch(self, demand: FinishDemand) -> None:
        for beam in demand.beams:
            for life_cycle in range(self._shared.num_life_cycles):
                pool_group = self._shared.storage.pool_group_of[life_cycle]
                count: i64 = len(beam.scratch.slots[life_cycle])
                self._reach[pool_group] += count
                self._top_reach[pool_group] += count
                self._num_locked[pool_group] -= count

    def _count_page(self, demand: FinishDemand, holdings: _Holdings, life_cycle: i64, page: i64, is_kept: bool, counted: set[int]) -> None:
        storage = self._shared.storage
        pool_group = storage.pool_group_of[life_cycle]
        level = storage.rows.level(page)
        is_shared = count_holds(self._shared, page) > 1
        if is_shared and self._shared.claims.twin_pages is not None and int(page) not in self._with_twins:
            self._count_twins(page, pool_group)
        if is_shared and self._is_out_of_reach(page):
            if is_kept:
                holdings.num_outside_kept[pool_group] += 1
            return
        holdings.num_pages[pool_group] += 1
        if level != GPU_LEVEL and level >= storage.closed.first:
            holdings.num_stranded[pool_group] += 1
            return
        if is_kept:
            holdings.num_kept[pool_group] += 1
        if is_shared:
            holdings.shared[pool_group] = append(holdings.shared[pool_group], page)
            if not is_kept:
                holdings.loose[pool_group] = append(holdings.loose[pool_group], page)
                if not demand.is_written(page - life_cycle):
                    holdings.behind[pool_group] = append(holdings.behind[pool_group], page)
            if int(page) in counted:
                return
            counted.add(int(page))
        else:
            holdings.num_owned[pool_group] += 1
            if not is_kept:
                holdings.num_loose[pool_group] += 1
        if not storage.rows.is_queued(page):
            # Locked by listed sequences only, or held where there is nothing below.
            self._held[pool_group] += 1
            self._reach[pool_group] += 1
            if level == GPU_LEVEL:
                self._top_reach[pool_group] += 1
                if storage.rows.num_locks(page) > 0:
                    self._num_locked[pool_group] -= 1

    def _count_twins(self, page: i64, pool_group: i64) -> None:
        """Of a published page and its twins one is left while the listed sequences are suspended, or those that other sequences use, and
        leased twins: the slots of the rest are within reach."""
        self._with_twins.add(int(page))
        twin_pages = self._shared.claims.twin_pages
        assert twin_pages is not None, "a page has twins where indices move"
        rows = self._shared.storage.rows
        num_copies: i64 = 1
        num_used: i64 = 0
        num_leased: i64 = 0
        listed_locks = self._locks.get(int(page), 0)
        for twin in twin_pages.twins_of(page):
            num_copies += 1
            uses = self._twin_uses.get(twin, 0)
            listed_locks -= uses
            if twin_pages.count_users(twin) > uses:
                num_used += 1
            elif rows.num_locks(twin) > uses:
                num_leased += 1
        if rows.num_locks(page) > listed_locks:
            num_used += 1
        num_left = num_leased + (num_used if num_used > 0 else 1)
        self._reach[pool_group] += num_copies - num_left
        self._top_reach[pool_group] += num_copies - num_left
        self._num_locked[pool_group] -= num_copies - num_left

    def _is_out_of_reach(self, page: i64) -> bool:
        """Whether a lease or an active sequence outside the list has the page, which several hold, locked."""
        return int(count_locks(self._shared, page)) > self._locks.get(int(page), 0)

    def _find_overuse(self) -> Refusal | None:
        """Whether sequences outside the list lock so much that no other one is resumed beside them."""
        shared = self._shared
        for pool_group in range(shared.storage.num_pool_groups):
            locked = self._num_locked[pool_group]
            total = shared.storage.allocators[pool_group].num_slots
            if locked > shared.constraint_slots[pool_group] and total > 0 and float(locked) / float(total) > shared.max_util_for_resume:
                text = (
                    f"level 0, pool group {pool_group}: sequences outside the list and leases lock {locked} of {total} slots, more than "
                    f"max_util_for_resume={shared.max_util_for_resume} and the constraints allow to resume another sequence. Put active "
                    f"sequences on the list, or settle leases"
                )
                return Refusal(GPU_LEVEL, int(pool_group), 0, int(self._top_reach[pool_group]), 0, text)
        return None

    # -- one sequence, the ones before it finished --------------------------------------------------------------------------

    def _look(self, position: int, spare: vec[i64]) -> Refusal | None:
        """Why the sequence cannot finish now. Where it can, ``spare`` falls to the slots that are left on all levels at its widest."""
        self._is_too_wide = False
        demand = self._demands[position]
        holdings = self._holdings[position]
        num_pool_groups = self._shared.storage.num_pool_groups
        needed = vec[i64]([0] * num_pool_groups)
        copied = vec[i64]([0] * num_pool_groups)
        written = vec[i64]([0] * num_pool_groups)
        written_owned = vec[i64]([0] * num_pool_groups)
        self._add_resume_slots(demand, needed)
        if demand.remaining > 0:
            self._add_written(demand, copied, written, written_owned)
        left = vec[i64]([0] * num_pool_groups)
        for pool_group in range(num_pool_groups):
            # The copies of written blocks are made before the first step releases anything.
            top = holdings.num_pages[pool_group] + needed[pool_group] + copied[pool_group]
            total = self._held[pool_group] + needed[pool_group] + holdings.num_stranded[pool_group] + copied[pool_group]
            if demand.remaining > 0 and len(demand.beams) > 1:
                top += demand.widest[pool_group]
                total += demand.widest[pool_group]
            elif demand.remaining > 0:
                loose_owned = holdings.num_loose[pool_group] + self._count_owned(holdings.loose[pool_group])
                behind: i64 = len(holdings.behind[pool_group]) - self._count_owned(holdings.behind[pool_group])
                outside = holdings.num_outside_kept[pool_group]
                first = demand.first[pool_group] + written[pool_group]
                widest = demand.widest[pool_group] if demand.widest[pool_group] > first else first
                # A page behind the window that others hold counts as locked while the step is planned that releases it.
                top = _larger(top, widest - outside + behind)
                first = demand.first[pool_group] + written_owned[pool_group]
                widest = demand.widest[pool_group] if demand.widest[pool_group] > first else first
                total = _larger(total, self._held[pool_group] - loose_owned - holdings.num_kept[pool_group] + widest - outside)
            if top > self._top_reach[pool_group]:
                self._is_too_wide = True
                return self._describe(demand, GPU_LEVEL, pool_group, top, self._top_reach[pool_group])
            if total > self._reach[pool_group]:
                return self._describe(demand, self._shared.storage.last_level, pool_group, total, self._reach[pool_group])
            left[pool_group] = self._reach[pool_group] - total
        for pool_group in range(num_pool_groups):
            if left[pool_group] < spare[pool_group]:
                spare[pool_group] = left[pool_group]
        return None

    def _add_resume_slots(self, demand: FinishDemand, needed: vec[i64]) -> None:
        """Scratch slots, recurrent state before the first resume, and a copy of a matched tail that others have."""
        for beam in demand.beams:
            add_needed_slots(beam.scratch, needed)
            add_needed_state_slots(beam, needed)
            if beam.tail.copies_on_resume and not is_tail_its_own(beam, self._num_released, self._num_left):
                for life_cycle in range(self._shared.num_life_cycles):
                    if beam.holds_page(life_cycle, beam.num_published):
                        needed[self._shared.storage.pool_group_of[life_cycle]] += 1

    def _add_written(self, demand: FinishDemand, copied: vec[i64], written: vec[i64], written_owned: vec[i64]) -> None:
        """Pages of shared blocks that the first step copies before it releases any; ``written``: those within reach; ``written_owned``:
        those that only the sequence holds.

        Of one sequence the copy is among the widest; of beams it is one page more, wherever the shared page is.
        """
        storage = self._shared.storage
        ordinal = demand.written_block
        for number, beam in enumerate(demand.beams):
            if ordinal >= beam.num_blocks or beam.tail.copies_on_resume or not self._is_copied(demand, number, ordinal):
                continue
            for life_cycle in range(self._shared.num_life_cycles):
                if beam.holds_page(life_cycle, ordinal):
                    page = beam.blocks[ordinal].first_page + life_cycle
                    copied[storage.pool_group_of[life_cycle]] += 1
                    if len(demand.beams) == 1 and int(page) in self._users and self._is_out_of_reach(page):
                        continue
                    written[storage.pool_group_of[life_cycle]] += 1
                    if self._users.get(int(page), 1) == 1:
                        written_owned[storage.pool_group_of[life_cycle]] += 1

    def _is_copied(self, demand: FinishDemand, number: int, ordinal: i64) -> bool:
        """Whether beam ``number`` shares the block with others, once the beams before it have copied it."""
        beam = demand.beams[number]
        block = beam.blocks[ordinal]
        if beam.tail.is_shared and ordinal == beam.num_published:
            return len(demand.beams) > 1 or not is_tail_its_own(beam, self._num_released, self._num_left)
        num_gone = self._num_left.get(int(block.first_page), 0)
        for earlier in demand.beams[:number]:
            if earlier.blocks[ordinal] is block:
                num_gone += 1
        return block.parent is not None or int(block.num_co_owners) > num_gone

    def _count_owned(self, pages: vec[i64]) -> i64:
        """Of pages that several held at first, those that only one sequence holds by now."""
        count: i64 = 0
        for page in pages:
            if self._users[int(page)] == 1:
                count += 1
        return count

    def _finish(self, position: int) -> None:
        demand = self._demands[position]
        holdings = self._holdings[position]
        for pool_group in range(self._shared.storage.num_pool_groups):
            self._held[pool_group] -= holdings.num_owned[pool_group] + self._count_owned(holdings.shared[pool_group])
        for page, count in demand.num_shared_uses.items():
            self._users[page] -= 1
            self._num_released[page] = self._num_released.get(page, 0) + count
        for beam in demand.beams:
            for ordinal in range(beam.num_published, beam.num_blocks):
                first_page = int(beam.blocks[ordinal].first_page)
                self._num_left[first_page] = self._num_left.get(first_page, 0) + 1

    def _describe(self, demand: FinishDemand, level: i64, pool_group: i64, asked: i64, reach: i64) -> Refusal:
        state = demand.state
        where = "level 0" if level == GPU_LEVEL else f"levels 0 to {level}"
        grown = f"sequence {state.id}, grown by {demand.remaining} tokens to {state.capacity + demand.remaining},"
        if level == GPU_LEVEL and asked > self._held[pool_group]:
            way_out = "Take smaller steps, settle leases, or enlarge the GPU tier's quota"
        else:
            way_out = "Close sequences, or enlarge the quota of a tier"
        text = (
            f"{where}, pool group {pool_group}: {grown} and what must be kept meanwhile take {asked} slots, and {reach} are within reach. "
            f"{way_out}"
        )
        return Refusal(int(level), int(pool_group), int(asked), int(reach), 0, text)


def _larger(first: i64, second: i64) -> i64:
    return first if first > second else second


def find_easy_plan(shared: SharedState, states: list[SequenceState], remaining: vec[i64]) -> FinishPlan | None:
    """The plan where free slots and those of droppable pages suffice for all listed sequences side by side; None elsewhere.

    A sequence takes no more than its new blocks, copies of blocks that forks share, of its tail, and what is below level 0 of a suspended
    one. Whatever else the sequences take before, the widest one must have room: the rest are spare slots.
    """
    storage = shared.storage
    if len(states) == 0 or shared.claims.twin_pages is not None or storage.closed.first < storage.num_levels:
        return None
    num_pool_groups = storage.num_pool_groups
    pages_per_block = vec[i64]([0] * num_pool_groups)
    for life_cycle in range(shared.num_life_cycles):
        pages_per_block[storage.pool_group_of[life_cycle]] += 1
    total = vec[i64]([0] * num_pool_groups)
    widest = vec[i64]([0] * num_pool_groups)
    for position, state in enumerate(states):
        if state.scratch.is_enabled or len(state.sharing.beams) > 0:
            return None
        num_blocks = (state.capacity + remaining[position] + shared.tokens_per_block - 1) // shared.tokens_per_block - state.num_blocks + 1
        if state.forked_end > state.num_published:
            num_blocks += state.forked_end - state.num_published
        if state.status != ACTIVE:
            num_blocks += state.num_blocks + shared.recurrent.num_state_slots
        for pool_group in range(num_pool_groups):
            count = num_blocks * pages_per_block[pool_group]
            total[pool_group] += count
            widest[pool_group] = _larger(widest[pool_group], count)
    spare: list[int] = []
    for pool_group in range(num_pool_groups):
        num_slots = storage.allocators[pool_group].num_slots
        room = storage.allocators[pool_group].num_free + storage.queues[pool_group].num_pages
        is_overused = float(storage.num_locked[pool_group]) > shared.max_util_for_resume * float(num_slots)
        if total[pool_group] > room or is_overused:
            return None
        spare.append(int(room + shared.traffic.room_count.count_room_below(GPU_LEVEL, pool_group) - widest[pool_group]))
    return FinishPlan(tuple(range(len(states))), None, tuple(spare))
