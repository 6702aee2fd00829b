"""What a sequence needs to be resumed, grown and closed, beside a look at every step that it may take."""

from random import Random

import pytest
from hybrid_models import hybrid_config
from small_models import config_of, run_prompt

from kv_cache_manager_v2 import HostDevice, KVCache, KVCacheManager, SwaScratchReuseConfig
from kv_cache_manager_v2.sequence.finish_demand import FinishDemand, count_holds, count_locks
from kv_cache_manager_v2.sequence.sequence_state import SequenceState
from property.layout.brute_force import is_stale


def state_of(kv_cache: KVCache) -> SequenceState:
    return kv_cache._state_for_batch()


def count_blocks(tokens: int, size: int) -> int:
    return -(-tokens // size)


class PlainDemand:
    """One sequence, or one with beams, of which the steps to come are tried one by one."""

    def __init__(self, state: SequenceState, remaining: int, max_step: int) -> None:
        self.shared = state.shared
        self.state = state
        self.size = int(self.shared.tokens_per_block)
        self.begin = int(state.capacity)
        self.target = self.begin + remaining
        self.max_step = max_step
        self.width = 1 + len(state.sharing.beams)

    def slots(self, history: int, capacity: int) -> list[int]:
        """Behind a step; with beams, beyond their present blocks."""
        counts = [0] * int(self.shared.storage.num_pool_groups)
        first = int(self.state.num_blocks) if self.width > 1 else 0
        for number, life_cycle in enumerate(self.shared.life_cycles):
            group = int(self.shared.storage.pool_group_of[number])
            if not life_cycle.has_page_per_block:
                counts[group] += int(self.shared.recurrent.num_state_slots) if self.width == 1 else 0
                continue
            kept = [
                block
                for block in range(first, count_blocks(capacity, self.size))
                if not is_stale(life_cycle, block, history, self.size)
            ]
            count = len(kept)
            window = life_cycle.window_size
            if window is not None and self.width == 1 and self.state.scratch.is_enabled:
                count = min(count, self.bound(number, window))
            counts[group] += count * self.width
        return counts

    def bound(self, number: int, window: int) -> int:
        """Sinks, the window before the step, the one at its end, and the slots that the blocks between share."""
        inputs = count_blocks(self.max_step, self.size)
        last = min(count_blocks(window + int(self.shared.windows.max_rewind_len), self.size) + 1, inputs)
        between = inputs - last
        slots = self.shared.storage.layout.compute_num_scratch_slots(number, between) if between > 0 else 0
        return self.shared.life_cycles[number].num_sink_blocks + count_blocks(window, self.size) + 1 + last + slots

    def first(self) -> list[int]:
        return self.slots(self.begin, min(self.begin + self.max_step, self.target))

    def widest(self) -> list[int]:
        most = [0] * int(self.shared.storage.num_pool_groups)
        for capacity in range(self.begin + 1, self.target + 1):
            history = max(self.begin, capacity - self.max_step)
            most = [max(pair) for pair in zip(most, self.slots(history, capacity), strict=True)]
        return most

    def pages(self) -> tuple[list[list[int]], list[int]]:
        """By life cycle, what it holds, and how many of these are neither behind a window some day nor written."""
        held: list[list[int]] = []
        kept: list[int] = []
        for number, life_cycle in enumerate(self.shared.life_cycles):
            pages: list[int] = []
            num_kept = 0
            for beam in [self.state, *self.state.sharing.beams]:
                for block in range(int(beam.num_blocks)):
                    if life_cycle.has_page_per_block and beam.holds_page(number, block):
                        page = int(beam.blocks[block].first_page) + number
                        if page not in pages:
                            pages.append(page)
                        stays = life_cycle.window_size is None or block < life_cycle.num_sink_blocks
                        num_kept += int(self.width == 1 and stays and (block + 1) * self.size <= self.begin)
                if not life_cycle.has_page_per_block:
                    pages += [int(block.first_page) + number for block in beam.recurrent.state_blocks]
                    snapshot = beam.recurrent.matched_snapshot
                    if snapshot is not None and int(snapshot.first_page) + number not in pages:
                        pages.append(int(snapshot.first_page) + number)
            held.append(pages)
            kept.append(num_kept)
        return held, kept


def compare(state: SequenceState, remaining: int, max_step: int) -> None:
    demand = FinishDemand(state, remaining, max_step)
    plain = PlainDemand(state, remaining, max_step)
    held, kept = plain.pages()
    assert [[int(page) for page in pages] for pages in demand.pages] == held
    assert [int(count) for count in demand.num_kept] == kept
    shared = state.shared
    holders: dict[int, int] = {}
    for beam in [state, *state.sharing.beams]:
        for number in range(int(shared.num_life_cycles)):
            for block in range(int(beam.num_blocks)):
                if beam.holds_page(number, block):
                    page = int(beam.blocks[block].first_page) + number
                    if count_holds(shared, page) > 1:
                        holders[page] = holders.get(page, 0) + 1
        if beam.recurrent.matched_snapshot is not None:
            page = int(beam.recurrent.matched_snapshot.first_page + shared.state_life_cycle)
            if count_holds(shared, page) > 1:
                holders[page] = holders.get(page, 0) + 1
    assert demand.num_shared_uses == holders
    if remaining > 0:
        assert [int(count) for count in demand.first] == plain.first()
        assert [int(count) for count in demand.widest] == plain.widest()
    else:
        assert not any(demand.first) and not any(demand.widest)


def draw_manager(random: Random) -> KVCacheManager:
    size = random.choice((1, 4, 4, 8))
    windows = random.choice(([None], [6], [None, 6], [None, 6, 17], [3, 30]))
    sinks = [None if window is None else random.choice((None, size, 2 * size + 1)) for window in windows]
    if random.random() < 0.3:
        return KVCacheManager(hybrid_config(windows, size, state_checkpoints=random.choice((0, 1))), device=HostDevice())
    scratch = SwaScratchReuseConfig(random.choice((0, 3))) if random.random() < 0.4 else None
    return KVCacheManager(config_of(windows, size, 512, sinks, swa_scratch_reuse=scratch), device=HostDevice())


@pytest.mark.parametrize("seed", range(60))
def test_the_widest_step_is_the_widest_of_all_steps(seed: int) -> None:
    """Sequences alone, forks that share blocks, and beams; the largest step is longer or shorter than what remains."""
    random = Random(seed)
    with draw_manager(random) as manager:
        length = random.randint(1, 40)
        kv_cache = run_prompt(manager, list(range(length)))
        open_ones = [kv_cache]
        if random.random() < 0.4:
            kv_cache.resize(length + random.randint(1, 9), length)
        if random.random() < 0.4:
            open_ones.append(kv_cache.fork())
        elif random.random() < 0.4:
            kv_cache.enable_swa_scratch_reuse = False
            kv_cache.beam_width = random.choice((2, 3))
            assert kv_cache.resize(kv_cache.capacity + random.choice((0, 1, 5)), kv_cache.history_length)
        if random.random() < 0.3:
            # A suspended one that was never resumed, whose tail and snapshot are the published ones.
            open_ones.append(manager.create_kv_cache(input_tokens=list(range(length + 3))))
        for one in open_ones:
            for _ in range(4):
                compare(state_of(one), random.choice((0, 1, 3, 8, 20, 70)), random.choice((1, 2, 5, 9, 30, 100)))
        for one in open_ones:
            one.close()


def test_blocks_that_the_first_step_writes() -> None:
    """Blocks of 4: seven tokens are two blocks, the second of which the step writes; behind eight there is none yet."""
    with KVCacheManager(config_of(), device=HostDevice()) as manager, run_prompt(manager, list(range(7))) as kv_cache:
        state = state_of(kv_cache)
        demand = FinishDemand(state, 5, 5)
        assert demand.written_block == 1
        assert [demand.is_written(state.blocks[block].first_page) for block in range(2)] == [False, True]
        assert kv_cache.resize(8, 7)
        demand = FinishDemand(state, 5, 5)
        assert demand.written_block == 2
        assert [demand.is_written(state.blocks[block].first_page) for block in range(2)] == [False, False]


@pytest.mark.parametrize("num_twins", range(3))
def test_users_of_twins_are_users_of_their_page(num_twins: int) -> None:
    """Where indices stay, a sequence that computes a published block anew keeps its page: its hold and lock count for the published one."""
    config = config_of(allow_seq_rebasing=False, enable_partial_reuse=False)
    with KVCacheManager(config, device=HostDevice()) as manager:
        open_ones = []
        for _ in range(num_twins + 1):
            kv_cache = manager.create_kv_cache()
            assert kv_cache.resume() and kv_cache.resize(4)
            open_ones.append(kv_cache)
        for kv_cache in open_ones:
            kv_cache.commit([1, 2, 3, 4])
        states = [state_of(kv_cache) for kv_cache in open_ones]
        page = states[0].blocks[0].first_page
        assert count_holds(states[0].shared, page) == count_locks(states[0].shared, page) == num_twins + 1
        demands = [FinishDemand(state, 3, 3) for state in states]
        twins = [int(state.page_of(0, 0)) for state in states]
        assert [demand.num_twin_uses for demand in demands] == [{}, *[{twin: 1} for twin in twins[1:]]]
        assert len(set(twins)) == num_twins + 1
        assert [demand.num_shared_uses for demand in demands] == [{int(page): 1} if num_twins else {} for _ in demands]
        for kv_cache in open_ones:
            kv_cache.suspend()
        assert count_holds(states[0].shared, page) == num_twins + 1 and count_locks(states[0].shared, page) == 0
        for kv_cache in open_ones:
            kv_cache.close()
