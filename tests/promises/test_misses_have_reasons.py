"""Every token of a prompt that was not reused has one reason, and the reasons add up to the prompt."""

import pytest
from hybrid_models import Rig
from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    CacheTierConfig,
    DropReason,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    MissCause,
    ReuseScope,
    SnapshotPolicy,
)
from small_models import manager_of, run_prompt


def misses_of(manager, tokens, scope=None):
    """What a request for these tokens would miss, and why; leaves nothing behind."""
    with manager.create_kv_cache(scope, tokens) as kv_cache:
        return kv_cache.statistics.prompts.missed_tokens


def test_not_remembered():
    with manager_of() as manager:
        assert misses_of(manager, list(range(10))) == {MissCause.NOT_REMEMBERED: 10}
        run_prompt(manager, list(range(8))).close()
        assert misses_of(manager, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]) == {MissCause.NOT_REMEMBERED: 2}
        assert misses_of(manager, list(range(8))) == {}


def test_evicted_for_room_and_what_that_made_unreachable():
    with manager_of(num_slots=4) as manager:
        run_prompt(manager, list(range(16))).close()
        # Three new blocks: the leaf of the old path is evicted first, so its first block stays.
        run_prompt(manager, [100 + token for token in range(12)]).close()
        assert misses_of(manager, list(range(16))) == {MissCause.EVICTED: 12}
        # What comes behind a text that is gone was never seen.
        assert misses_of(manager, list(range(8)) + [50, 51, 52, 53]) == {MissCause.EVICTED: 4, MissCause.NOT_REMEMBERED: 4}


def test_what_is_gone_behind_planned_blocks():
    """Four blocks are evicted; two of them are planned again, and found before anything is computed: the others are still gone."""
    with manager_of(num_slots=4) as manager:
        run_prompt(manager, list(range(16))).close()
        run_prompt(manager, [100 + token for token in range(16)]).close()
        with manager.create_kv_cache() as writer:
            assert writer.resume() and writer.resize(8)
            assert writer.publish_planned(list(range(8))) == 8
            assert misses_of(manager, list(range(16))) == {MissCause.EVICTED: 8}
            assert misses_of(manager, list(range(12)) + [50, 51, 52, 53]) == {MissCause.EVICTED: 4, MissCause.NOT_REMEMBERED: 4}


def test_dropped_on_request():
    with manager_of() as manager:
        run_prompt(manager, list(range(8))).close()
        manager.clear_reusable_blocks()
        assert misses_of(manager, list(range(8))) == {MissCause.DROPPED: 8}


def test_a_broken_window():
    with manager_of(windows=(None, 8), num_slots=10) as manager:
        run_prompt(manager, list(range(16))).close()
        # 4 blocks in each group: 8 slots of 10. Two more blocks in each need 4. Pages that the window has passed are first in
        # line, so those of blocks 0 and 1 of the windowed group go.
        run_prompt(manager, [100 + token for token in range(8)]).close()
        with manager.create_kv_cache(input_tokens=list(range(16))) as kv_cache:
            assert kv_cache.num_committed_tokens == 16
        # At 8 tokens, position 8 reads 1..8: block 0 of the windowed group is needed, and gone.
        assert misses_of(manager, list(range(8))) == {MissCause.WINDOW_BROKEN: 8}
        # With one more block that was never published.
        assert misses_of(manager, list(range(8)) + [9] * 4) == {MissCause.WINDOW_BROKEN: 8, MissCause.NOT_REMEMBERED: 4}


def test_a_block_that_begins_with_the_same_tokens():
    with manager_of(enable_partial_reuse=False) as manager:
        run_prompt(manager, list(range(8))).close()
        # 4 tokens are a hit; 4 and 5 begin block 1 as well, 70 does not.
        assert misses_of(manager, [0, 1, 2, 3, 4, 5, 70]) == {MissCause.PARTIAL_BLOCK: 2, MissCause.NOT_REMEMBERED: 1}
        assert misses_of(manager, [0, 1, 2, 3, 4, 5, 70, 71]) == {MissCause.PARTIAL_BLOCK: 2, MissCause.NOT_REMEMBERED: 2}
    with manager_of() as manager:
        run_prompt(manager, list(range(8))).close()
        assert misses_of(manager, [0, 1, 2, 3, 4, 5, 70]) == {MissCause.NOT_REMEMBERED: 1}


def test_part_of_a_block_that_is_gone():
    with manager_of() as manager:
        run_prompt(manager, list(range(8))).close()
        manager.clear_reusable_blocks()
        # Blocks are remembered whole: of 4, 5 nothing is known but that what comes before them was here.
        assert misses_of(manager, list(range(6))) == {MissCause.DROPPED: 4, MissCause.PARTIAL_BLOCK: 2}


@pytest.mark.parametrize("has_host", [False, True])
def test_a_tier_that_was_made_smaller(has_host: bool):
    """Pages that no other tier takes, or that are of too low a priority for it, go because of the resize."""
    tiers: list[CacheTierConfig] = [GpuCacheTierConfig(16 << 20), *([HostCacheTierConfig(16 << 20)] if has_host else [])]
    layers = [AttentionLayerConfig(LayerId(0), [BufferConfig("key", 1 << 20), BufferConfig("value", 1 << 20)])]
    config = KVCacheManagerConfig(4, tiers, layers, min_offload_priority=50)
    with KVCacheManager(config, device=HostDevice()) as manager:
        run_prompt(manager, list(range(16))).close()
        # 8 slots of 2 MiB, of which 4 are taken; 4 MiB are 2 slots: the far half of the text goes.
        assert manager.resize(0, 4 << 20)
        assert misses_of(manager, list(range(16))) == {MissCause.SHRUNK: 8}
        assert manager.get_statistics().count_drops(DropReason.SHRUNK) == 2


def test_no_snapshot_of_the_recurrent_state():
    policy = SnapshotPolicy(at_prompt_end=False, at_branches=False, at_commits=False)
    with Rig(snapshot_policy=policy) as rig:
        rig.prefill(list(range(8))).close()
        assert misses_of(rig.manager, list(range(8))) == {MissCause.NO_SNAPSHOT: 8}
    with Rig() as rig:
        rig.prefill(list(range(8))).close()
        # There is one where the prompt ended.
        assert misses_of(rig.manager, list(range(8)) + [9, 9]) == {MissCause.NOT_REMEMBERED: 2}


def test_a_part_of_a_block_is_missed_for_what_the_blocks_before_it_are():
    """A prompt that ends, or leaves the tree, inside a block: partial reuse is on and could not have helped."""
    policy = SnapshotPolicy(at_prompt_end=False, at_branches=False, at_commits=False)
    with Rig(snapshot_policy=policy) as rig:
        rig.prefill(list(range(32))).close()
        for length in range(1, 33):
            assert misses_of(rig.manager, list(range(length))) == {MissCause.NO_SNAPSHOT: length}
            assert misses_of(rig.manager, [*range(length), 99]) == {MissCause.NO_SNAPSHOT: length, MissCause.NOT_REMEMBERED: 1}
    with manager_of(windows=(None, 8), num_slots=10) as manager:
        run_prompt(manager, list(range(16))).close()
        run_prompt(manager, [100 + token for token in range(8)]).close()
        # As above: block 0 of the windowed group is gone, and positions up to 10 read some of it.
        for length in range(1, 11):
            assert misses_of(manager, list(range(length))) == {MissCause.WINDOW_BROKEN: length}


def test_a_part_of_a_block_where_partial_reuse_is_off():
    """It is missed for the snapshot behind whole blocks that are; for the setting right behind the match."""
    policy = SnapshotPolicy(1, at_prompt_end=False, at_branches=False, at_commits=False)
    with Rig(snapshot_policy=policy, enable_partial_reuse=False) as rig:
        rig.prefill(list(range(12)), [4, 8]).close()
        assert misses_of(rig.manager, list(range(10))) == {MissCause.PARTIAL_BLOCK: 2}


def test_another_scope():
    with manager_of() as manager:
        run_prompt(manager, list(range(8)), reuse_scope=ReuseScope(salt="a")).close()
        assert misses_of(manager, list(range(8)), ReuseScope(salt="b")) == {MissCause.OTHER_SCOPE: 8}
        assert misses_of(manager, list(range(12)), ReuseScope(salt="b")) == {
            MissCause.OTHER_SCOPE: 8,
            MissCause.NOT_REMEMBERED: 4,
        }
        manager.clear_reusable_blocks()
        assert misses_of(manager, list(range(8)), ReuseScope(salt="a")) == {MissCause.DROPPED: 8}
        assert misses_of(manager, list(range(8)), ReuseScope(salt="b")) == {MissCause.OTHER_SCOPE: 8}


def test_backoff():
    with manager_of(reuse_match_backoff=3) as manager:
        run_prompt(manager, list(range(8))).close()
        # 8 tokens match, 3 are trimmed off.
        assert misses_of(manager, list(range(8)) + [9]) == {MissCause.BACKOFF: 3, MissCause.NOT_REMEMBERED: 1}


def test_capacity_is_told_apart():
    capacity = {cause for cause in MissCause if cause.is_capacity}
    assert capacity == {MissCause.EVICTED, MissCause.UNREACHABLE, MissCause.SHRUNK}


def test_what_is_remembered_is_bounded():
    with manager_of(num_slots=4) as manager:
        run_prompt(manager, list(range(4))).close()
        # 4 slots remember at most 64 blocks: a thousand later ones push the first one out.
        for number in range(1000):
            run_prompt(manager, [1000 + number] * 4).close()
        assert misses_of(manager, list(range(4))) == {MissCause.NOT_REMEMBERED: 4}
        assert misses_of(manager, [1000 + 995] * 4) == {MissCause.EVICTED: 4}
