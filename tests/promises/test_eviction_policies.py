"""Each level evicts by priority, then by its tier's policy; every policy costs O(1) a call."""

import dataclasses
import random
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from random_calls import drive
from small_models import config_of, run_prompt

from kv_cache_manager_v2 import (
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    is_compiled,
)
from kv_cache_manager_v2.config.config_codec import decode_config, encode_config
from kv_cache_manager_v2.replay.rerun import rerun
from kv_cache_manager_v2.storage.eviction.learned import NUM_SENTINELS, make_queue
from kv_cache_manager_v2.storage.eviction.segment_records import Learning, SegmentRecords
from kv_cache_manager_v2.storage.page_rows import PLACE, ROW_WORDS, PageRows, pack_place
from kv_cache_manager_v2.storage.victim_queue import ContentKeys

POLICIES = list(EvictionPolicy)
SLOT_BYTES = 64  # of `config_of`: 4 tokens, a key and a value of 8 bytes each


def config_with(
    policy: EvictionPolicy, num_slots: int, num_host_slots: int = 0, windows: tuple[int | None, ...] = (None,)
) -> KVCacheManagerConfig:
    plain = config_of(windows, num_slots=num_slots)
    tiers: list[Any] = [GpuCacheTierConfig(num_slots * SLOT_BYTES, policy)]
    if num_host_slots > 0:
        tiers.append(HostCacheTierConfig(num_host_slots * SLOT_BYTES, policy))
    return KVCacheManagerConfig(plain.tokens_per_block, tiers, plain.layers)


def serve_hot_prompt_among_others(policy: EvictionPolicy) -> int:
    """In how many of 30 rounds a prompt of 8 blocks is still there, when 40 blocks that come once went by; 24 slots."""
    hot = list(range(32))
    next_token = 1000
    hits = 0
    with KVCacheManager(config_with(policy, 24), device=HostDevice()) as manager:
        for _ in range(4):
            run_prompt(manager, hot).close()
        for _ in range(30):
            for _ in range(10):
                run_prompt(manager, list(range(next_token, next_token + 16))).close()
                next_token += 16
            hits += manager.probe_reuse(input_tokens=hot) == 32
            run_prompt(manager, hot).close()
        manager.check_invariants()
    return hits


def test_what_is_reused_outlives_what_comes_once() -> None:
    hits = {policy: serve_hot_prompt_among_others(policy) for policy in POLICIES}
    # By recency alone 40 blocks in 24 slots leave nothing of what was before them.
    assert hits[EvictionPolicy.LRU] == 0
    # The other one first has to learn that what comes once does not come back.
    assert hits[EvictionPolicy.LEARNED] >= 25


@pytest.mark.parametrize("policy", POLICIES)
def test_offloaded_pages_are_remembered(policy: EvictionPolicy) -> None:
    """The prompt of 8 blocks stays on level 0 while 30 times 40 blocks that come once pass on to the host."""
    hot = list(range(32))
    next_token = 1000
    with KVCacheManager(config_with(policy, 24, num_host_slots=400), device=HostDevice()) as manager:
        for _ in range(4):
            run_prompt(manager, hot).close()
        for _ in range(30):
            for _ in range(10):
                run_prompt(manager, list(range(next_token, next_token + 16))).close()
                next_token += 16
            run_prompt(manager, hot).close()
        manager.check_invariants()
        evicted = manager.get_storage_statistics()[0].evicted
    # Pages that came to level 0 and are not there at the end: 8 + 30 * 40 - 24, and 8 for each time that the prompt was onboarded.
    times_up, rest = divmod(evicted - 1184, 8)
    if policy is EvictionPolicy.LRU:
        assert (times_up, rest) == (30, 0)
    else:
        # LEARNED has to learn first, from its evictions.
        assert times_up <= 5


@pytest.mark.parametrize("policy", POLICIES)
def test_priority_stands_above_the_policy(policy: EvictionPolicy) -> None:
    with KVCacheManager(config_with(policy, 24), device=HostDevice()) as manager:
        run_prompt(manager, list(range(32)), custom_priority_callback=lambda ordinal, life_cycle: 80).close()
        often = list(range(100, 116))
        for _ in range(5):
            run_prompt(manager, often).close()
        for first in range(1000, 2600, 16):
            run_prompt(manager, list(range(first, first + 16))).close()
        # 8 blocks of priority 80 are never used again; 400 others went by under the default of 35.
        assert manager.probe_reuse(input_tokens=list(range(32))) == 32
        manager.check_invariants()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("at_once", [True, False])
def test_evictions_are_counted(policy: EvictionPolicy, at_once: bool) -> None:
    """Eight blocks fill the cache; five new ones take as many slots, in one step or one by one."""
    with KVCacheManager(config_with(policy, 8), device=HostDevice()) as manager:
        run_prompt(manager, list(range(32))).close()
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            for num_blocks in [5] if at_once else range(1, 6):
                assert kv_cache.resize(4 * num_blocks)
                assert manager.get_storage_statistics()[0].evicted == num_blocks


@pytest.mark.parametrize("policy", POLICIES)
def test_leaves_are_evicted_first(policy: EvictionPolicy) -> None:
    with KVCacheManager(config_with(policy, 24), device=HostDevice()) as manager:
        text = list(range(64))
        run_prompt(manager, text).close()
        # 16 blocks of 24 slots; each prompt of 2 blocks more evicts 2 from the leaf of one path or the other.
        left = 64
        for first in range(1000, 1160, 8):
            run_prompt(manager, list(range(first, first + 8))).close()
            now = manager.probe_reuse(input_tokens=text)
            assert now <= left
            statistics = manager.get_storage_statistics()[0]
            assert statistics.evictable == statistics.total - statistics.free
            manager.check_invariants()
            left = now


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_host_slots", [0, 40])
def test_runs_can_be_repeated_under_any_policy(tmp_path: Path, policy: EvictionPolicy, num_host_slots: int) -> None:
    path = tmp_path / "calls.journal"
    config = config_with(policy, 60, num_host_slots, (None, 8))
    with KVCacheManager(config, device=HostDevice(), journal=path) as manager:
        drive(manager, 5, 1200)
        manager.check_invariants()
        manager.clear_reusable_blocks()
        digest = manager.state_digest()
    assert rerun(path, HostDevice()).digest == digest


@pytest.mark.parametrize("policy", POLICIES)
def test_the_policy_is_part_of_the_configuration(policy: EvictionPolicy) -> None:
    config = config_with(policy, 24, 10)
    copy = decode_config(encode_config(config))
    assert copy == config
    assert [tier.eviction_policy for tier in copy.cache_tiers] == [policy, policy]


def test_a_wrong_policy_is_refused() -> None:
    wrong: Any = "lru"
    for tier in (GpuCacheTierConfig, HostCacheTierConfig):
        with pytest.raises(TypeError):
            tier(1 << 20, wrong)
    assert GpuCacheTierConfig(1 << 20).eviction_policy is EvictionPolicy.LEARNED
    with pytest.raises(ValueError):
        decode_config(encode_config(config_with(EvictionPolicy.LRU, 24)).replace(b'"lru"', b'"best"'))


class Numbers(ContentKeys):
    def content_key(self, page: int) -> int:
        return page + 1


class CallCounter:
    """Counts calls of Python functions."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        self.num_calls += event in ("call", "c_call")


def count_calls_of_evictions(policy: EvictionPolicy, num_pages: int) -> int:
    """200 evictions, each followed by a new page, from a queue of so many."""
    rows = PageRows(1, NUM_SENTINELS)
    queue = make_queue(policy, rows, 0, Numbers(), num_pages, SegmentRecords(Learning(), 1))
    pages = [rows.add_block() for _ in range(num_pages + 200)]
    for page in pages:
        rows.words[page * ROW_WORDS + PLACE] = pack_place(0, 0, 35)
    for page in pages[:num_pages]:
        queue.push(page)
    # What is due after many pushes (a tick of `LEARNED`) is not of this count.
    counter = CallCounter()
    sys.setprofile(counter)
    try:
        for page in pages[num_pages:]:
            queue.evict(queue.first())
            queue.push(page)
    finally:
        sys.setprofile(None)
    return counter.num_calls


@pytest.mark.skipif(is_compiled(), reason="compiled calls are not seen by a profiler; the work is the same")
@pytest.mark.parametrize("policy", POLICIES)
def test_many_pages_are_evicted_as_few_are(policy: EvictionPolicy) -> None:
    few = count_calls_of_evictions(policy, 2_000)
    many = count_calls_of_evictions(policy, 60_000)
    # Thirty times the pages: the same work, but for columns and tables that double now and then.
    assert many <= 2 * few


@pytest.mark.parametrize("policies", [("LEARNED",), ("LRU", "LEARNED"), ("LEARNED", "LEARNED")])
@pytest.mark.parametrize("slots", [(48, 240), (240, 48)])
def test_a_learned_level_that_is_new_differs_little_from_recency(policies: tuple[str, ...], slots: tuple[int, int]) -> None:
    """Prompts of six blocks, each of which comes back among the next eight or never, so whatever is kept instead of what LRU keeps wins
    nothing. Of what LRU would have, LEARNED may have dropped so much that three of 1,024 pushed pages were lost if one dropped page in
    16 came back. Added are a page that is cut off, a part of pushed pages (a 64th of the slots), and one prompt."""
    counts: tuple[int, ...] = slots if len(policies) == 2 else (sum(slots),)
    configs = []
    for learns in (False, True):
        config = config_with(EvictionPolicy.LRU, 1)
        kinds = [EvictionPolicy[policy] if learns else EvictionPolicy.LRU for policy in policies]
        tiers: list[Any] = [GpuCacheTierConfig(counts[0] * SLOT_BYTES, kinds[0])]
        tiers += [HostCacheTierConfig(count * SLOT_BYTES, kind) for count, kind in zip(counts[1:], kinds[1:], strict=True)]
        configs.append(KVCacheManagerConfig(config.tokens_per_block, tiers, config.layers, max_util_for_resume=1.0))
    num_slots = sum(counts)
    rng = random.Random(1)
    prompts: list[list[int]] = []
    with KVCacheManager(configs[0], device=HostDevice()) as recency, KVCacheManager(configs[1], device=HostDevice()) as learned:
        served: list[int] = []
        while len(served) < 300:
            if served and rng.random() < 0.5:
                number = rng.choice(served[-8:])
            else:
                number = len(prompts)
                prompts.append([100 * number + position for position in range(24)])
            served.append(number)
            assert learned.probe_reuse(None, prompts[number]) <= recency.probe_reuse(None, prompts[number])
            for manager in (recency, learned):
                run_prompt(manager, prompts[number]).close()
            if len(served) % 20 == 0:
                num_gone = 0
                for prompt in prompts:
                    num_gone += max(recency.probe_reuse(None, prompt) - learned.probe_reuse(None, prompt), 0) // 4
                assert num_gone <= 16 * (6 * len(served) * 3 / 1024 + 1) + num_slots // 64 + 6, len(served)


def serve_conversations(policy: EvictionPolicy, windows: list[int | None], slots: list[int], seed: int, num_lookups: int) -> float:
    """600 prompts, of which half go on from one of the last twelve, and a third begins with one of six system prompts; what is found of
    them, in percent. Each is tried ``num_lookups`` times before there is room for it."""
    classes = [GpuCacheTierConfig, HostCacheTierConfig]
    tiers = [classes[level](count * SLOT_BYTES * len(windows), policy) for level, count in enumerate(slots)]
    chance = random.Random(seed)
    conversations: list[list[int]] = []
    num_found = num_tokens = 0
    with KVCacheManager(dataclasses.replace(config_of(windows=windows), cache_tiers=tiers), device=HostDevice()) as manager:
        for number in range(600):
            drawn = chance.random()
            if drawn < 0.5 and len(conversations) > 0:
                prompt = conversations.pop(-1 - chance.randrange(min(12, len(conversations))))
            else:
                prompt = [chance.randrange(6)] * 24 if drawn < 0.85 else []
            prompt = prompt + [chance.randrange(100, 1 << 20) for _ in range(chance.randrange(8, 40))]
            for attempt in range(num_lookups):
                with manager.create_kv_cache(input_tokens=prompt[:-1]) as waiting:
                    assert len(slots) > 1 or attempt == 0 or (waiting.resume() and not waiting.resize(10_000))
            with manager.create_kv_cache(input_tokens=prompt[:-1]) as kv_cache:
                num_found += kv_cache.num_committed_tokens
                num_tokens += len(prompt)
                assert kv_cache.resume() and kv_cache.resize(len(prompt))
                kv_cache.commit(prompt[kv_cache.num_committed_tokens :])
            if len(prompt) < 200:
                conversations.append(prompt)
        return 100 * num_found / num_tokens


@pytest.mark.parametrize(
    ("policy", "windows", "slots", "seed"),
    [
        (EvictionPolicy.LRU, [None], [150], 7),
        (EvictionPolicy.LEARNED, [None], [150], 7),
        (EvictionPolicy.LEARNED, [None, 16], [150], 8),
        (EvictionPolicy.LEARNED, [None], [80, 90], 7),
    ],
)
def test_a_look_up_that_admits_nothing_is_no_use(policy: EvictionPolicy, windows: list[int | None], slots: list[int], seed: int) -> None:
    """It is closed at once or, on one level, after a `resize` that is refused; on two, `resume` brings pages up, which stay there."""
    once, retried = (serve_conversations(policy, windows, slots, seed, num_lookups) for num_lookups in (0, 5))
    assert once > 20 and abs(once - retried) < 0.1
