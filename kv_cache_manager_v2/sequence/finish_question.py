"""A finish question: whether open sequences can be resumed one after the other, each grown and closed, the others suspended meanwhile.

Asking changes nothing. It is arithmetic over sequences, whatever their lengths. Per pool group, as `RoomCount` will count:

    on level 0       pages that the sequence has, and its growth              <=  slots of level 0 that sequences outside do not lock
    on all levels    pages of all that have not finished, and its growth      <=  slots of all open levels

A sequence that finishes only frees slots, so the first of the list that can finish goes first: if these sums allow an order, this finds
one. What is freed: blocks that no other sequence has are the end of its path, and a *stretch* of blocks that the same sequences have is
free once the last of them has finished; both ends are found by halves, as of a path no block has more owners than the one before it.

The sums are upper bounds where pages are leased or out of reach on a closed level, windows move on, beams write, or twins are used: the
answer may be no where there is an order, never yes where there is none.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.ids import GPU_LEVEL
from ..storage.refusal import Refusal
from .beams import list_beams
from .finish_plan import FinishPlan
from .published_tail import is_tail_its_own
from .recurrent_state import add_needed_state_slots
from .resize_plan import add_slots
from .scratch import add_needed_slots
from .sequence_state import ACTIVE, SequenceState
from .shared_state import NEVER, UNBOUNDED, SharedState


@final
class _Stretch:
    """Blocks one behind the other that the same sequences have."""

    __slots__ = ("pages", "num_holds", "num_locks", "num_listed", "num_active", "num_left")

    def __init__(self, pages: vec[i64], num_holds: i64, num_locks: i64) -> None:
        self.pages: Final = pages
        """Slots, per pool group."""
        self.num_holds: Final = num_holds
        self.num_locks: Final = num_locks
        self.num_listed: i64 = 0
        """Listed sequences and their beams among the holders."""
        self.num_active: i64 = 0
        """Of these, the active ones."""
        self.num_left = num_holds
        """Holders that have not finished."""


@final
class _Part:
    """One listed sequence with its beams. Slots are per pool group."""

    __slots__ = ("state", "remaining", "pages", "alone", "growth", "stretches")

    def __init__(self, state: SequenceState, remaining: i64) -> None:
        nothing = vec[i64]([0] * state.shared.storage.num_pool_groups)
        self.state: Final = state
        self.remaining: Final = remaining
        self.pages: vec[i64] = nothing
        """Pages that it has, those of stretches not counted."""
        self.alone: vec[i64] = nothing[:]
        """Of these, pages that no other sequence has."""
        self.growth: vec[i64] = nothing[:]
        """The most that it takes besides, at once."""
        self.stretches = vec[i64]()
        """By beam, keys of its stretches."""


@final
class FinishQuestion:
    """One question about the sequences of a list, which the caller has validated."""

    __slots__ = ("_shared", "_parts", "_stretches", "_full", "_full_pages", "_freed", "_closed", "_in_doubt", "_room", "_top_room")

    def __init__(self, shared: SharedState, states: list[SequenceState], remaining: vec[i64], max_step: i64) -> None:
        storage = shared.storage
        self._shared: Final = shared
        self._parts: Final[list[_Part]] = [_Part(state, remaining[position]) for position, state in enumerate(states)]
        self._stretches: Final[dict[int, _Stretch]] = {}
        """By first page of the last block."""
        self._full: i64 = -1
        """A life cycle with a page for each block, as long as the sequence lasts; -1 if there is none."""
        self._full_pages: Final = vec[i64]([0] * storage.num_pool_groups)
        """Per pool group, such pages of a block."""
        self._freed: vec[i64] = self._full_pages[:]
        """Slots that sequences which have finished have freed."""
        self._closed: Final[vec[i64]] = self._full_pages[:]
        """Slots of closed levels that are in use."""
        self._in_doubt: Final[vec[i64]] = self._full_pages[:]
        """These, and leased slots: they may be among those that sequences seem to free."""
        self._room: Final[vec[i64]] = self._full_pages[:]
        """Free and droppable slots on all open levels, and scratch slots of the list."""
        self._top_room: Final[vec[i64]] = self._full_pages[:]
        """Slots of level 0 that are not locked by sequences outside the list."""
        for life_cycle in range(shared.num_life_cycles):
            if shared.windows.sizes[life_cycle] == UNBOUNDED and shared.windows.least_begins[life_cycle] != NEVER:
                self._full = life_cycle
                self._full_pages[storage.pool_group_of[life_cycle]] += 1
        for part in self._parts:
            for beam in list_beams(part.state):
                self._count_beam(part, beam, min(part.remaining, max_step))
        self._count_levels()

    def find(self) -> FinishPlan:
        """The answer; for once, as the sequences that can finish are taken out of the counts."""
        order: list[int] = []
        waiting = list(range(len(self._parts)))
        spare = self._room[:] if len(waiting) == 0 else vec[i64]([NEVER] * len(self._room))
        refusal = self._find_overuse() if len(waiting) > 0 else None
        while refusal is None and len(waiting) > 0:
            left: list[int] = []
            least: i64 = NEVER
            for position in waiting:
                lack, found = self._look(self._parts[position], spare)
                if found is None:
                    order.append(position)
                    self._finish(self._parts[position])
                else:
                    left.append(position)
                    if lack < least:
                        least = lack
                        refusal = found
            if len(left) < len(waiting):
                refusal = None
            waiting = left
        return FinishPlan(tuple(order), refusal, tuple([0 if refusal is not None else int(count) for count in spare]))

    # -- counting ---------------------------------------------------------------------------------------------------------

    def _count_beam(self, part: _Part, state: SequenceState, step: i64) -> None:
        shared = self._shared
        windows = shared.windows
        pool_group_of = shared.storage.pool_group_of
        size = shared.tokens_per_block
        num_new = max((state.capacity + part.remaining + size - 1) // size - state.num_blocks, 0)
        own_begin = self._find_own_begin(part, state)
        for life_cycle in range(shared.num_life_cycles):
            if windows.least_begins[life_cycle] == NEVER:
                continue
            pool_group = pool_group_of[life_cycle]
            window = windows.sizes[life_cycle]
            begin = state.window_begins[life_cycle]
            alone = windows.count_new_pages(life_cycle, own_begin, state.num_blocks, begin)
            grown = num_new
            if window == UNBOUNDED:
                part.pages[pool_group] += alone
            else:
                if self._full < 0:
                    for ordinal in range(begin, own_begin):
                        if self._count_users(state.blocks[ordinal].first_page + life_cycle)[0] == 1:
                            alone += 1
                alone -= state.scratch.ends[life_cycle] - state.scratch.begins[life_cycle]
                part.pages[pool_group] += windows.count_new_pages(life_cycle, 0, state.num_blocks, begin)
                widest = windows.num_sink_blocks[life_cycle] + (window + step + size - 1) // size + 1
                if not state.has_beams:
                    grown = max(min(grown, widest - alone), 0)
                if state.scratch.is_enabled:
                    grown += 1
            if alone > 0:
                part.alone[pool_group] += alone
            part.growth[pool_group] += grown
        self._count_copies(part, state)
        add_needed_slots(state.scratch, part.growth)
        add_needed_state_slots(state, part.growth)
        if shared.has_state:
            pool_group = pool_group_of[shared.state_life_cycle]
            part.alone[pool_group] += len(state.recurrent.state_blocks)
            part.pages[pool_group] += len(state.recurrent.state_blocks)
            if state.recurrent.matched_snapshot is not None:
                part.pages[pool_group] += 1

    def _find_own_begin(self, part: _Part, state: SequenceState) -> i64:
        """The first block from which on the sequence is the only one; before it lie its stretches, which are counted."""
        num_blocks = state.num_blocks
        if self._full < 0:
            has_planned = state.sharing.planned is not None
            return num_blocks if has_planned else min(num_blocks, max(state.num_published, state.forked_end))
        begin: i64 = 0
        while begin < num_blocks:
            first = state.blocks[begin].first_page + self._full
            num_holds, num_locks = self._count_users(first)
            if num_holds <= 1:
                return begin
            end = begin + 1
            last = num_blocks
            while end < last:
                middle = (end + last) // 2
                if self._count_users(state.blocks[middle].first_page + self._full)[0] < num_holds:
                    last = middle
                else:
                    end = middle + 1
            key = state.blocks[end - 1].first_page
            stretch = self._stretches.get(int(key))
            if stretch is None:
                pages = vec[i64]([count * (end - begin) for count in self._full_pages])
                if self._shared.claims.num_windowed > 0:
                    # Behind a residency window others are not locked.
                    num_locks = 0
                stretch = self._stretches[int(key)] = _Stretch(pages, num_holds, num_locks)
            stretch.num_listed += 1
            if state.status == ACTIVE:
                stretch.num_active += 1
            part.stretches = append(part.stretches, key)
            begin = end
        return num_blocks

    def _count_users(self, page: i64) -> tuple[i64, i64]:
        """Sequences that hold the page, and that lock it. Those that use its twins do both: suspended, they have the published page."""
        claims, rows = self._shared.claims, self._shared.storage.rows
        num_twin_users: i64 = 0 if claims.twin_pages is None else claims.twin_pages.count_users(page)
        return rows.num_holds(page) + num_twin_users, rows.num_locks(page) + num_twin_users

    def _count_copies(self, part: _Part, state: SequenceState) -> None:
        """A shared block that the first step writes, or a matched tail at the resume, is copied before anything is released."""
        ordinal = state.capacity // self._shared.tokens_per_block
        if state.tail.copies_on_resume:
            ordinal = state.num_published
        elif part.remaining == 0:
            return
        if ordinal >= state.num_blocks:
            return
        block = state.blocks[ordinal]
        is_tail = ordinal == state.num_published and state.tail.is_published
        if (block.parent is None and block.num_co_owners == 0) or (is_tail and not state.has_beams and is_tail_its_own(state)):
            return
        for life_cycle in range(self._shared.num_life_cycles):
            if state.holds_page(life_cycle, ordinal):
                part.growth[self._shared.storage.pool_group_of[life_cycle]] += 1

    def _count_levels(self) -> None:
        """Room now, with what is locked by listed sequences alone, and with their scratch slots."""
        storage = self._shared.storage
        if storage.closed.has_disks:
            storage.closed.look()
        num_pool_groups = storage.num_pool_groups
        for index in range(storage.num_levels * num_pool_groups):
            room = storage.allocators[index].num_free + storage.queues[index].num_pages
            if index < storage.closed.first * num_pool_groups:
                self._room[index % num_pool_groups] += room
            else:
                self._closed[index % num_pool_groups] += storage.allocators[index].num_slots - room
                self._in_doubt[index % num_pool_groups] += storage.allocators[index].num_slots - room
        for lease in self._shared.claims.leases.open_leases():
            for life_cycle, pages in enumerate(lease.pages):
                self._in_doubt[storage.pool_group_of[life_cycle]] += len(pages)
        locked = vec[i64]([0] * num_pool_groups)
        for part in self._parts:
            if part.state.status == ACTIVE:
                locked = add_slots(locked, part.alone)
        for stretch in self._stretches.values():
            if stretch.num_listed == stretch.num_holds and stretch.num_active > 0:
                locked = add_slots(locked, stretch.pages)
        locked = self._certain(locked)
        for part in self._parts:
            for beam in list_beams(part.state):
                for life_cycle, slots in enumerate(beam.scratch.slots):
                    self._room[storage.pool_group_of[life_cycle]] += len(slots)
                    locked[storage.pool_group_of[life_cycle]] += len(slots)
        for pool_group in range(num_pool_groups):
            self._top_room[pool_group] = storage.allocators[pool_group].num_slots - storage.num_locked[pool_group] + locked[pool_group]

    def _certain(self, counts: vec[i64]) -> vec[i64]:
        """Without those in doubt."""
        return vec[i64]([max(counts[index] - self._in_doubt[index], 0) for index in range(len(counts))])

    def _find_overuse(self) -> Refusal | None:
        """Whether sequences outside the list lock so much that no other one is resumed beside them."""
        shared = self._shared
        for pool_group in range(shared.storage.num_pool_groups):
            total = shared.storage.allocators[pool_group].num_slots
            locked = total - self._top_room[pool_group]
            if shared.is_overused(pool_group, locked):
                text = (
                    f"level 0, pool group {pool_group}: sequences outside the list and leases lock {locked} of {total} slots, more than "
                    f"max_util_for_resume={shared.max_util_for_resume} and the constraints allow to resume another sequence. Put active "
                    f"sequences on the list, or settle leases"
                )
                return Refusal(GPU_LEVEL, int(pool_group), 0, int(self._top_room[pool_group]), 0, text)
        return None

    # -- one sequence, the ones before it finished --------------------------------------------------------------------------

    def _look(self, part: _Part, spare: vec[i64]) -> tuple[i64, Refusal | None]:
        """How many slots the sequence lacks to finish now, negative where it does even alone, and why. Where it can finish, ``spare``
        falls to the slots that are left on all levels at its widest."""
        storage = self._shared.storage
        top = add_slots(part.pages, part.growth)
        for key in dict.fromkeys([int(key) for key in part.stretches]):
            stretch = self._stretches[key]
            # What a sequence outside has locked is there.
            if stretch.num_locks <= stretch.num_active:
                top = add_slots(top, stretch.pages)
        left = add_slots(self._room, self._certain(self._freed))
        for pool_group in range(len(top)):
            room = self._top_room[pool_group]
            if top[pool_group] > room:
                way_out = "Take smaller steps, settle leases, or enlarge the GPU tier's quota"
                return top[pool_group] - room - NEVER, self._describe(part, GPU_LEVEL, pool_group, top[pool_group], room, way_out)
            # Its pages on closed levels are onboarded, and none goes back.
            left[pool_group] -= part.growth[pool_group] + min(top[pool_group] - part.growth[pool_group], self._closed[pool_group])
            lack = -left[pool_group]
            if lack > 0:
                open_ones = storage.allocators[pool_group : storage.closed.first * storage.num_pool_groups : storage.num_pool_groups]
                total = sum([int(allocator.num_slots) for allocator in open_ones])
                way_out = "Close sequences, or enlarge the quota of a tier"
                return lack, self._describe(part, storage.last_level, pool_group, total + lack, total, way_out)
        for pool_group in range(len(top)):
            spare[pool_group] = min(spare[pool_group], left[pool_group])
        return 0, None

    def _finish(self, part: _Part) -> None:
        self._freed = add_slots(self._freed, part.alone)
        for key in part.stretches:
            stretch = self._stretches[int(key)]
            stretch.num_left -= 1
            if stretch.num_left == 0:
                self._freed = add_slots(self._freed, stretch.pages)

    def _describe(self, part: _Part, level: i64, pool_group: i64, asked: i64, room: i64, way_out: str) -> Refusal:
        state = part.state
        where = "level 0" if level == GPU_LEVEL else f"levels 0 to {level}"
        text = (
            f"{where}, pool group {pool_group}: sequence {state.id}, grown by {part.remaining} tokens to "
            f"{state.capacity + part.remaining}, and what must be kept meanwhile take {asked} slots, and {room} are within reach. {way_out}"
        )
        return Refusal(int(level), int(pool_group), int(asked), int(room), 0, text)
