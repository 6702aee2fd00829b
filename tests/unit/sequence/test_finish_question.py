"""`can_finish` beside the rules of `finish_question` over sets of pages: its order, its spare slots, and what it says is missing.

What managers then do is compared in `tests/property/test_finish_orders_exist.py`; a windowed or forked world may answer no where that
is not needed, and there only these rules say how much it counts.
"""

from collections import Counter
from random import Random

import pytest
from librt.vecs import vec
from mypy_extensions import i64
from property.test_finish_orders_exist import World
from refused_work import Refused
from small_models import manager_of, run_prompt
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config
from unit.sequence.test_finish_demand import PlainDemand

from kv_cache_manager_v2 import FinishPlan, KVCache, KVCacheManager
from kv_cache_manager_v2.sequence.finish_question import find_easy_plan
from kv_cache_manager_v2.sequence.published_tail import is_tail_its_own
from kv_cache_manager_v2.sequence.sequence_state import ACTIVE, SequenceState
from kv_cache_manager_v2.sequence.shared_state import SharedState
from kv_cache_manager_v2.testing import SimulatedDevice

Lack = tuple[int, int, int, int]
"""Level, pool group, slots asked for, slots within reach."""


class Member:
    """One listed sequence. Pages have a pool group and a level."""

    def __init__(self, state: SequenceState, remaining: int, max_step: int) -> None:
        self.state = state
        self.beams = [state, *state.sharing.beams]
        self.remaining = remaining
        self.plain = PlainDemand(state, remaining, max_step)
        self.uses: Counter[int] = Counter()
        self.kept: set[int] = set()
        self.cycle_of: dict[int, int] = {}
        self.written_block = int(state.capacity) // self.plain.size
        for beam in self.beams:
            self._list(beam)

    def _list(self, beam: SequenceState) -> None:
        shared = beam.shared
        for number, life_cycle in enumerate(shared.life_cycles):
            if not life_cycle.has_page_per_block:
                continue
            for block in range(int(beam.num_blocks)):
                if beam.holds_page(number, block):
                    page = int(beam.blocks[block].first_page) + number
                    self.uses[page] += 1
                    self.cycle_of[page] = number
                    is_for_ever = life_cycle.window_size is None or block < life_cycle.num_sink_blocks
                    if len(self.beams) == 1 and is_for_ever and block < self.written_block:
                        self.kept.add(page)
        blocks = list(beam.recurrent.state_blocks) + ([] if beam.recurrent.matched_snapshot is None else [beam.recurrent.matched_snapshot])
        for state_block in blocks:
            page = int(state_block.first_page + shared.state_life_cycle)
            self.uses[page] += 1
            self.cycle_of[page] = int(shared.state_life_cycle)

    def is_written(self, page: int) -> bool:
        if self.written_block >= int(self.state.num_blocks):
            return False
        return page - self.cycle_of[page] == int(self.state.blocks[self.written_block].first_page)


class PlainQuestion:
    def __init__(self, shared: SharedState, members: list[Member]) -> None:
        self.shared = shared
        self.storage = shared.storage
        self.members = members
        self.num_groups = int(self.storage.num_pool_groups)
        rows = self.storage.rows
        self.holds: dict[int, int] = {}
        listed_locks: Counter[int] = Counter()
        self.users: Counter[int] = Counter()
        self.released: Counter[int] = Counter()
        self.left: Counter[int] = Counter()
        listed_holds: Counter[int] = Counter()
        for member in members:
            for page, count in member.uses.items():
                self.holds[page] = int(rows.num_holds(page))
                listed_holds[page] += count
                self.users[page] += 1
                listed_locks[page] += count if member.state.status == ACTIVE else 0
        self.out = {page for page, holds in self.holds.items() if holds > 1 and int(rows.num_locks(page)) > listed_locks[page]}
        for page, holds in self.holds.items():
            self.users[page] += int(holds > listed_holds[page])
        self._count_levels()

    def group_of(self, member: Member, page: int) -> int:
        return int(self.storage.pool_group_of[member.cycle_of[page]])

    def is_stranded(self, page: int) -> bool:
        level = int(self.storage.rows.level(page))
        return level > 0 and level >= int(self.storage.closed.first)

    def _count_levels(self) -> None:
        storage = self.storage
        self.reach = [0] * self.num_groups
        self.top_reach = [0] * self.num_groups
        self.held = [0] * self.num_groups
        self.locked = [int(count) for count in storage.num_locked]
        for level in range(int(storage.num_levels)):
            if level > 0 and level >= int(storage.closed.first):
                break
            for group in range(self.num_groups):
                index = level * self.num_groups + group
                held = int(storage.held_queues[index].num_pages)
                within = int(storage.allocators[index].num_free) + int(storage.queues[index].num_pages) + held
                self.held[group] += held
                self.reach[group] += within
                self.top_reach[group] += within if level == 0 else 0
        counted: set[int] = set()
        for member in self.members:
            for beam in member.beams:
                for number, slots in enumerate(beam.scratch.slots):
                    group = int(storage.pool_group_of[number])
                    self.reach[group] += len(slots)
                    self.top_reach[group] += len(slots)
                    self.locked[group] -= len(slots)
            for page in member.uses:
                if page in self.out or page in counted or self.is_stranded(page) or storage.rows.is_queued(page):
                    continue
                counted.add(page)
                group = self.group_of(member, page)
                self.held[group] += 1
                self.reach[group] += 1
                if storage.rows.level(page) == 0:
                    self.top_reach[group] += 1
                    self.locked[group] -= int(storage.rows.num_locks(page) > 0)

    # -- one sequence -----------------------------------------------------------------------------------------------------

    def resume_slots(self, member: Member) -> list[int]:
        shared = self.shared
        needed = [0] * self.num_groups
        for beam in member.beams:
            for number in range(int(shared.num_life_cycles)):
                num_blocks = int(beam.scratch.ends[number] - beam.scratch.begins[number])
                if num_blocks > 0:
                    needed[int(self.storage.pool_group_of[number])] += self.storage.layout.compute_num_scratch_slots(number, num_blocks)
            if shared.has_state and not beam.recurrent.state_blocks:
                needed[int(self.storage.pool_group_of[shared.state_life_cycle])] += int(shared.recurrent.num_state_slots)
            if beam.tail.copies_on_resume and not is_tail_its_own(beam, dict(self.released), dict(self.left)):
                for number in range(int(shared.num_life_cycles)):
                    if beam.holds_page(number, beam.num_published):
                        needed[int(self.storage.pool_group_of[number])] += 1
        return needed

    def written(self, member: Member) -> tuple[list[int], list[int]]:
        """Pages that the first step copies, and of these the sequence's alone."""
        all_pages = [0] * self.num_groups
        owned = [0] * self.num_groups
        if member.remaining == 0:
            return all_pages, owned
        ordinal = member.written_block
        for number, beam in enumerate(member.beams):
            if ordinal >= beam.num_blocks or beam.tail.copies_on_resume or not self.is_copied(member, number, ordinal):
                continue
            for life_cycle in range(int(self.shared.num_life_cycles)):
                if not beam.holds_page(life_cycle, ordinal):
                    continue
                page = int(beam.blocks[ordinal].first_page) + life_cycle
                if len(member.beams) == 1 and page in self.out:
                    continue
                group = self.group_of(member, page)
                all_pages[group] += 1
                owned[group] += int(self.users[page] == 1)
        return all_pages, owned

    def is_copied(self, member: Member, number: int, ordinal: int) -> bool:
        beam = member.beams[number]
        block = beam.blocks[ordinal]
        if beam.tail.is_shared and ordinal == beam.num_published:
            return len(member.beams) > 1 or not is_tail_its_own(beam, dict(self.released), dict(self.left))
        gone = self.left[int(block.first_page)] + sum(other.blocks[ordinal] is block for other in member.beams[:number])
        return block.parent is not None or int(block.num_co_owners) > gone

    def look(self, member: Member) -> tuple[Lack | None, list[int], bool]:
        """What it lacks, or what is left at its widest; whether that is more than level 0 has."""
        needed = self.resume_slots(member)
        written, written_owned = self.written(member)
        left = []
        for group in range(self.num_groups):
            within = [page for page in member.uses if page not in self.out and self.group_of(member, page) == group]
            stranded = [page for page in within if self.is_stranded(page)]
            present = [page for page in within if not self.is_stranded(page)]
            loose = [page for page in present if page not in member.kept]
            top = len(within) + needed[group]
            total = self.held[group] + needed[group] + len(stranded)
            if member.remaining > 0 and len(member.beams) > 1:
                top += written[group] + member.plain.widest()[group]
                total += written[group] + member.plain.widest()[group]
            elif member.remaining > 0:
                first, widest = member.plain.first()[group], member.plain.widest()[group]
                others = [page for page in loose if self.holds[page] > 1 and self.users[page] > 1]
                behind = [page for page in others if not member.is_written(page)]
                outside = [page for page in member.kept if page in self.out and self.group_of(member, page) == group]
                kept = [page for page in present if page in member.kept]
                alone = len(loose) - len(others)
                top = max(top, max(widest, first + written[group]) - len(outside) + len(behind))
                most = max(widest, first + written_owned[group]) - len(outside)
                total = max(total, self.held[group] - alone - len(kept) + most)
            if top > self.top_reach[group]:
                return (0, group, top, self.top_reach[group]), [], True
            if total > self.reach[group]:
                return (int(self.storage.last_level), group, total, self.reach[group]), [], False
            left.append(self.reach[group] - total)
        return None, left, False

    def finish(self, member: Member) -> None:
        for page in member.uses:
            if page not in self.out and not self.is_stranded(page) and self.users[page] == 1:
                self.held[self.group_of(member, page)] -= 1
        for page, count in member.uses.items():
            if self.holds[page] > 1:
                self.users[page] -= 1
                self.released[page] += count
        for beam in member.beams:
            for ordinal in range(int(beam.num_published), int(beam.num_blocks)):
                self.left[int(beam.blocks[ordinal].first_page)] += 1

    def answer(self) -> tuple[list[int], Lack | None, list[int]]:
        order: list[int] = []
        spare = list(self.reach)
        for group in range(self.num_groups):
            total = int(self.storage.allocators[group].num_slots)
            share = self.locked[group] / total
            if self.locked[group] > int(self.shared.constraint_slots[group]) and share > self.shared.max_util_for_resume:
                return [], (0, group, 0, self.top_reach[group]), [0] * self.num_groups
        waiting = list(range(len(self.members)))
        while waiting:
            lacks: list[tuple[bool, int, int, Lack]] = []
            stays: list[int] = []
            for position in waiting:
                lack, left, is_too_wide = self.look(self.members[position])
                if lack is None:
                    order.append(position)
                    self.finish(self.members[position])
                    spare = [min(pair) for pair in zip(spare, left, strict=True)]
                else:
                    stays.append(position)
                    lacks.append((not is_too_wide, lack[2] - lack[3], position, lack))
            if len(stays) == len(waiting):
                # One that is too wide for level 0 comes first, then the one that lacks least.
                return order, min(lacks)[3], [0] * self.num_groups
            waiting = stays
        return order, None, spare


def compare(manager: KVCacheManager, listed: list[KVCache], remaining: list[int], max_step: int) -> FinishPlan:
    plan = manager.can_finish(listed, remaining, max_step)
    members = [Member(kv_cache._state_for_batch(), count, max_step) for kv_cache, count in zip(listed, remaining, strict=True)]
    order, lack, spare = PlainQuestion(manager._shared, members).answer()
    found = plan.refusal
    assert list(plan.order) == order
    assert (None if found is None else (found.level, found.pool_group, found.asked, found.free)) == lack
    if list(plan.spare_slots) != spare:
        # No order had to be looked for, and not all that is spare was counted.
        assert find_easy_plan(manager._shared, [kv_cache._state_for_batch() for kv_cache in listed], vec[i64](list(remaining))) == plan
        assert all(easy <= exact for easy, exact in zip(plan.spare_slots, spare, strict=True))
    return plan


@pytest.mark.parametrize("seeds", [range(first, first + 40) for first in range(5000, 5160, 40)], ids=str)
def test_answers_follow_the_rules(seeds: range) -> None:
    for seed in seeds:
        world = World(seed)
        random = Random(seed)
        compare(world.manager, world.listed, world.remaining, world.max_step)
        remaining = [random.choice((0, 1, 2, 5, 12)) for _ in world.listed]
        for kv_cache in world.listed:
            if kv_cache.is_active and random.random() < 0.6:
                kv_cache.suspend()
        compare(world.manager, world.listed, remaining, random.choice((1, 2, 4, 8, 40)))
        world.close()


def test_both_answers_and_all_kinds_of_lacks_occur() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(5000, 5080):
        world = World(seed)
        plan = compare(world.manager, world.listed, world.remaining, world.max_step)
        refusal = plan.refusal
        if refusal is None:
            kinds["yes"] += 1
        else:
            kinds["overuse" if refusal.asked == 0 else "level 0" if refusal.text.startswith("level 0") else "all levels"] += 1
            kinds["some finish"] += int(len(plan.order) > 0)
        world.close()
    assert min(kinds[kind] for kind in ("yes", "overuse", "level 0", "all levels", "some finish")) > 2, kinds


@pytest.mark.parametrize("is_active", [False, True])
@pytest.mark.parametrize("num_forks", [1, 2])
@pytest.mark.parametrize("windows", [[None], [None, 6], [None, 6, 14]])
def test_forks_of_a_published_tail_copy_it_but_for_the_last(windows: list[int | None], num_forks: int, is_active: bool) -> None:
    """Six tokens are a block and a published part of one; the last of the sequences to finish writes into it in place."""
    answers = set()
    for num_slots in range(2 * len(windows), 7 * len(windows)):
        with manager_of(windows, num_slots=num_slots, max_util_for_resume=1.0) as manager:
            listed = [run_prompt(manager, list(range(6)))]
            listed[0].stop_committing()
            listed += [listed[0].fork() for _ in range(num_forks)]
            if not is_active:
                for kv_cache in listed:
                    kv_cache.suspend()
            answers.add(bool(compare(manager, listed, [1] * len(listed), 1)))
            compare(manager, listed, [9] * len(listed), 5)
            compare(manager, listed[:-1], [1] * num_forks, 1)
            # All but the last only come and go: it alone may need a slot for a copy.
            compare(manager, listed, [0] * num_forks + [1], 1)
            for kv_cache in listed:
                kv_cache.close()
    assert answers == {False, True}


@pytest.mark.parametrize("windows", [[None], [None, 6]])
def test_matched_tails_are_copied_but_for_the_last(windows: list[int | None]) -> None:
    """Six tokens are a block and a published part of one, which two new sequences match; each copies it as it is resumed, the last one
    where there is no room takes it out of the tree."""
    answers = set()
    # With fewer than three pages a layer there is no room for a copy beside the match, and the match would be shorter.
    for num_slots in range(3 * len(windows), 7 * len(windows)):
        with manager_of(windows, num_slots=num_slots, max_util_for_resume=1.0) as manager:
            run_prompt(manager, list(range(6))).close()
            listed = [manager.create_kv_cache(input_tokens=[*range(6), 100 + number]) for number in range(2)]
            assert [one.num_committed_tokens for one in listed] == [6, 6]
            answers.add(bool(compare(manager, listed, [1, 1], 1)))
            compare(manager, listed, [0, 0], 1)
            answers.add(bool(compare(manager, listed, [9, 0], 4)))
            for kv_cache in listed:
                kv_cache.close()
        with manager_of(windows, num_slots=num_slots, max_util_for_resume=1.0) as manager:
            # The publisher goes on in its tail, and needs no copy for that as long as it only comes and goes.
            listed = [run_prompt(manager, list(range(6)))]
            listed[0].stop_committing()
            listed[0].suspend()
            listed.append(manager.create_kv_cache(input_tokens=[*range(6), 100]))
            compare(manager, listed, [0, 0], 1)
            compare(manager, listed, [0, 1], 1)
            for kv_cache in listed:
                kv_cache.close()
    assert answers == {False, True}


@pytest.mark.parametrize("num_held", range(1, 5))
def test_beams_copy_a_block_that_they_share(num_held: int) -> None:
    """Two and three beams in the block that the next step writes, which a fork may hold too."""
    for num_slots in range(4, 12):
        with manager_of(num_slots=num_slots, max_util_for_resume=1.0) as manager:
            kv_cache = run_prompt(manager, list(range(6)))
            listed = [kv_cache]
            if num_held % 2 == 0:
                listed.append(kv_cache.fork())
            kv_cache.beam_width = 2 + num_held // 3
            compare(manager, listed, [1] * len(listed), 1)
            compare(manager, [kv_cache], [6], 2)
            if num_held > 2 and kv_cache.resize(7, 6):
                # The beams have parted: what is published now is a block of beam 0 alone.
                assert manager.can_finish(listed, [0] * len(listed))
            kv_cache.stop_committing()
            compare(manager, listed, [1] * len(listed), 1)
            kv_cache.suspend()
            compare(manager, listed, [3] * len(listed), 2)
            for one in listed:
                one.close()


def test_pages_on_a_failed_disk_come_up_and_find_no_way_back() -> None:
    """GPU, host and a disk that fails: what lies there is needed on the levels that are left."""
    device = SimulatedDevice(3, eager=True)
    with Bench(tiered_config(4, [("host", 4), ("disk", 60)]), device) as bench:
        manager = bench.manager
        listed = [bench.suspended(number, 4 * TOKENS_PER_BLOCK, commit=True) for number in range(1, 4)]
        compare(manager, listed, [1, 0, 5], 2)
        device.faults.fail("disk_write", 1, Refused("worn out"))
        other = bench.suspended(9, 4 * TOKENS_PER_BLOCK, commit=True)
        bench.engine.synchronize()
        kinds = Counter(bool(compare(manager, listed[:count], [extra] * count, 2)) for count in (1, 2, 3) for extra in (0, 1, 5))
        assert manager._shared.storage.closed.first == 2 and len(kinds) == 2
        assert any(int(manager._shared.storage.rows.level(page)) == 2 for page in Member(listed[0]._state_for_batch(), 0, 1).uses)
        for one in [*listed, other]:
            one.close()
