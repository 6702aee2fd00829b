"""Prefixes that the user retains are kept longest, for the given time, and never cause a refusal."""

from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kv_cache_manager_v2 import (
    AttnLifeCycle,
    EvictionPolicy,
    GpuCacheTierConfig,
    HintResult,
    HostCacheTierConfig,
    KVCacheManager,
    KVCacheManagerConfig,
    LifeCycle,
    ReuseScope,
    RetentionConfig,
    TokenRangeRetention,
)
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.replay.rerun import rerun
from small_models import attention_layers

T = 4
SLOT_BYTES = 2 * 8 * T


def manager_of(num_slots: int, num_host_slots: int = 0, journal: Path | None = None, **settings) -> KVCacheManager:
    tiers = [GpuCacheTierConfig(num_slots * SLOT_BYTES)]
    lower = [HostCacheTierConfig(num_host_slots * SLOT_BYTES)] if num_host_slots > 0 else []
    config = KVCacheManagerConfig(T, [*tiers, *lower], attention_layers([None], T), **settings)
    return KVCacheManager(config, device=HostDevice(granularity_bytes=4096), journal=journal)


def text(number: int, num_blocks: int) -> list[int]:
    return [1000 * number + position for position in range(num_blocks * T)]


def serve(manager: KVCacheManager, tokens: list[int], retention: RetentionConfig | None = None) -> None:
    with manager.create_kv_cache(None, tokens, retention=retention) as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(len(tokens))
        kv_cache.commit(tokens[kv_cache.num_committed_tokens :])


def serve_others(manager: KVCacheManager, numbers: range, num_blocks: int) -> None:
    for number in numbers:
        serve(manager, text(number, num_blocks))


def cached(manager: KVCacheManager, tokens: list[int]) -> int:
    return manager.probe_reuse(None, tokens)


def test_a_range_of_the_prompt_outlives_the_rest() -> None:
    with manager_of(8) as manager:
        keep = RetentionConfig([TokenRangeRetention(0, 2 * T, 80)])
        serve(manager, text(1, 4), keep)
        serve_others(manager, range(2, 8), 4)
        # Blocks 2 and 3 had the default priority and went; 0 and 1 are still there.
        assert cached(manager, text(1, 4)) == 2 * T


@pytest.mark.parametrize("when", ["at first", "after the fact"])
def test_it_lasts_as_long_as_was_said(when: str) -> None:
    with manager_of(8) as manager:
        if when == "at first":
            serve(manager, text(1, 2), RetentionConfig([TokenRangeRetention(0, None, 80, duration_seconds=30)]))
        else:
            serve(manager, text(1, 2))
            assert manager.retain(text(1, 2), priority=80, duration_seconds=30) == HintResult(2 * T, 0, 0)
        manager.advance_clock(29)
        serve_others(manager, range(2, 6), 6)
        assert cached(manager, text(1, 2)) == 2 * T
        manager.advance_clock(1)
        serve_others(manager, range(6, 10), 6)
        assert cached(manager, text(1, 2)) == 0
        manager.check_invariants()


def test_what_is_generated_has_a_priority_of_its_own() -> None:
    with manager_of(8) as manager:
        tokens = text(1, 4)
        kv_cache = manager.create_kv_cache(
            None, tokens[: 2 * T], expected_prompt_length=2 * T, retention=RetentionConfig(generated_priority=10)
        )
        assert kv_cache.resume() and kv_cache.resize(4 * T)
        kv_cache.commit(tokens)
        priorities = [block["pages"][0]["priority"] for block in manager.describe()["tree"][0]["blocks"]]
        assert priorities == [35, 35, 10, 10]
        kv_cache.close()


def test_a_session_is_retained_after_the_fact_and_released() -> None:
    with manager_of(8) as manager:
        serve(manager, text(1, 3))
        # 3 of the 5 blocks are there; half of the 8 slots may be pinned.
        assert manager.retain(text(1, 5)) == HintResult(3 * T, 0, 2 * T)
        serve_others(manager, range(2, 8), 4)
        assert cached(manager, text(1, 3)) == 3 * T
        assert manager.release(text(1, 3)) == HintResult(3 * T, 0, 0)
        serve_others(manager, range(8, 14), 4)
        assert cached(manager, text(1, 3)) == 0


def test_pins_have_a_budget_and_the_oldest_ends() -> None:
    with manager_of(8, max_pinned_share=0.5) as manager:
        serve(manager, text(1, 3))
        serve(manager, text(2, 3))
        assert manager.retain(text(1, 3)) == HintResult(3 * T, 0, 0)
        assert manager.retain(text(2, 3)) == HintResult(1 * T, 2 * T, 0)
        # Nothing but pinned pages and one more sequence: it gets its room all the same.
        serve(manager, text(3, 8))
        assert cached(manager, text(3, 8)) == 8 * T


def test_pins_whose_time_is_over_take_nothing_of_the_budget() -> None:
    with manager_of(8, max_pinned_share=0.5) as manager:
        serve(manager, text(1, 3))
        serve(manager, text(2, 3))
        # 4 of the 8 slots may be pinned.
        assert manager.retain(text(1, 3), duration_seconds=10) == HintResult(3 * T, 0, 0)
        assert manager.retain(text(2, 3)) == HintResult(1 * T, 2 * T, 0)
        manager.advance_clock(10)
        assert manager.retain(text(2, 3)) == HintResult(3 * T, 0, 0)


@pytest.mark.parametrize("again_seconds", [None, 20])
def test_a_prefix_that_is_retained_anew_is_retained_by_the_last_word(again_seconds: int | None) -> None:
    with manager_of(8) as manager:
        serve(manager, text(1, 2), RetentionConfig([TokenRangeRetention(0, None, 80, duration_seconds=5)]))
        assert manager.retain(text(1, 2), priority=80, duration_seconds=10).num_accepted == 2 * T
        assert manager.retain(text(1, 2), priority=80, duration_seconds=again_seconds).num_accepted == 2 * T
        manager.advance_clock(19)
        serve_others(manager, range(2, 6), 6)
        assert cached(manager, text(1, 2)) == 2 * T
        manager.advance_clock(1)
        serve_others(manager, range(6, 10), 6)
        assert cached(manager, text(1, 2)) == (2 * T if again_seconds is None else 0)


def test_a_time_that_ends_after_a_release_changes_nothing() -> None:
    with manager_of(8) as manager:
        serve(manager, text(1, 2))
        manager.retain(text(1, 2), priority=0, duration_seconds=10)
        manager.release(text(1, 2))
        manager.demote(text(1, 2))
        manager.advance_clock(10)
        priorities = [block["pages"][0]["priority"] for block in manager.describe()["tree"][0]["blocks"]]
        assert priorities == [0, 0], "demoted since"


def test_demoted_pages_go_first() -> None:
    with manager_of(8) as manager:
        serve(manager, text(1, 4))
        serve(manager, text(2, 4))
        assert manager.demote(text(2, 4)).num_accepted == 4 * T
        serve(manager, text(3, 4))
        assert cached(manager, text(1, 4)) == 4 * T and cached(manager, text(2, 4)) == 0


def test_pages_under_the_threshold_are_dropped_rather_than_moved() -> None:
    with manager_of(4, 8, min_offload_priority=20) as manager:
        serve(manager, text(1, 4), RetentionConfig([TokenRangeRetention(0, None, 10)]))
        serve(manager, text(2, 4))
        assert cached(manager, text(1, 4)) == 0
        serve(manager, text(3, 4))
        assert cached(manager, text(2, 4)) == 4 * T  # offloaded, being of the default priority
        assert manager.get_storage_statistics(1)[0].total - manager.get_storage_statistics(1)[0].free == 4


def test_a_prefix_is_brought_near_before_it_is_asked_for() -> None:
    with manager_of(4, 8) as manager:
        serve(manager, text(1, 4))
        serve(manager, text(2, 4))
        assert {page["level"] for page in _pages(manager, text(1, 4)[:T])} == {1}
        assert manager.prefetch(text(1, 4)) == HintResult(4 * T, 0, 0)
        assert {page["level"] for page in _pages(manager, text(1, 4)[:T])} == {0}
        assert cached(manager, text(2, 4)) == 4 * T
        manager.check_invariants()


def _pages(manager: KVCacheManager, first_tokens: list[int]) -> list[dict[str, int]]:
    return [block["pages"][0] for block in manager.describe()["tree"][0]["blocks"] if block["tokens"] == first_tokens]


def test_hints_are_decided_alike_when_they_are_run_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with manager_of(8, 8, path) as manager:
        serve(manager, text(1, 4), RetentionConfig([TokenRangeRetention(0, T, 60, 5)], 5, 7.5))
        serve(manager, text(2, 4))
        manager.retain(text(2, 3), duration_seconds=2)
        manager.demote(text(1, 2))
        manager.advance_clock(6)
        serve(manager, text(3, 6))
        manager.prefetch(text(1, 4))
        manager.release(text(2, 4))
        assert manager.resize(0, 6 * SLOT_BYTES)
        manager.adjust()
        digest = manager.state_digest()
    assert rerun(path, HostDevice(granularity_bytes=4096)).digest == digest


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="priority is 101"):
        TokenRangeRetention(0, 4, 101)
    with pytest.raises(ValueError, match="end is 4; it must be over begin, which is 4"):
        TokenRangeRetention(4, 4, 50)
    with manager_of(8) as manager:
        with pytest.raises(ValueError, match="priority is -1"):
            manager.retain([1], priority=-1)
        with pytest.raises(ValueError, match="seconds"):
            manager.retain([1], duration_seconds=-1)
        with pytest.raises(ValueError, match=r"from 0 to 1e\+09 seconds, or math.inf"):
            manager.retain([1], duration_seconds=-inf)
        with pytest.raises(ValueError, match="duration_seconds is nan"):
            manager.retain([1], duration_seconds=nan)
        assert manager.retain([1, 2], ReuseScope(3)) == HintResult(0, 0, 2)


@pytest.mark.parametrize("num_host_slots", [2, 4])
def test_a_prefetch_takes_no_room_from_the_same_prefix(num_host_slots: int) -> None:
    """4 cached blocks, 4 slots; another sequence needs 2, so the path's last two blocks are offloaded. To onboard them again its first
    two would have to go: there is no room, and all stays where it is."""
    with manager_of(4, num_host_slots, max_util_for_resume=1.0) as manager:
        serve(manager, text(1, 4))
        with manager.create_kv_cache() as other:
            assert other.resume() and other.resize(2 * T)
            before = manager.describe()["tree"]
            assert [block["pages"][0]["level"] for block in before[0]["blocks"]] == [0, 0, 1, 1]
            assert manager.prefetch(text(1, 4), None, 0) == HintResult(0, 4 * T, 0)
            manager.check_invariants()
            assert manager.describe()["tree"] == before
        answer = manager.prefetch(text(1, 4), None, 0)
        assert answer.num_accepted == 4 * T
        assert [block["pages"][0]["level"] for block in manager.describe()["tree"][0]["blocks"]] == [0, 0, 0, 0]


def train(manager: KVCacheManager, num_rounds: int, first: int = 1000) -> None:
    """Three sessions of 2 blocks take turns: each comes back when 4 other blocks were released. The policy sees it."""
    for number in range(num_rounds):
        serve(manager, text(first + number % 3, 2))


def priorities(manager: KVCacheManager, tokens: list[int]) -> list[int]:
    scope = manager.describe()["tree"][0]["blocks"]
    wanted = [tokens[begin : begin + T] for begin in range(0, len(tokens), T)]
    return [block["pages"][0]["priority"] for block in scope if block["tokens"] in wanted]


def retain_and_serve(policy: EvictionPolicy, num_rounds: int, duration: float | None, journal: Path | None = None) -> list[int]:
    """Priorities of a retained prefix after each of 40 requests of 2 blocks, in a cache of 16."""
    config = KVCacheManagerConfig(T, [GpuCacheTierConfig(16 * SLOT_BYTES, policy)], attention_layers([None], T))
    seen: list[int] = []
    with KVCacheManager(config, device=HostDevice(granularity_bytes=4096), journal=journal) as manager:
        train(manager, num_rounds)
        serve(manager, text(1, 2))
        assert manager.retain(text(1, 2), priority=80, duration_seconds=duration) == HintResult(2 * T, 0, 0)
        for number in range(2, 42):
            serve(manager, text(number, 2))
            found = priorities(manager, text(1, 2))
            seen.append(min(found) if len(found) == 2 else 0)
        manager.check_invariants()
        assert (manager.retain(text(40, 2)).num_accepted, len(found)) in ((2 * T, 0), (2 * T, 2)), "8 blocks may be pinned"
        digest = manager.state_digest()
    if journal is not None:
        assert rerun(journal, HostDevice(granularity_bytes=4096)).digest == digest
    return seen


def test_without_a_duration_it_lasts_while_a_return_is_expected(tmp_path: Path) -> None:
    # What came back did so when 4 to 6 blocks were released, 2 to 3 eighths of the 16 slots: after some of these requests the model has
    # nothing more to expect. The end is that of a bucket, the widest of which that can be meant ends at 28.5 capacities.
    seen = retain_and_serve(EvictionPolicy.LEARNED, 300, None, tmp_path / "journal")
    num_retained = seen.index(35) if 35 in seen else seen.index(0)
    assert 2 <= num_retained < 20, seen
    assert seen[:num_retained] == [80] * num_retained and 80 not in seen[num_retained:]


@pytest.mark.parametrize(
    ("policy", "num_rounds", "duration"),
    [
        (EvictionPolicy.LEARNED, 300, inf),
        (EvictionPolicy.LEARNED, 0, None),  # nothing was learned
        (EvictionPolicy.LRU, 300, None),  # a policy that expects nothing
    ],
)
def test_it_lasts_until_it_is_released(policy: EvictionPolicy, num_rounds: int, duration: float | None, tmp_path: Path) -> None:
    assert retain_and_serve(policy, num_rounds, duration, tmp_path / "journal") == [80] * 40


def test_what_is_retained_as_expected_takes_nothing_of_the_budget_afterwards() -> None:
    with manager_of(16, max_pinned_share=0.25) as manager:
        train(manager, 300)
        serve(manager, text(1, 2))
        serve(manager, text(2, 4))
        # 4 of the 16 slots may be pinned.
        assert manager.retain(text(1, 2)) == HintResult(2 * T, 0, 0)
        assert manager.retain(text(2, 4), duration_seconds=inf) == HintResult(2 * T, 2 * T, 0)
        serve_others(manager, range(3, 40), 2)
        assert manager.retain(text(39, 2)).num_clipped == 0
        manager.check_invariants()


def test_a_release_ends_what_is_retained_as_expected() -> None:
    with manager_of(16) as manager:
        train(manager, 300)
        serve(manager, text(1, 2))
        manager.retain(text(1, 2), priority=80)
        manager.demote(text(1, 2))
        serve_others(manager, range(2, 5), 2)
        # The end of the time would have made it 35 again, had the demotion not come after it.
        assert priorities(manager, text(1, 2)) in ([0, 0], [])


def test_a_prefix_in_use_is_retained_from_now_on() -> None:
    with manager_of(16) as manager:
        train(manager, 300)
        with manager.create_kv_cache(None, text(1, 2)) as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(2 * T)
            kv_cache.commit(text(1, 2))
            assert manager.retain(text(1, 2), priority=80) == HintResult(2 * T, 0, 0)
            assert priorities(manager, text(1, 2)) == [80, 80]
            serve_others(manager, range(2, 60), 2)
            assert priorities(manager, text(1, 2)) == [35, 35]
            manager.check_invariants()


@pytest.mark.parametrize("microseconds", [1, 249, 251, 489, 1_000_249])
def test_durations_are_run_again_to_the_microsecond(microseconds: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with manager_of(8, journal=path) as manager:
        serve(manager, text(1, 2))
        manager.retain(text(1, 2), priority=80, duration_seconds=microseconds / 1_000_000)
        manager.advance_clock((microseconds - 1) / 1_000_000)
        assert priorities(manager, text(1, 2)) == [80, 80]
        serve_others(manager, range(2, 6), 6)
        manager.retain(text(5, 2), priority=80, duration_seconds=microseconds / 1_000_000)
        manager.advance_clock(microseconds / 1_000_000)
        assert priorities(manager, text(5, 2)) == [35, 35]
        digest = manager.state_digest()
    assert rerun(path, HostDevice(granularity_bytes=4096)).digest == digest


def test_each_reused_page_is_asked_for_by_its_block_and_layer_group() -> None:
    """The token behind 16 matched ones, at position 16, reads 11 to 16 in a window of 6: blocks 2 and 3 of four."""
    config = KVCacheManagerConfig(T, [GpuCacheTierConfig(32 * SLOT_BYTES)], attention_layers([None, 6], T))
    with KVCacheManager(config, device=HostDevice(granularity_bytes=4096)) as manager:
        serve(manager, text(1, 4))
        asked: list[tuple[int, int | None]] = []

        def ask(ordinal: int, life_cycle: LifeCycle) -> int:
            assert isinstance(life_cycle, AttnLifeCycle)
            asked.append((ordinal, life_cycle.window_size))
            return 50

        with manager.create_kv_cache(None, text(1, 4), custom_priority_callback=ask) as kv_cache:
            assert kv_cache.num_committed_tokens == 16
        assert sorted(asked, key=str) == [(0, None), (1, None), (2, 6), (2, None), (3, 6), (3, None)]


WRONG_ANSWERS: list[Any] = [None, True, np.True_, 35.0, "x", 101, -1, 10**5000, [35]]


@pytest.mark.parametrize("with_retention", [False, True])
@pytest.mark.parametrize("is_matched", [False, True])
def test_what_a_callback_answers_is_looked_at(with_retention: bool, is_matched: bool) -> None:
    retention = RetentionConfig([TokenRangeRetention(0, 4, 10)]) if with_retention else None
    config = KVCacheManagerConfig(T, [GpuCacheTierConfig(32 * SLOT_BYTES)], attention_layers([None], T))
    with KVCacheManager(config, device=HostDevice(granularity_bytes=4096)) as manager:
        serve(manager, text(1, 4))
        prompt = text(1 if is_matched else 2, 4)

        def use(answer: Any) -> None:
            with manager.create_kv_cache(
                None, prompt, custom_priority_callback=lambda ordinal, life_cycle: answer, retention=retention
            ) as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(len(prompt))

        for answer in WRONG_ANSWERS:
            before = manager.describe()
            with pytest.raises((TypeError, ValueError), match="custom_priority_callback"):
                use(answer)
            assert manager.describe() == before, answer
            manager.check_invariants()
        for answer in (np.int64(40), 40, 0, 100):
            use(answer)
