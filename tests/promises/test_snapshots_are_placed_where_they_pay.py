"""With ``SnapshotPolicy(placement="learned")`` prompts leave snapshots of recurrent state where earlier prompts came back, and none
where they did not; the same calls place the same ones, and where nothing is known they are placed as without it."""

import dataclasses
from pathlib import Path
from random import Random

import pytest
from hybrid_models import STATE_BYTES, Rig, hybrid_config

from kv_cache_manager_v2 import (
    EvictionPolicy,
    GpuCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    ReuseScope,
    SnapshotPolicy,
)
from kv_cache_manager_v2.replay.rerun import rerun
from kv_cache_manager_v2.sequence.learned_placement import LEAST_REQUESTS, NUM_MARKS, NUM_SCOPES

LEARNED = SnapshotPolicy(placement="learned", at_commits=False)
FIXED = SnapshotPolicy(at_commits=False)
SIZE = 4


def text(seed: int, length: int) -> list[int]:
    return [seed * 10_000 + position for position in range(length)]


def few_states(num_states: int, policy: SnapshotPolicy) -> KVCacheManagerConfig:
    """Room for many blocks and so many states."""
    config = hybrid_config(snapshot_policy=policy, max_util_for_resume=1.0)
    block_bytes = sum(buffer.size for buffer in config.layers[0].buffers)
    state_bytes = 2 * STATE_BYTES
    num_blocks = 4000
    total = num_blocks * block_bytes + num_states * state_bytes
    return hybrid_config(
        snapshot_policy=policy, max_util_for_resume=1.0, typical_step=None, cache_tiers=[GpuCacheTierConfig(total)],
        initial_pool_ratio=[num_blocks * block_bytes / total, num_states * state_bytes / total],
        tokens_per_block=config.tokens_per_block,
    )  # fmt: skip


def serve(manager: KVCacheManager, prompt: list[int], scope: ReuseScope | None = None) -> tuple[int, list[int]]:
    """The reused tokens, and the lengths at which the prefill was told to stop."""
    stops: list[int] = []
    with manager.create_kv_cache(scope, prompt[:-1]) as kv_cache:
        found = begin = kv_cache.num_committed_tokens
        assert kv_cache.resume()
        while begin < len(prompt):
            stop = kv_cache.next_snapshot_position
            if stop is not None:
                stops.append(stop)
            end = len(prompt) if stop is None else stop
            assert kv_cache.resize(end)
            kv_cache.commit(prompt[begin:end])
            begin = end
    return found, stops


def serve_instructions(manager: KVCacheManager, count: int) -> tuple[int, list[int]]:
    """Instructions of 40 tokens, three questions about each; what the second question about the last one reused, and its stops."""
    random = Random(1)
    second: tuple[int, list[int]] = (0, [])
    for number in range(count):
        instruction = text(2 * number + 1, 40)
        serve(manager, instruction + text(100 + number, random.randint(5, 20)))
        second = serve(manager, instruction + text(1000 + number, random.randint(5, 20)))
        serve(manager, instruction + text(3000 + number, random.randint(5, 20)))
    return second


def test_the_second_prompt_finds_the_place_where_prompts_of_its_scope_part() -> None:
    """At once; without, the second one is the first to know of the place, and only the third finds a snapshot there."""
    with KVCacheManager(few_states(40, LEARNED), device=HostDevice()) as manager:
        assert serve_instructions(manager, 60)[0] == 40
        # Of a text that nothing is known of, the first prompt stops there.
        assert 40 in serve(manager, text(999, 60))[1]
    with KVCacheManager(few_states(40, FIXED), device=HostDevice()) as manager:
        assert serve_instructions(manager, 60)[0] == 0


def test_prompts_that_are_never_continued_leave_nothing_at_their_end() -> None:
    with KVCacheManager(few_states(6, LEARNED), device=HostDevice()) as manager:
        shared = text(1, 40)
        for number in range(150):
            # Alternately about one instruction, and about nothing that comes again.
            serve(manager, shared + text(2 + number, 9))
            serve(manager, text(1000 + number, 60))
        found, stops = serve(manager, shared + text(5000, 9))
        assert found == 40 and stops == []
        # Its end would cost a slot that nothing comes back for.
        assert serve(manager, text(6000, 60))[1] == []
    with KVCacheManager(few_states(6, FIXED), device=HostDevice()) as manager:
        assert serve(manager, text(6000, 60))[1] == [59]


def test_chats_leave_a_snapshot_at_the_end_of_each_prompt() -> None:
    with KVCacheManager(few_states(40, LEARNED), device=HostDevice()) as manager:
        chats = [text(number + 1, 30) for number in range(8)]
        for _turn in range(12):
            for number, chat in enumerate(chats):
                serve(manager, chat)
                chats[number] = chat + text(500 + number, 14)
        found = [serve(manager, chat)[0] for chat in chats]
        # The turn before ended 14 tokens earlier, and one token before its end is the last that is given for reuse.
        assert [len(chat) - 14 - length <= SIZE for chat, length in zip(chats, found, strict=True)] == [True] * 8


@pytest.mark.parametrize("at_prompt_end", [True, False])
@pytest.mark.parametrize("at_branches", [True, False])
def test_where_nothing_is_known_it_is_the_fixed_placement(at_prompt_end: bool, at_branches: bool) -> None:
    answers = []
    for placement in ("fixed", "learned"):
        policy = SnapshotPolicy(placement=placement, at_prompt_end=at_prompt_end, at_branches=at_branches)
        with Rig(config=few_states(20, policy)) as rig:
            # Of each scope two prompts: that is not enough to know.
            answers.append([
                serve(rig.manager, text(1, 20) + text(number, 12), ReuseScope(salt=number // 2)) for number in range(80)
            ])  # fmt: skip
    assert answers[0] == answers[1]


@pytest.mark.parametrize("at_prompt_end", [True, False])
def test_fields_that_are_off_stay_off(at_prompt_end: bool) -> None:
    policy = SnapshotPolicy(placement="learned", at_prompt_end=at_prompt_end, at_branches=False, at_commits=False)
    with KVCacheManager(few_states(200, policy), device=HostDevice()) as manager:
        for number in range(60):
            prompt = text(number + 1, 41)
            stops = serve(manager, prompt)[1]
            assert len(stops) == 0 or at_prompt_end
            # The next turn.
            serve(manager, prompt + text(500 + number, 9))
        assert (len(serve(manager, text(7777, 41))[1]) > 0) == at_prompt_end


def test_levels_may_be_resized_while_it_learns() -> None:
    with KVCacheManager(few_states(40, LEARNED), device=HostDevice()) as manager:
        quota = manager.init_config.cache_tiers[0].quota
        for number in range(10):
            serve_instructions(manager, 6)
            manager.resize(0, quota - (number % 3) * (quota // 4))
            manager.adjust()
            manager.check_invariants()


@pytest.mark.parametrize("num_tries", [0, 3])
def test_dummies_and_prompts_that_find_no_room_teach_nothing(num_tries: int) -> None:
    answers = []
    for counts, has_room in ((True, True), (False, True), (True, False)):
        with KVCacheManager(few_states(20, LEARNED), device=HostDevice()) as manager:
            for number in range(100):
                for attempt in range(num_tries + 1):
                    with manager.create_kv_cache(input_tokens=text(number + 1, 40), count_in_statistics=counts) as kv_cache:
                        fits = has_room and attempt == num_tries
                        assert kv_cache.resume() and kv_cache.resize(1 if fits else 100_000) is fits
            answers.append(serve(manager, text(8888, 41))[1])
    # Nothing came back: prompts that count are known not to.
    assert answers == [[], [40], [40]]


@pytest.mark.parametrize(("policy", "resumes"), [(EvictionPolicy.LRU, True), (EvictionPolicy.LEARNED, False)])
def test_a_prompt_that_is_tried_again_and_again_counts_once(policy: EvictionPolicy, resumes: bool) -> None:
    """Chats that go on or end, of which each prompt finds no room five times: the same snapshots, and the same hits."""
    config = few_states(12, LEARNED)
    config = dataclasses.replace(config, cache_tiers=[GpuCacheTierConfig(config.cache_tiers[0].quota, policy)])
    answers: list[list[tuple[int, list[int]]]] = [[], []]
    for answer, num_tries in zip(answers, (0, 5), strict=True):
        random = Random(3)
        with KVCacheManager(config, device=HostDevice()) as manager:
            chats = [text(number + 1, 30) for number in range(20)]
            for number in range(200):
                which = random.randrange(20)
                for _try in range(num_tries):
                    with manager.create_kv_cache(input_tokens=chats[which][:-1]) as waiting:
                        assert not resumes or (waiting.resume() and not waiting.resize(100_000))
                answer.append(serve(manager, chats[which]))
                chats[which] = text(1000 + number, 30) if random.random() < 0.3 else chats[which] + text(500 + number, 14)
            manager.check_invariants()
    assert answers[0] == answers[1] and sum(found for found, _stops in answers[0]) > 1000


def test_a_journal_of_it_runs_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with KVCacheManager(few_states(12, LEARNED), device=HostDevice(), journal=path) as manager:
        serve_instructions(manager, 30)
        with manager.create_kv_cache(input_tokens=text(1, 40)) as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(44)
            kv_cache.rewind(min(8, kv_cache.num_committed_tokens))
        serve_instructions(manager, 5)
    result = rerun(path, HostDevice(), check_invariants=False)
    assert result.num_digests > 0


@pytest.mark.parametrize("value", ["often", ""])
def test_another_placement_is_an_error_that_names_it(value: str) -> None:
    with pytest.raises(ValueError, match="SnapshotPolicy.placement"):
        SnapshotPolicy(placement=value)


def test_the_words_are_in_the_message() -> None:
    with pytest.raises(ValueError, match="'fixed', 'learned'"):
        SnapshotPolicy(placement="Learned")


def test_scopes_without_number_are_forgotten_in_turn() -> None:
    """More scopes, and more places, than are remembered: what is learned of the latest one still counts."""
    with KVCacheManager(few_states(64, LEARNED), device=HostDevice()) as manager:
        for number in range(NUM_SCOPES + 6):
            for question in range(NUM_MARKS // NUM_SCOPES):
                serve(manager, text(1_000 * number + question, 40), ReuseScope(salt=number))
        for question in range(LEAST_REQUESTS + 4):
            found, _stops = serve(manager, text(7, 40) + text(500 + question, 10), ReuseScope(salt=0))
        assert found == 40
        manager.check_invariants()
