"""Windows and bounds that all sequences share, beside a look at every length."""

from itertools import product
from random import Random

import pytest
from small_models import config_of, run_prompt

from kv_cache_manager_v2 import HostDevice, KVCacheManager, SwaScratchReuseConfig
from kv_cache_manager_v2.layout.windows import compute_scratch_range
from kv_cache_manager_v2.sequence.shared_state import NEVER, SharedState
from property.layout.brute_force import is_stale

LONGEST = 130


def shared_of(manager: KVCacheManager) -> SharedState:
    return manager._shared


def least_scratch_step(shared: SharedState, rewind: int) -> int:
    """The least number of inputs of any step that has a scratch block in some layer group."""
    return min(
        capacity - history
        for life_cycle in shared.life_cycles
        for history in range(20)
        for capacity in range(history, LONGEST)
        if compute_scratch_range(history, capacity, life_cycle, int(shared.tokens_per_block), rewind)
    )


@pytest.mark.parametrize("seed", range(24))
def test_windows_begin_and_move_where_blocks_become_stale(seed: int) -> None:
    random = Random(seed)
    size, rewind = random.choice((1, 4, 8)), random.choice((0, 3))
    windows = random.sample([None, 1, 4, 7, 16, 30], random.randint(1, 3))
    sinks = [None if window is None else random.choice((None, 0, 5, 2 * size)) for window in windows]
    config = config_of(windows, size, 256, sinks, swa_scratch_reuse=SwaScratchReuseConfig(rewind))
    with KVCacheManager(config, device=HostDevice()) as manager:
        shared = shared_of(manager)
        for number, life_cycle in enumerate(shared.life_cycles):
            begins = [int(shared.windows.compute_begin(number, history)) for history in range(LONGEST)]
            for history, begin in enumerate(begins):
                num_blocks = history // size + 1
                stale = [block for block in range(num_blocks) if is_stale(life_cycle, block, history, size)]
                assert stale == list(range(life_cycle.num_sink_blocks, min(begin, num_blocks)))
                later = [length for length in range(LONGEST) if begins[length] > begin]
                move = shared.windows.compute_next_move(number, begin)
                assert move == later[0] if later else move == NEVER or move >= LONGEST
        if any(window is not None for window in windows):
            assert shared.windows.least_scratch_step == least_scratch_step(shared, rewind)
        else:
            assert shared.windows.least_scratch_step == NEVER


def test_blocks_before_the_first_lost_page_are_whole() -> None:
    """Whichever page of whichever block is lost, alone or with a later one: the blocks before it count."""
    with KVCacheManager(config_of([None, 4], 4, 256), device=HostDevice()) as manager, run_prompt(manager, list(range(24))) as kv_cache:
        shared = shared_of(manager)
        reads, blocks = shared.storage.reads, kv_cache._state.blocks[:6]
        assert shared.count_whole_blocks(blocks) == 6
        reads.is_idle = False
        assert shared.count_whole_blocks(blocks) == 6
        for ordinal in range(6):
            for life_cycle, later in product(range(2), range(ordinal, 6)):
                reads.lost.clear()
                reads.lost[int(blocks[later].first_page)] = "unreadable"
                reads.lost[int(blocks[ordinal].first_page) + life_cycle] = "unreadable"
                assert shared.count_whole_blocks(blocks) == ordinal
        reads.lost.clear()
        reads.is_idle = True


def test_without_scratch_reuse_no_step_has_scratch_blocks() -> None:
    with KVCacheManager(config_of([4]), device=HostDevice()) as manager:
        assert shared_of(manager).windows.least_scratch_step == NEVER
