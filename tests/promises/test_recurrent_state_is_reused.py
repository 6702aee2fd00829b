"""A prefix is reused with its recurrent state: where a snapshot was left, never from a later one; prompts leave them where they
branch and where they end."""

from pathlib import Path
from typing import Any

import pytest
from hybrid_models import STATE_BYTES, Rig, hybrid_config

from kv_cache_manager_v2 import GpuCacheTierConfig, HostCacheTierConfig, KVCache, KVCacheManager, MatchedTokens, MissCause, SnapshotPolicy
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.replay.rerun import rerun
from kv_cache_manager_v2.testing import SimulatedDevice

ONLY_EXPLICIT = SnapshotPolicy(at_prompt_end=False, at_branches=False, at_commits=False)


def text(seed: int, length: int) -> list[int]:
    return [seed * 10_000 + position for position in range(length)]


def test_longest_prefix_with_a_snapshot_wins() -> None:
    with Rig(tokens_per_block=8, snapshot_policy=ONLY_EXPLICIT) as rig:
        tokens = text(1, 96)
        rig.prefill(tokens, stops=[32, 64], snapshot_positions=[32, 64]).close()
        for length, expected in ((31, 0), (32, 32), (48, 32), (64, 64), (96, 64)):
            assert rig.manager.probe_reuse(None, tokens[:length]) == expected
            kv_cache = rig.prefill(tokens[:length])
            assert kv_cache.match_info == MatchedTokens(length, expected)
            kv_cache.close()


def test_a_snapshot_after_the_fork_is_never_used() -> None:
    """5 tokens per block, the first snapshot at 20: a text that leaves at 15 begins from nothing."""
    with Rig(tokens_per_block=5, snapshot_policy=SnapshotPolicy(every_num_blocks=4, at_branches=False, at_commits=False)) as rig:
        tokens = text(1, 40)
        rig.prefill(tokens, stops=[20]).close()
        assert rig.manager.probe_reuse(None, tokens) == 40
        assert rig.manager.probe_reuse(None, tokens[:39]) == 20
        other = tokens[:15] + text(2, 25)
        assert rig.manager.probe_reuse(None, other) == 0
        kv_cache = rig.prefill(other)
        assert kv_cache.match_info == MatchedTokens(15, 0)


def test_the_second_of_a_branch_leaves_what_the_third_finds() -> None:
    with Rig(tokens_per_block=32) as rig:
        shared = text(0, 64)
        first = rig.create(shared + text(1, 32))
        rig.step(first, shared + text(1, 32), 0, 96)
        assert first.next_snapshot_position is None
        second_text = shared + text(2, 40)
        second = rig.create(second_text)
        assert second.match_info == MatchedTokens(64, 0)
        assert second.num_committed_tokens == 0
        assert second.next_snapshot_position == 64
        rig.step(second, second_text, 0, 64)
        assert second.next_snapshot_position == 104  # the end of its prompt
        rig.step(second, second_text, 64, 104)
        third_text = shared + text(3, 5)
        third = rig.create(third_text)
        assert third.num_committed_tokens == 64
        rig.step(third, third_text, 64, 69)
        first.close()
        second.close()
        third.close()
        # Each prompt's end as well.
        assert rig.manager.probe_reuse(None, second_text + [7]) == 104
        assert rig.manager.probe_reuse(None, third_text + [7]) == 69


def test_a_prompt_that_goes_on_inside_a_block_is_found_again() -> None:
    """The snapshot at 10 hangs on a partial block; its siblings have the attention's pages."""
    with Rig() as rig:
        tokens = text(1, 10)
        kv_cache = rig.prefill(tokens)
        answer = tokens + text(2, 9)
        for end in range(11, 20):
            rig.step(kv_cache, answer, end - 1, end)
        rig.manager.check_invariants()
        assert rig.manager.probe_reuse(None, answer[:13]) == 10
        again = rig.prefill(answer[:13])
        assert again.match_info == MatchedTokens(13, 10)
        kv_cache.close()
        again.close()
        assert rig.manager.probe_reuse(None, answer[:12]) == 10
        assert rig.manager.probe_reuse(None, answer[:16]) == 13  # where the second prompt ended
        assert rig.manager.probe_reuse(None, tokens[:9] + [5, 5]) == 0


def test_a_snapshot_behind_an_image_keeps_what_names_the_image() -> None:
    """The block that ends where the snapshot is holds a part of the image longer than the sequence does."""
    tokens: list[Any] = [*text(1, 9), b"image"]
    with KVCacheManager(hybrid_config(), device=HostDevice()) as manager:
        for _round in range(3):
            kv_cache = manager.create_kv_cache(input_tokens=tokens)
            assert kv_cache.resume() and kv_cache.resize(len(tokens))
            kv_cache.commit(tokens[kv_cache.num_committed_tokens :])
            manager.check_invariants()
            kv_cache.close()
            manager.check_invariants()
            assert manager.probe_reuse(None, tokens) == len(tokens)
            assert manager.probe_reuse(None, [*tokens[:9], b"other", 7]) == 0
        manager.clear_reusable_blocks()
        manager.check_invariants()


def test_without_partial_reuse_whole_blocks_and_exact_ends_are_found() -> None:
    """Snapshots at 8, a block boundary, and at 10, where the prompt ended: a longer prompt may not end inside a block."""
    with Rig(enable_partial_reuse=False) as rig:
        tokens = text(1, 10)
        rig.prefill(tokens, stops=[8], snapshot_positions=[8]).close()
        assert rig.manager.probe_reuse(None, tokens) == 10
        assert rig.manager.probe_reuse(None, [*tokens, 7]) == 8
        again = rig.prefill(tokens)
        assert again.match_info == MatchedTokens(10, 10)
        again.close()


def test_snapshot_stays_when_it_is_used() -> None:
    with Rig() as rig:
        tokens = text(1, 12)
        rig.prefill(tokens).close()
        sequences = []
        for seed in range(2, 6):
            longer = tokens + text(seed, 6)
            kv_cache = rig.create(longer)
            assert kv_cache.num_committed_tokens == 12
            rig.step(kv_cache, longer, 12, 18)
            sequences.append(kv_cache)
        slots = {kv_cache.get_ssm_block_base_index(rig.state_group) for kv_cache in sequences}
        assert len(slots) == len(sequences)


def test_windows_and_state_must_both_be_there() -> None:
    """Window 6 and 4 tokens per block: at 16 tokens, block 2 and 3 are needed; at 8 the pages of blocks 0 and 1."""
    with Rig(windows=[None, 6]) as rig:
        tokens = text(1, 40)
        rig.prefill(tokens, stops=[8, 16], snapshot_positions=[8, 16]).close()
        for length, expected in ((40, 40), (39, 16), (16, 16), (15, 8), (8, 8), (7, 0)):
            assert rig.manager.probe_reuse(None, tokens[:length]) == expected
            rig.prefill(tokens[:length] + [9]).close()


def test_reuse_without_attention() -> None:
    with Rig(windows=()) as rig:
        tokens = text(1, 30)
        rig.prefill(tokens, stops=[8, 21], snapshot_positions=[8, 21]).close()
        for length, expected in ((30, 30), (29, 21), (20, 8), (7, 0)):
            assert rig.manager.probe_reuse(None, tokens[:length]) == expected
            rig.prefill(tokens[:length] + [9, 9]).close()


def test_backoff_and_state() -> None:
    """32 tokens with backoff 3 match 29 at most; the state at 29 is not there, that at 24 is."""
    with Rig(tokens_per_block=8, reuse_match_backoff=3) as rig:
        tokens = text(1, 32)
        rig.prefill(tokens, stops=[24], snapshot_positions=[24]).close()
        assert rig.manager.probe_reuse(None, tokens) == 24
        assert rig.manager.probe_reuse(None, tokens[:26]) == 0


def test_a_grid_of_snapshots_with_generation() -> None:
    with Rig(snapshot_policy=SnapshotPolicy(every_num_blocks=2, at_prompt_end=False, at_commits=False)) as rig:
        tokens = text(1, 30)
        kv_cache = rig.create(tokens[:5])
        stops = []
        end = 0
        while end < 30:
            due = kv_cache.next_snapshot_position
            begin, end = end, min(30, end + 3, 30 if due is None else due)
            stops.append(due)
            rig.step(kv_cache, tokens, begin, end)
        assert stops[0] == 8 and stops[-1] == 32
        for length in range(31):
            assert rig.manager.probe_reuse(None, tokens[:length]) == length // 8 * 8


def test_a_state_that_has_gone_ahead_leaves_no_snapshot() -> None:
    """An engine that computes generated tokens before it commits them: the state is not that of the committed tokens."""
    with Rig(snapshot_policy=SnapshotPolicy(every_num_blocks=1, at_prompt_end=False)) as rig:
        kv_cache = rig.create([])
        assert kv_cache.resize(8)
        kv_cache.commit(text(1, 4))
        kv_cache.commit(text(1, 8)[4:])
        assert rig.manager.probe_reuse(None, text(1, 4)) == 0
        assert rig.manager.probe_reuse(None, text(1, 8)) == 8
        # In the prompt too, once room was asked for before all was committed.
        tokens = text(2, 24)
        overlapping = rig.create(tokens)
        assert overlapping.resize(8)
        assert overlapping.resize(16)
        overlapping.commit(tokens[:8])
        overlapping.commit(tokens[8:16])
        assert rig.manager.probe_reuse(None, tokens) == 16
        assert rig.manager.probe_reuse(None, tokens[:15]) == 0


def test_room_for_a_whole_prompt_may_be_taken_at_once() -> None:
    with Rig() as rig:
        tokens = text(1, 24)
        kv_cache = rig.create(tokens, snapshot_positions=[8, 16])
        assert kv_cache.resize(24)
        for end in (8, 16, 24):
            kv_cache.commit(tokens[end - 8 : end])
        assert [rig.manager.probe_reuse(None, tokens[:length]) for length in (8, 16, 23, 24)] == [8, 16, 16, 24]


def test_paths_keep_a_few_snapshots_evenly() -> None:
    """At most 4 per path. Of 1..5 blocks the oldest in the middle goes: 1 3 4 5; with 6: 1 3 5 6 (4 lies between 3 and 5)."""
    policy = SnapshotPolicy(every_num_blocks=1, max_per_path=4)
    with Rig(snapshot_policy=policy) as rig:
        tokens = text(1, 32)
        kv_cache = rig.create(tokens)
        kept = []
        for end in range(4, 33, 4):
            rig.step(kv_cache, tokens, end - 4, end)
            kept.append([n // 4 for n in range(4, end + 1, 4) if rig.manager.probe_reuse(None, tokens[:n]) == n])
        assert kept[3:6] == [[1, 2, 3, 4], [1, 3, 4, 5], [1, 3, 5, 6]]
        assert all(len(blocks) <= 4 and 1 in blocks and max(blocks) == index + 1 for index, blocks in enumerate(kept))


def test_no_room_means_no_snapshot_and_no_error() -> None:
    with Rig(max_util_for_resume=1.0) as rig:
        sequences: list[KVCache] = []
        while True:
            kv_cache = rig.manager.create_kv_cache(input_tokens=text(len(sequences), 4))
            if not kv_cache.resume():
                break
            sequences.append(kv_cache)
        refusal = rig.manager.last_refusal
        for index, sequence in enumerate(sequences):
            if sequence.resize(4):
                sequence.commit(text(index, 4))
                assert rig.manager.probe_reuse(None, text(index, 4)) == 0
                rig.manager.check_invariants()
        assert rig.manager.last_refusal is refusal
        for kv_cache in rig.manager.open_kv_caches:
            kv_cache.close()


def test_old_snapshots_are_evicted_for_new_ones() -> None:
    with Rig() as rig:
        for seed in range(100):
            rig.prefill(text(seed, 12)).close()
            rig.manager.check_invariants()
        assert rig.manager.probe_reuse(None, text(99, 12)) == 12
        assert rig.manager.probe_reuse(None, text(0, 12)) == 0


def test_replay_brings_the_state_up_to_the_attention() -> None:
    with Rig(tokens_per_block=8, max_state_replay_tokens=16) as rig:
        tokens = text(1, 64)
        rig.prefill(tokens, stops=[32], snapshot_positions=[32]).close()
        for length, expected in ((40, MatchedTokens(40, 32)), (48, MatchedTokens(48, 32)), (49, MatchedTokens(49, 32))):
            kv_cache = rig.manager.create_kv_cache(input_tokens=tokens[:length])
            assert kv_cache.match_info == expected
            begins_at_attention = length <= 48
            assert kv_cache.num_committed_tokens == (length if begins_at_attention else 32)
            assert kv_cache.resume()
            if begins_at_attention:
                assert kv_cache.match_info.num_replay_tokens == length - 32
                rig.engine.replay_states(kv_cache, tokens[:length], 32)
            longer = tokens[:length] + text(2, 20)
            rig.step(kv_cache, longer, kv_cache.num_committed_tokens, length + 20)
            kv_cache.close()


def test_replay_stops_where_a_window_has_passed() -> None:
    """Window 6: at 40 tokens the pages of blocks 0 to 7 are gone, and the 33rd token reads block 6: no replay from 32."""
    with Rig(windows=[None, 6], max_state_replay_tokens=16) as rig:
        tokens = text(1, 64)
        rig.prefill(tokens, stops=[32], snapshot_positions=[32]).close()
        assert rig.manager.probe_reuse(None, tokens[:40]) == 32
        # At 33 the window begins at 28, in block 7, as it does at 32 (27 is in block 6): one block has gone by.
        assert rig.manager.probe_reuse(None, tokens[:33]) == 32


def test_forks_begin_with_the_same_state_and_leave_snapshots_too() -> None:
    with Rig() as rig:
        tokens = text(1, 10)
        rig.prefill(tokens).close()
        waiting = rig.manager.create_kv_cache(input_tokens=tokens + [5, 5])
        early = waiting.fork()  # before there is any state
        assert early.match_info == waiting.match_info == MatchedTokens(10, 10)
        assert early.next_snapshot_position == 12
        waiting.close()
        assert early.resume()
        rig.step(early, tokens + [5, 5], 10, 12)
        late = early.fork()  # with a state of its own
        longer = tokens + [5, 5, 6, 6]
        rig.step(late, longer, 12, 14)
        rig.step(early, tokens + [5, 5, 7], 12, 13)
        assert rig.manager.probe_reuse(None, longer) == 12


@pytest.mark.parametrize("seed", range(4))
def test_copies_are_in_stream_order(seed: int) -> None:
    device = SimulatedDevice(seed)
    with Rig(device, windows=[None, 6]) as rig:
        streams = [device.default_stream(), device.create_stream(), device.create_stream()]
        base = text(1, 12)
        for number in range(20):
            tokens = base + text(number % 3, 9)
            kv_cache = rig.manager.create_kv_cache(input_tokens=tokens)
            assert kv_cache.resume(streams[number % 3])
            while kv_cache.num_committed_tokens < len(tokens):
                due = kv_cache.next_snapshot_position
                end = min(len(tokens), due or len(tokens))
                rig.step(kv_cache, tokens, kv_cache.num_committed_tokens, end)
            kv_cache.close()
        rig.engine.synchronize()
        assert not device.races


def test_a_journal_of_it_runs_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Rig(journal=path, state_checkpoints=1, max_state_replay_tokens=4) as rig:
        tokens = text(1, 24)
        rig.prefill(tokens, stops=[8, 13], snapshot_positions=[8, 13], expected_prompt_length=30).close()
        second = rig.create(tokens[:20] + text(2, 9), snapshot_positions=[27])
        if second.match_info.num_replay_tokens > 0:
            rig.engine.replay_states(second, tokens[: second.num_committed_tokens], second.match_info.state_tokens)
        rig.step(second, tokens[:20] + text(2, 9), second.num_committed_tokens, 27)
        assert second.resize(29)
        assert second.resize(28)
        second.close()
    result = rerun(path, HostDevice(), check_invariants=True)
    assert result.num_calls > 10 and result.num_digests > 0


def test_states_and_snapshots_go_down_and_come_up_again() -> None:
    """More suspended states, and more snapshots, than level 0 has slots for."""
    tiers = [GpuCacheTierConfig(1 << 12), HostCacheTierConfig(1 << 15)]
    with Rig(cache_tiers=tiers) as rig:
        sequences = []
        for seed in range(20):
            kv_cache = rig.prefill(text(seed, 9))
            kv_cache.suspend()
            sequences.append(kv_cache)
            rig.manager.check_invariants()
        for seed, kv_cache in enumerate(sequences):
            assert kv_cache.resume()
            rig.step(kv_cache, text(seed, 10), 9, 10)
            kv_cache.close()
        num_found = 0
        for seed in range(20):
            kv_cache = rig.create(text(seed, 9) + [7])
            num_found += kv_cache.num_committed_tokens == 9
            rig.step(kv_cache, text(seed, 9) + [7], kv_cache.num_committed_tokens, 10)
            kv_cache.close()
        assert num_found == 20


@pytest.mark.parametrize("end", [16, 18])
def test_a_closed_chat_leaves_its_own_state_where_the_next_turn_begins(end: int) -> None:
    """On a whole block, or inside one; without a copy, and not a slot more."""
    with Rig(snapshot_policy=SnapshotPolicy(at_prompt_end=False, at_close=True, at_commits=False)) as rig:
        tokens = text(1, end + 6)
        kv_cache = rig.prefill(tokens[:10])
        for position in range(10, end):
            rig.step(kv_cache, tokens, position, position + 1)
        slot = kv_cache.get_ssm_block_base_index(rig.state_group)
        used = [counts.total - counts.free for counts in rig.manager.get_storage_statistics()]
        kv_cache.close()
        assert [counts.total - counts.free for counts in rig.manager.get_storage_statistics()] == used
        turn = rig.create(tokens)
        assert turn.num_committed_tokens == end
        assert turn.get_ssm_block_base_index(rig.state_group) != slot
        rig.step(turn, tokens, end, end + 6)
        # A suspended one, and one whose state may have gone on, leave none.
        assert turn.resize(end + 8)
        turn.close()
        assert rig.manager.probe_reuse(None, tokens) == end
        waiting = rig.prefill(tokens)
        waiting.suspend()
        waiting.close()
        assert rig.manager.probe_reuse(None, tokens) == end


def test_a_replayed_match_that_is_closed_at_once_leaves_nothing() -> None:
    """Its state is behind its tokens still."""
    policy = SnapshotPolicy(at_prompt_end=False, at_close=True, at_commits=False)
    with Rig(tokens_per_block=8, max_state_replay_tokens=16, snapshot_policy=policy) as rig:
        tokens = text(1, 64)
        kv_cache = rig.prefill(tokens, stops=[32], snapshot_positions=[32])
        assert kv_cache.resize(70)
        kv_cache.close()
        kv_cache = rig.create(tokens[:40])
        assert kv_cache.match_info == MatchedTokens(40, 32)
        kv_cache.close()
        assert rig.manager.create_kv_cache(input_tokens=tokens[:40]).match_info == MatchedTokens(40, 32)


@pytest.mark.parametrize("nth", [1, 2])
def test_a_commit_whose_snapshot_cannot_be_copied_has_changed_nothing(nth: int) -> None:
    """Two pools, so two copies."""
    device = SimulatedDevice(1)
    with Rig(device) as rig:
        tokens = text(1, 8)
        kv_cache = rig.create(tokens)
        assert kv_cache.resize(8)
        before, digest = rig.manager.describe(), rig.manager.state_digest()
        device.faults.fail("copy", nth, RuntimeError("no copy today"))
        with pytest.raises(RuntimeError, match="no copy today"):
            kv_cache.commit(tokens)
        rig.manager.check_invariants()
        assert rig.manager.describe() == before and rig.manager.state_digest() == digest
        kv_cache.commit(tokens)
        assert rig.manager.probe_reuse(None, tokens) == 8


@pytest.mark.parametrize("kind", ["copy", "fill"])
def test_a_first_resume_that_the_device_refuses_has_changed_nothing(kind: str) -> None:
    device = SimulatedDevice(1)
    with Rig(device) as rig:
        tokens = text(1, 8)
        rig.prefill(tokens).close()
        kv_cache = rig.manager.create_kv_cache(input_tokens=tokens if kind == "copy" else [5])
        before, digest = rig.manager.describe(), rig.manager.state_digest()
        device.faults.fail(kind, 2, RuntimeError("not today"))
        with pytest.raises(RuntimeError, match="not today"):
            kv_cache.resume()
        rig.manager.check_invariants()
        assert rig.manager.describe() == before and rig.manager.state_digest() == digest
        assert kv_cache.resume()
        rig.step(kv_cache, tokens + [9], kv_cache.num_committed_tokens, 9)


def test_statistics_name_the_missing_snapshot() -> None:
    with Rig(tokens_per_block=32) as rig:
        shared = text(0, 64)
        rig.prefill(shared + text(1, 32)).close()
        second = rig.create(shared + text(2, 40))
        missed = second.statistics.prompts.missed_tokens
        assert missed[MissCause.NO_SNAPSHOT] == 64
        assert sum(missed.values()) == 104


def test_wrong_arguments_are_refused_by_name() -> None:
    with Rig() as rig:
        with pytest.raises(ValueError, match="snapshot_positions"):
            rig.manager.create_kv_cache(snapshot_positions=[-1])
        with pytest.raises(ValueError, match="expected_prompt_length"):
            rig.manager.create_kv_cache(expected_prompt_length=-1)
    for make, error, name in (
        (lambda: SnapshotPolicy(every_num_blocks=0), ValueError, "every_num_blocks"),
        (lambda: SnapshotPolicy(max_per_path=1), ValueError, "max_per_path"),
        (lambda: hybrid_config(state_checkpoints=-1), ValueError, "state_checkpoints"),
        (lambda: hybrid_config(max_state_replay_tokens=-1), ValueError, "max_state_replay_tokens"),
    ):
        with pytest.raises(error, match=name):
            make()


def test_a_snapshot_is_taken_where_the_last_suspended_state_can_be_offloaded() -> None:
    """Level 0 has slots for two states: one is suspended, and is offloaded when the running one leaves its snapshot."""
    tiers = [GpuCacheTierConfig(2 * STATE_BYTES), HostCacheTierConfig(8 * STATE_BYTES)]
    config = hybrid_config(windows=(), num_state_layers=1, cache_tiers=tiers, max_util_for_resume=1.0)
    with KVCacheManager(config, device=HostDevice()) as manager:
        suspended = manager.create_kv_cache()
        assert suspended.resume() and suspended.resize(4)
        suspended.suspend()
        running = manager.create_kv_cache(input_tokens=text(1, 4))
        assert running.resume() and running.resize(4)
        assert running.next_snapshot_position == 4
        running.commit(text(1, 4))
        assert [level[0].free for level in map(manager.get_storage_statistics, range(2))] == [0, 7]
        assert manager.probe_reuse(None, text(1, 5)) == 4
        manager.check_invariants()
        running.close()
        suspended.close()
