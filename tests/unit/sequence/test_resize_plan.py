"""The plan of a resize, against examples worked out by hand and against what the resize then does."""

import random
from typing import Any

import pytest
from small_models import config_of, manager_of, run_prompt

from kv_cache_manager_v2 import HostDevice, KVCacheManager, SwaScratchReuseConfig
from kv_cache_manager_v2.sequence.beams import list_beams
from kv_cache_manager_v2.sequence.resize_plan import ResizePlan, plan_resize, will_hold_page
from kv_cache_manager_v2.sequence.sequence_state import SequenceState


def state_of(kv_cache: Any) -> SequenceState:
    state: SequenceState = kv_cache._state_for_batch()
    return state


def plan_of(kv_cache: Any, capacity: int, history: int) -> ResizePlan:
    plan = plan_resize(list_beams(state_of(kv_cache)), capacity, history)
    assert plan is not None
    return plan


def slots_of(plan: ResizePlan) -> list[tuple[list[int], list[int], list[int]]]:
    return [(list(turn.needed), list(turn.copied), list(turn.released)) for turn in plan.turns]


def unavailable(manager: KVCacheManager) -> list[int]:
    return [group.unavailable for group in manager.get_storage_statistics()]


def test_new_blocks_of_a_window_and_of_full_attention() -> None:
    """Blocks of 4; windows of 8 tokens and none. 10 tokens: 3 blocks. To 21 tokens with a history of 17: 6 blocks, so 3 new ones in each
    group. The next token sits at 17 and reads 10 .. 17, so blocks 0 and 1 leave the window; nothing leaves the other group."""
    with manager_of(windows=[8, None]) as manager, manager.create_kv_cache() as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(10)
        plan = plan_of(kv_cache, 21, 17)
        assert (plan.num_blocks, plan.withdraws_tail, slots_of(plan)) == (6, False, [([6], [], [2])])
        assert list(plan.peak) == [4]
        assert "blocks 3 to 6, copies []" in repr(plan) and "withdraws" not in repr(plan)
        assert (kv_cache.capacity, kv_cache.history_length) == (10, 0), "a plan changes nothing"


def test_scratch_blocks_share_slots() -> None:
    """Two layers with a window of 8, blocks of 4: 64 tokens in one step are 16 blocks. At 64 the window begins at token 57, in block 14: 14
    scratch blocks and 2 pages. A slot has four sub-pages, of which a layer's block takes two, its key and its value: 2 to a slot, 7
    slots."""
    config = config_of(windows=[8, 8], swa_scratch_reuse=SwaScratchReuseConfig())
    with KVCacheManager(config, device=HostDevice()) as manager, manager.create_kv_cache() as kv_cache:
        assert kv_cache.resume()
        state = state_of(kv_cache)
        assert (state.scratch.compute_begin(0, 0, 64), state.scratch.compute_end(0, 0, 64)) == (0, 14)
        assert [state.scratch.count_slots(0, count) for count in (-1, 0, 1, 2, 3, 14)] == [0, 0, 1, 1, 2, 7]
        assert slots_of(plan_of(kv_cache, 64, 0)) == [([9], [], [0])]
        assert [will_hold_page(state, 0, ordinal, 64, 0) for ordinal in (0, 13, 14, 15)] == [False, False, True, True]
        assert kv_cache.resize(64, 0)
        # The next chunk of 64 has as many scratch blocks, which take the slots over. Its first token still reads blocks 14 and 15.
        assert slots_of(plan_of(kv_cache, 128, 64)) == [([2], [], [0])]
        # A chunk of 32 has 8 blocks, of which at 96 the last two, from token 89 on, have pages: 6 scratch blocks in 3 slots of the 7.
        assert slots_of(plan_of(kv_cache, 96, 64)) == [([2], [], [4])]


def test_window_begins_behind_the_present_blocks() -> None:
    """With a history of 40 of 44 tokens, a window of 4 begins at token 37, in block 9: of new blocks 3 to 10 only 9 and 10 get pages."""
    with manager_of(windows=[4]) as manager, manager.create_kv_cache() as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(12)
        state = state_of(kv_cache)
        assert [state.shared.windows.count_new_pages(0, begin, 11, 9) for begin in (3, 9, 10, 11)] == [2, 2, 1, 0]
        assert slots_of(plan_of(kv_cache, 44, 40)) == [([2], [], [3])]


def test_sinks_count_beside_the_window() -> None:
    """8 sink tokens are 2 blocks, which keep their pages; of blocks 0 to 11 the window of 4 at 40 has 9 to 11."""
    with manager_of(windows=[4], sinks=[8]) as manager, manager.create_kv_cache() as kv_cache:
        assert kv_cache.resume()
        state = state_of(kv_cache)
        assert state.shared.windows.count_new_pages(0, 0, 12, 9) == 5
        assert state.shared.windows.count_new_pages(0, 1, 12, 9) == 4
        assert state.shared.windows.count_new_pages(0, 2, 12, 9) == 3


def test_a_tail_is_copied_or_withdrawn() -> None:
    """6 tokens are 2 blocks, the second published in part by a fork that stopped; going on there needs one slot for the copy."""
    for num_slots, withdraws in ((3, False), (2, True)):
        with manager_of(num_slots=num_slots, max_util_for_resume=1.0) as manager:
            with run_prompt(manager, [1, 2, 3, 4, 5, 6]) as kv_cache:
                kv_cache.stop_committing()
                plan = plan_of(kv_cache, 7, 6)
                copies = [] if withdraws else [1]
                assert (plan.withdraws_tail, plan.turns[0].copies, list(plan.turns[0].copied)) == (withdraws, copies, copies)
                assert ("withdraws the tail" in repr(plan)) is withdraws
                assert manager.last_refusal is None and list(manager._shared.storage.num_refusals) == [0]
    with manager_of(num_slots=2, max_util_for_resume=1.0) as manager, run_prompt(manager, [1, 2, 3, 4, 5, 6]) as kv_cache:
        with kv_cache.fork() as fork:
            assert fork.is_active
            assert plan_resize([state_of(kv_cache)], 7, 6) is None, "another sequence has the block, and there is no slot for a copy"
            assert manager.last_refusal is not None and manager.last_refusal.asked == 1
    with manager_of(num_slots=2, max_util_for_resume=1.0) as manager, run_prompt(manager, [1, 2, 3, 4, 5, 6]) as kv_cache:
        kv_cache.stop_committing()
        assert plan_resize([state_of(kv_cache)], 9, 6) is None, "a third block, whether the tail is copied or not"
        assert manager.last_refusal is not None and manager.last_refusal.asked == 1
        assert list(manager._shared.storage.num_refusals) == [1]


def test_peaks_of_beams_in_turn() -> None:
    """Seven beams with a window of 4 add a block each; 0, 1 and 6 share their blocks, and 3 and 4 theirs: copies for 0, 1 and 3. Beams 2
    and 5 release their own four blocks; shared ones are not counted. Slots taken after each turn: 2, 4, 1, 3, 4, 1, 2. All copies are
    made first, so there are those of later turns besides: 2 + 2, 4 + 1, 1 + 1, then the same."""
    with manager_of(windows=[4]) as manager, run_prompt(manager, [1, 2, 3, 4]) as kv_cache:
        kv_cache.beam_width = 7
        assert kv_cache.resize(28, 4)
        kv_cache.reorder_beams([0, 0, 2, 3, 3, 5, 0])
        plan = plan_of(kv_cache, 29, 26)
        assert [turn.copies for turn in plan.turns] == [[6], [6], [], [6], [], [], []]
        assert [released for _, _, (released,) in slots_of(plan)] == [0, 0, 4, 0, 0, 4, 0]
        assert list(plan.peak) == [5]


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_says_what_the_resize_does(seed: int) -> None:
    """Slots that are neither free nor evictable, after a resize less before: what the plan takes, less what it releases."""
    random_source = random.Random(seed)
    windows = random_source.choice([[None], [4], [8, None], [6, 17], [None, 4, 33]])
    scratch = SwaScratchReuseConfig(random_source.choice((0, 3))) if seed % 3 == 0 else None
    config = config_of(windows=windows, num_slots=512, swa_scratch_reuse=scratch, tokens_per_block=random_source.choice((1, 4, 8)))
    with KVCacheManager(config, device=HostDevice()) as manager, manager.create_kv_cache() as kv_cache:
        assert kv_cache.resume()
        next_token = 0
        for _ in range(40):
            capacity, history = kv_cache.capacity, kv_cache.history_length
            if scratch is None:
                new_history = random_source.randint(history, capacity)
                new_capacity = max(new_history, capacity + random_source.randint(-5, 12))
            else:
                new_history, new_capacity = capacity, capacity + random_source.randint(0, 12)
            before = unavailable(manager)
            plan = plan_of(kv_cache, new_capacity, new_history)
            turn = plan.turns[0]
            assert kv_cache.resize(new_capacity, new_history)
            taken = [before[group] + turn.needed[group] - turn.released[group] for group in range(len(before))]
            assert taken == unavailable(manager), plan
            count = min(random_source.randint(0, 6), kv_cache.capacity - kv_cache.num_committed_tokens)
            kv_cache.commit(list(range(next_token, next_token + count)))
            next_token += count
