"""Statistics count what happened, once: blocks, tokens of prompts, copies and drops, per sequence, per iteration and in total.

What is refused or undone is not counted, dummy sequences need not be, and every token of a prompt is a hit or a miss.
"""

import random

import pytest
from kv_cache_manager_v2 import (
    DropReason,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    LogicError,
    TransferStatistics,
)
from hybrid_models import Rig
from random_calls import drive
from small_models import attention_layers, manager_of, run_prompt


def blocks_of(statistics, group=0):
    found = statistics.layer_groups[group]
    return (found.allocated, found.reused_full, found.reused_partial, found.missed, found.generated)


def test_prefill_then_one_decode_step():
    with manager_of() as manager:
        kv_cache = manager.create_kv_cache(input_tokens=list(range(8)))
        assert kv_cache.resume() and kv_cache.resize(8)
        kv_cache.commit(list(range(8)))
        # 8 tokens in blocks of 4: both pages were missed.
        assert blocks_of(kv_cache.statistics) == (2, 0, 0, 2, 0)
        assert blocks_of(manager.get_iteration_statistics()) == (2, 0, 0, 2, 0)
        assert kv_cache.resize(9)
        # The ninth token begins a block behind the prompt.
        assert blocks_of(kv_cache.statistics) == (3, 0, 0, 2, 1)
        assert blocks_of(manager.get_iteration_statistics()) == (1, 0, 0, 0, 1)
        assert blocks_of(manager.get_statistics()) == (3, 0, 0, 2, 1)
        assert blocks_of(manager.get_iteration_statistics()) == (0, 0, 0, 0, 0)


def test_the_expected_prompt_length_says_where_generation_begins():
    with manager_of() as manager:
        kv_cache = manager.create_kv_cache(expected_prompt_length=9)
        assert kv_cache.resume() and kv_cache.resize(20)
        # Of 5 blocks those that begin at 0, 4 and 8 are of the prompt, those at 12 and 16 are not.
        assert blocks_of(kv_cache.statistics) == (5, 0, 0, 3, 2)


def test_reuse_of_whole_blocks_and_of_a_part():
    with manager_of() as manager:
        run_prompt(manager, list(range(12))).close()
        manager.get_iteration_statistics()
        # Two whole blocks and three of four tokens of the third, then one that is new.
        kv_cache = manager.create_kv_cache(input_tokens=[*range(11), 99])
        assert blocks_of(manager.get_iteration_statistics()) == (0, 0, 0, 0, 0), "it has not run yet"
        assert kv_cache.resume()
        assert blocks_of(manager.get_statistics())[1:3] == (0, 0), "it has got no room yet"
        assert kv_cache.resize(12)
        found = manager.get_iteration_statistics()
        # The partial block is copied: one page more, one copy within level 0.
        assert blocks_of(found) == (1, 2, 1, 0, 0)
        assert (found.count_transfers("copied"), found.transfers[0].bytes) == (1, 2 * 8 * 4)
        assert (found.prompts.tokens, found.prompts.hit_tokens, found.prompts.num_missed) == (12, (11,), 1)


def test_a_sequence_that_never_ran_is_no_request():
    with manager_of() as manager:
        manager.create_kv_cache(input_tokens=list(range(8))).close()
        assert manager.get_statistics().requests == 0
        assert manager.get_statistics().prompts.tokens == 0


def test_refused_and_excluded_calls_do_not_count():
    with manager_of(num_slots=2) as manager:
        kv_cache = manager.create_kv_cache(input_tokens=list(range(12)))
        assert kv_cache.resume()
        assert not kv_cache.resize(12)
        assert blocks_of(manager.get_statistics()) == (0, 0, 0, 0, 0)
        kv_cache.close()
        dummy = manager.create_kv_cache(input_tokens=list(range(8)), count_in_statistics=False)
        assert dummy.resume() and dummy.resize(8)
        dummy.suspend()
        found = manager.get_statistics()
        assert (found.requests, found.prompts.tokens, found.allocated, found.suspends, found.resumes) == (0, 0, 0, 0, 0)
        assert blocks_of(dummy.statistics) == (2, 0, 0, 2, 0), "it has an account of its own"


def test_an_admission_that_is_refused_again_and_again_is_one_look_up() -> None:
    """The head of a queue is tried at every step; the hit rate is that of what was served."""
    with manager_of(num_slots=8) as manager:
        run_prompt(manager, list(range(10))).close()
        prompt = [*range(10), *range(50, 62)]
        with manager.create_kv_cache() as other:
            assert other.resume() and other.resize(12)
            before = manager.get_statistics()
            for _ in range(10):
                with manager.create_kv_cache(input_tokens=prompt) as waiting:
                    assert waiting.num_committed_tokens > 0 and waiting.resume() and not waiting.resize(len(prompt))
                    assert waiting.statistics.requests == 1, "its own account"
            after = manager.get_statistics()
        assert (after.requests, after.prompts) == (before.requests, before.prompts)
        assert (after.reused, after.resumes) == (before.reused, before.resumes)
        admitted = run_prompt(manager, prompt)
        found = manager.get_statistics()
        assert found.requests == before.requests + 1 and found.prompts.tokens == before.prompts.tokens + len(prompt)
        assert sum(found.prompts.hit_tokens) == sum(admitted.statistics.prompts.hit_tokens) > 0


def test_a_step_that_is_taken_back_and_done_again_counts_once() -> None:
    """4 tokens a block: 8 tokens of the prompt, drafts up to 20 that are taken back twice, then 16 accepted: 4 blocks, never fewer."""
    with manager_of() as manager:
        kv_cache = manager.create_kv_cache(input_tokens=list(range(8)))
        assert kv_cache.resume()
        found = []
        for capacity in (8, 20, 8, 20, 9, 16):
            assert kv_cache.resize(capacity)
            found.append(manager.get_statistics().allocated)
            assert blocks_of(kv_cache.statistics)[0] == found[-1]
        assert found == [2, 5, 5, 5, 5, 5]
        kv_cache.commit(list(range(16)))
        fork = kv_cache.fork()
        for capacity in (20, 16, 20, 28):
            assert fork.resize(capacity)
        # The committed blocks are shared and full, so nothing is copied: of the fork's own are blocks 4, 5 and 6.
        assert manager.get_statistics().allocated == 5 + 3


def test_a_prompt_that_is_prefilled_again_after_a_rewind_is_missed_once() -> None:
    with manager_of() as manager:
        kv_cache = manager.create_kv_cache(input_tokens=list(range(16)))
        assert kv_cache.resume()
        for capacity in (16, 0, 8, 16):
            assert kv_cache.resize(capacity)
        kv_cache.commit(list(range(16)))
        assert kv_cache.resize(17)
        assert blocks_of(manager.get_statistics()) == (5, 0, 0, 4, 1)


def test_an_iteration_in_which_a_tier_shrinks_has_its_peak_too() -> None:
    with manager_of(num_slots=16) as manager:
        run_prompt(manager, list(range(40))).close()
        manager.clear_reusable_blocks()
        # 40 tokens are 10 blocks; 4 slots of 64 bytes are left.
        assert manager.resize(0, 4 * 64)
        assert manager.get_iteration_statistics().peak_slots == ((10,),)
        assert manager.get_iteration_statistics().peak_slots == ((0,),)
        assert manager.get_statistics().peak_slots == ((10,),)


def test_pages_that_move_as_a_tier_shrinks_are_copied() -> None:
    with manager_of(num_slots=16) as manager:
        first = manager.create_kv_cache()
        assert first.resume() and first.resize(16)
        second = run_prompt(manager, [100 + token for token in range(12)])
        # Nothing was committed: four slots are free, and those behind them have three pages of 64 bytes.
        first.close()
        assert manager.get_statistics().transfers == ()
        assert manager.resize(0, 4 * 64)
        assert manager.get_statistics().transfers == (TransferStatistics(0, 0, 0, 3, 192),)
        assert second.statistics.transfers == (), "it was no call of this sequence"


def test_suspends_resumes_drops_and_peaks():
    with manager_of(num_slots=4) as manager:
        first = run_prompt(manager, list(range(12)))
        first.suspend()
        assert first.resume()
        first.close()
        assert manager.get_iteration_statistics().peak_slots == ((3,),)
        # 4 slots, 3 of them droppable: three new blocks need two of these.
        second = run_prompt(manager, [100 + token for token in range(12)])
        found = manager.get_iteration_statistics()
        assert (found.suspends, found.resumes, found.requests) == (0, 1, 1)
        assert found.count_drops(DropReason.CAPACITY) == 2
        assert second.statistics.count_drops(DropReason.CAPACITY) == 2, "it was for this sequence"
        assert found.peak_slots == ((4,),)
        assert second.statistics.layer_groups[0].peak_pages == 3
        second.close()
        manager.clear_reusable_blocks()
        total = manager.get_statistics()
        # The first's oldest block and the three of the second.
        assert total.count_drops(DropReason.CLEARED) == 4
        assert (total.suspends, total.resumes) == (1, 3)


def test_windowed_groups_have_their_own_figures():
    with manager_of(windows=(None, 8)) as manager:
        run_prompt(manager, list(range(32))).close()
        kv_cache = manager.create_kv_cache(input_tokens=list(range(32)))
        # All 8 blocks; of the window, position 32 reads 25..32: blocks 6 and 7.
        assert blocks_of(kv_cache.statistics, 0) == (0, 8, 0, 0, 0)
        assert blocks_of(kv_cache.statistics, 1) == (0, 2, 0, 0, 0)


def test_hits_and_copies_say_which_levels():
    slot_bytes = 2 * 8 * 4
    config = KVCacheManagerConfig(
        tokens_per_block=4,
        cache_tiers=[GpuCacheTierConfig(4 * slot_bytes), HostCacheTierConfig(16 * slot_bytes)],
        layers=attention_layers((None,), 4),
    )
    with KVCacheManager(config, device=HostDevice()) as manager:
        run_prompt(manager, list(range(12))).close()
        run_prompt(manager, [100 + token for token in range(12)]).close()
        found = manager.get_iteration_statistics()
        # 4 slots: of the first prompt's 3 blocks the last two had to be offloaded.
        assert [(moved.source_level, moved.target_level, moved.blocks) for moved in found.transfers] == [(0, 1, 2)]
        assert found.count_transfers("offloaded") == 2 and found.transfers[0].bytes == 2 * slot_bytes
        assert found.peak_slots == ((4,), (2,))
        kv_cache = manager.create_kv_cache(input_tokens=list(range(12)))
        assert kv_cache.statistics.prompts.hit_tokens == (4, 8)
        assert kv_cache.resume() and kv_cache.resize(13)
        assert kv_cache.statistics.count_transfers("onboarded") == 2, "it was for this sequence"
        found = manager.get_iteration_statistics()
        assert found.count_transfers("onboarded") == 2
        assert found.prompts.hit_tokens == (4, 8)
        kv_cache.close()


def copies_of(statistics, pool_group):
    return sum([moved.blocks for moved in statistics.transfers if (moved.kind, moved.pool_group) == ("copied", pool_group)])


def test_copies_of_recurrent_state_count():
    with Rig() as rig:
        manager = rig.manager
        states = manager.get_statistics().layer_groups[rig.state_group].pool_group
        text = list(range(16))
        # A commit that ends at a snapshot position copies the state once.
        parent = rig.prefill(text)
        num_snapshots = copies_of(manager.get_iteration_statistics(), states)
        assert num_snapshots == copies_of(parent.statistics, states) == 1
        # A fork has the one live state of its parent, copied by the parent's call.
        child = parent.fork()
        assert copies_of(manager.get_iteration_statistics(), states) == 1
        assert (copies_of(parent.statistics, states), copies_of(child.statistics, states)) == (2, 0)
        child.close()
        # Two beams more; then beam 0 goes on in all of them, so that two get copies of its state.
        parent.beam_width = 3
        assert copies_of(manager.get_iteration_statistics(), states) == 2
        parent.reorder_beams([0, 0, 0])
        assert copies_of(manager.get_iteration_statistics(), states) == 2
        # Each beam goes on where it is, or takes over a state whole: nothing is copied.
        parent.reorder_beams([1, 2, 0])
        assert copies_of(manager.get_iteration_statistics(), states) == 0
        assert copies_of(parent.statistics, states) == 6
        parent.beam_width = 1
        parent.close()
        # The next one begins with a copy of the snapshot.
        rig.create([*text, 99]).close()
        assert copies_of(manager.get_iteration_statistics(), states) == 1


def test_without_statistics_nothing_is_kept():
    with manager_of(enable_stats=False) as manager:
        kv_cache = run_prompt(manager, list(range(8)))
        with pytest.raises(LogicError):
            manager.get_statistics()
        with pytest.raises(LogicError):
            manager.get_iteration_statistics()
        with pytest.raises(LogicError):
            _ = kv_cache.statistics


def test_misuse():
    with manager_of() as manager:
        for wrong in (-1, 2**41):
            with pytest.raises(ValueError):
                manager.create_kv_cache(expected_prompt_length=wrong)
        assert manager.get_storage_statistics()[0].free == 64
    with pytest.raises(LogicError):
        manager.get_statistics()


@pytest.mark.parametrize("windows", [(None,), (None, 8), (8,)])
@pytest.mark.parametrize("backoff", [0, 1, 6])
def test_hits_and_misses_are_the_prompt(windows, backoff):
    seed = 7
    print("seed", seed)
    rng = random.Random(seed)
    with manager_of(windows, num_slots=12 * len(windows), reuse_match_backoff=backoff) as manager:
        total = 0
        for _ in range(400):
            family = rng.randrange(4)
            prompt = [family * 100 + token for token in range(rng.randrange(1, 30))]
            if rng.random() < 0.3:
                prompt[rng.randrange(len(prompt))] = 77
            kv_cache = manager.create_kv_cache(input_tokens=prompt)
            found = kv_cache.statistics.prompts
            assert found.tokens == len(prompt)
            assert found.num_hit == kv_cache.num_committed_tokens
            assert found.num_hit + sum(found.missed_tokens.values()) == len(prompt)
            assert all(tokens > 0 for tokens in found.missed_tokens.values())
            if kv_cache.resume():
                if kv_cache.resize(len(prompt)):
                    total += len(prompt)
                    kv_cache.commit(prompt[kv_cache.num_committed_tokens :])
            kv_cache.close()
        found = manager.get_statistics().prompts
        assert found.tokens == total
        assert found.num_hit + sum(found.missed_tokens.values()) == total


def test_iterations_add_up_to_the_total():
    with manager_of((None, 8), num_slots=24) as manager:
        sums = {"requests": 0, "allocated": 0, "reused": 0, "missed": 0, "generated": 0, "resumes": 0, "suspends": 0}
        drops = 0
        for seed in range(20):
            drive(manager, seed, 30)
            found = manager.get_iteration_statistics()
            for name in sums:
                sums[name] += getattr(found, name)
            drops += sum(drop.blocks for drop in found.drops)
        total = manager.get_statistics()
        assert {name: getattr(total, name) for name in sums} == sums
        assert sum(drop.blocks for drop in total.drops) == drops > 0
        copied = total.count_transfers("copied")
        # Copies for those that then got no room are no request's blocks.
        assert total.missed + total.generated < total.allocated <= total.missed + total.generated + copied
