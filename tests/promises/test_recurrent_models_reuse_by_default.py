"""Models with recurrent layers reuse prompts with the default policy: an engine that prefills in one go leaves a snapshot for the next
turn, and one that stops where it is told leaves one for equal prompts too; without taking a slot from another sequence."""

import logging
from pathlib import Path

import pytest
from hybrid_models import STATE_BYTES, Rig, hybrid_config

from kv_cache_manager_v2 import GpuCacheTierConfig, HostDevice, KVCache, KVCacheManager, SnapshotPolicy
from kv_cache_manager_v2.replay.rerun import rerun

PROMPT = [1000 + position for position in range(75)]
ONLY_AT_COMMITS = SnapshotPolicy(at_prompt_end=False, at_branches=False)


def text(seed: int, length: int) -> list[int]:
    return [seed * 10_000 + position for position in range(length)]


def serve(rig: Rig, prompt: list[int], stops: bool) -> int:
    """Prefill a prompt, all but its last token for reuse, and generate a token; returns how many tokens were reused."""
    with rig.create(prompt[:-1], expected_prompt_length=len(prompt)) as kv_cache:
        found = kv_cache.num_committed_tokens
        begin = found
        while begin < len(prompt):
            stop = kv_cache.next_snapshot_position if stops else None
            end = len(prompt) if stop is None else stop
            rig.step(kv_cache, prompt, begin, end)
            begin = end
        rig.step(kv_cache, [*prompt, 7], len(prompt), len(prompt) + 1)
        return found


def small_pool(num_slots: int) -> KVCacheManager:
    """One recurrent layer and nothing else, with so many slots."""
    tiers = [GpuCacheTierConfig(num_slots * STATE_BYTES)]
    config = hybrid_config(
        windows=(), num_state_layers=1, cache_tiers=tiers, max_util_for_resume=1.0, snapshot_policy=ONLY_AT_COMMITS
    )
    return KVCacheManager(config, device=HostDevice())


def run(manager: KVCacheManager, prompt: list[int]) -> KVCache:
    kv_cache = manager.create_kv_cache(input_tokens=prompt)
    assert kv_cache.resume()
    return kv_cache


def advance(kv_cache: KVCache, tokens: list[int]) -> None:
    assert kv_cache.resize(kv_cache.num_committed_tokens + len(tokens))
    kv_cache.commit(tokens)


def test_equal_prompts_with_the_stop_reuse_all_but_the_last_token() -> None:
    with Rig(tokens_per_block=32, quota=1 << 16) as rig:
        assert [serve(rig, PROMPT, True) for _ in range(4)] == [0, 74, 74, 74]


def test_a_chat_goes_on_after_a_prefill_in_one_go() -> None:
    """A state cannot be cut: equal prompts find nothing, their snapshot is one token too late; the next turn begins there."""
    with Rig(tokens_per_block=32, quota=1 << 16) as rig:
        assert [serve(rig, PROMPT, False) for _ in range(4)] == [0, 0, 0, 0]
        assert rig.manager.probe_reuse(None, [*PROMPT, 7, 8, 9]) == 75


def test_a_prompt_whose_end_was_not_announced_leaves_one_too() -> None:
    """All but the last token were given for reuse, and nothing was said of the last one."""
    with Rig(tokens_per_block=32, quota=1 << 16) as rig:
        with rig.create(PROMPT[:-1]) as kv_cache:
            rig.step(kv_cache, PROMPT, 0, 75)
        assert rig.manager.probe_reuse(None, [*PROMPT, 7]) == 75


def test_each_chunk_of_a_prompt_leaves_one() -> None:
    with Rig(tokens_per_block=8, snapshot_policy=ONLY_AT_COMMITS) as rig:
        tokens = text(1, 30)
        rig.prefill(tokens, stops=[8, 13, 24]).close()
        assert [rig.manager.probe_reuse(None, tokens[:length]) for length in (7, 8, 12, 13, 23, 24, 29, 30)] == [
            0, 8, 8, 13, 13, 24, 24, 30
        ]  # fmt: skip


def test_generated_tokens_leave_none_but_at_their_end() -> None:
    with Rig(snapshot_policy=ONLY_AT_COMMITS) as rig:
        tokens = text(1, 16)
        kv_cache = rig.prefill(tokens[:10])
        for end in range(11, 16):
            rig.step(kv_cache, tokens, end - 1, end)
        assert rig.manager.probe_reuse(None, [*tokens[:15], 3]) == 10
        assert kv_cache.resize(16)
        rig.engine.execute([rig.make_step(kv_cache, tokens, 15, 16)])
        kv_cache.commit(tokens[15:16], is_end=True)
        assert rig.manager.probe_reuse(None, [*tokens, 3]) == 16
        assert kv_cache.next_snapshot_position is None
        kv_cache.close()


def test_a_policy_without_it_leaves_none() -> None:
    with Rig(snapshot_policy=SnapshotPolicy(at_prompt_end=False, at_branches=False, at_commits=False)) as rig:
        tokens = text(1, 16)
        kv_cache = rig.create(tokens)
        rig.step(kv_cache, tokens, 0, 12)
        assert kv_cache.resize(16)
        rig.engine.execute([rig.make_step(kv_cache, tokens, 12, 16)])
        kv_cache.commit(tokens[12:], is_end=True)
        assert rig.manager.probe_reuse(None, tokens) == 0
        kv_cache.close()


def test_a_state_that_may_be_ahead_leaves_none() -> None:
    """There is room for tokens that are not committed: the engine may have computed them, and the state with them."""
    with Rig(snapshot_policy=ONLY_AT_COMMITS) as rig:
        tokens = text(1, 16)
        kv_cache = rig.create(tokens)
        assert kv_cache.resize(16)
        rig.engine.execute([rig.make_step(kv_cache, tokens, 0, 16)])
        kv_cache.commit(tokens[:8])
        assert rig.manager.probe_reuse(None, tokens[:15]) == 0
        kv_cache.commit(tokens[8:])
        assert rig.manager.probe_reuse(None, tokens) == 16
        kv_cache.close()


def test_it_replaces_the_sequences_own_and_no_other_snapshot() -> None:
    """Four slots: two running states, a snapshot of the first, one of the second; then each has only its own to replace."""
    with small_pool(4) as manager:
        one, other = run(manager, text(1, 24)), run(manager, text(2, 24))
        advance(one, text(1, 4))
        advance(other, text(2, 4))
        assert manager.get_storage_statistics()[0].free == 0
        advance(one, text(1, 24)[4:9])
        assert [manager.probe_reuse(None, text(1, length)) for length in (4, 8, 9)] == [0, 0, 9]
        assert manager.probe_reuse(None, text(2, 4)) == 4
        advance(one, text(1, 24)[9:12])
        assert manager.probe_reuse(None, text(1, 24)) == 12
        manager.check_invariants()
        one.close()
        other.close()


def test_without_a_free_slot_or_one_of_its_own_there_is_none() -> None:
    """Three slots: one has two snapshots, which others may use, and the running state of the other has the third."""
    with small_pool(3) as manager:
        first = run(manager, text(1, 8))
        advance(first, text(1, 4))
        advance(first, text(1, 8)[4:])
        first.close()
        second = run(manager, text(2, 8))
        assert manager.get_storage_statistics()[0].free == 0
        advance(second, text(2, 4))
        assert manager.probe_reuse(None, text(2, 8)) == 0
        assert [manager.probe_reuse(None, text(1, length)) for length in (4, 8)] == [4, 8]
        second.close()


def test_a_snapshot_in_use_is_not_replaced() -> None:
    """Three slots, all taken: another sequence is going to start from the snapshot at 4."""
    with small_pool(3) as manager:
        first, filler = run(manager, text(1, 8)), run(manager, text(2, 8))
        advance(first, text(1, 4))
        waiting = manager.create_kv_cache(input_tokens=text(1, 4))
        assert waiting.num_committed_tokens == 4
        advance(first, text(1, 8)[4:])
        assert [manager.probe_reuse(None, text(1, length)) for length in (4, 8)] == [4, 4]
        filler.close()
        assert waiting.resume()
        first.close()
        waiting.close()


def test_another_sequences_snapshot_in_the_same_place_is_not_replaced() -> None:
    """The first one's snapshot at 4 was evicted; the second one, with the same tokens, has left it anew."""
    with small_pool(3) as manager:
        first = run(manager, text(1, 12))
        advance(first, text(1, 4))
        fillers = [run(manager, text(seed, 8)) for seed in (2, 3)]
        assert manager.probe_reuse(None, text(1, 4)) == 0
        fillers[0].close()
        fillers[1].close()
        second = run(manager, text(1, 12))
        advance(second, text(1, 4))
        assert manager.probe_reuse(None, text(1, 4)) == 4
        advance(first, text(1, 12)[4:8])
        assert [manager.probe_reuse(None, text(1, length)) for length in (4, 8)] == [4, 4]
        first.close()
        second.close()


def test_a_journal_of_it_runs_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Rig(journal=path, snapshot_policy=ONLY_AT_COMMITS) as rig:
        tokens = text(1, 16)
        kv_cache = rig.prefill(tokens[:10], stops=[4])
        assert kv_cache.resize(16)
        rig.engine.execute([rig.make_step(kv_cache, tokens, 10, 16)])
        kv_cache.commit([*tokens[10:16]], is_end=True)
        kv_cache.close()
        assert rig.create([*tokens, 9]).num_committed_tokens == 16
    result = rerun(path, HostDevice(), check_invariants=True)
    assert result.num_calls > 5 and result.num_digests > 0


def test_the_end_of_several_beams_is_said_too(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Rig(journal=path) as rig:
        tokens = text(1, 8)
        kv_cache = rig.prefill(tokens)
        kv_cache.beam_width = 2
        assert kv_cache.resize(9)
        kv_cache.commit([5], [0], is_end=True)
        assert kv_cache.next_snapshot_position is None
        kv_cache.close()
    assert rerun(path, HostDevice(), check_invariants=True).num_digests > 0


def test_a_prefill_that_passes_all_places_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if "next_snapshot_position" in record.getMessage()]

    with Rig(tokens_per_block=32, quota=1 << 16) as rig, caplog.at_level(logging.WARNING, "kv_cache_manager_v2"):
        serve(rig, PROMPT, True)
        assert warnings() == []
        serve(rig, text(2, 75), False)
        assert len(warnings()) == 1 and "74" in warnings()[0]
        serve(rig, text(3, 75), False)
        assert len(warnings()) == 1


def test_a_prefill_that_stopped_where_one_was_planned_does_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    """It left a snapshot at 32, so equal prompts begin there; without that the same commit warns of 64, the last place on the grid."""
    policy = SnapshotPolicy(every_num_blocks=1, at_prompt_end=False, at_branches=False, at_commits=False)
    for stops, num_warnings in (([32], 0), ([], 1)):
        caplog.set_level(logging.WARNING, "kv_cache_manager_v2")
        with Rig(tokens_per_block=32, quota=1 << 16, snapshot_policy=policy) as rig:
            caplog.clear()
            rig.prefill(text(2, 75), stops).close()
            messages = [record.getMessage() for record in caplog.records if "passes 64" in record.getMessage()]
            assert len(messages) == num_warnings


def test_the_fake_engine_stops_and_leaves_a_token_to_compute() -> None:
    with Rig(tokens_per_block=32, quota=1 << 16) as rig:
        found = []
        for _ in range(4):
            with rig.create(PROMPT[:-1], expected_prompt_length=75) as kv_cache:
                found.append(kv_cache.num_committed_tokens)
                assert rig.engine.prefill(kv_cache, PROMPT) == 75 - found[-1]
                assert kv_cache.num_committed_tokens == 75
        assert found == [0, 74, 74, 74]
        with rig.create(PROMPT) as kv_cache:
            assert kv_cache.num_committed_tokens == 75
            with pytest.raises(ValueError, match="nothing left to compute"):
                rig.engine.prefill(kv_cache, PROMPT)
