"""A request alone that runs on an empty cache runs on a full one, and none within `CapacityPlan.longest_sequence` is refused.

The oracle of every request is an empty manager of the same configuration. Lengths are near the limit, where one slot decides.
"""

import dataclasses
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from tensorrt_llm_adapter import Adapter, Request as EngineRequest, attention_layer, state_layer

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    DiskCacheTierConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    MissCause,
    OutOfPagesError,
    SnapshotPolicy,
    SsmLayerConfig,
    SwaScratchReuseConfig,
    plan_capacity,
)

T = 4
SLOT = 64
MOST_TOKENS = 60
NUM_SEEDS = int(os.environ.get("KV_CACHE_MANAGER_V2_WARM_SEEDS", 5))
FOUND = {("state and window", "window-disk"): [55]}
"""Seeds that have failed: 55, a snapshot lies on the partial block that there was no room to copy."""


def attention(index: int, window: int | None = None, sinks: int | None = None, size: int = SLOT) -> AttentionLayerConfig:
    return AttentionLayerConfig(LayerId(index), [BufferConfig("key", size)], window, sinks)


def state(index: int, size: int = SLOT) -> SsmLayerConfig:
    return SsmLayerConfig(LayerId(index), [BufferConfig("ssm", size)])


LAYERS: dict[str, list[Any]] = {
    "full": [attention(0)],
    "window": [attention(0), attention(1, 9)],
    "two windows": [attention(0), attention(1, 6), attention(2, 11, 2)],
    "only windows": [attention(0, 6), attention(1, 9, 2)],
    "two sizes": [attention(0), attention(1, 9, size=4 * SLOT)],
    "state": [attention(0), state(1)],
    "large state": [attention(0), state(1, 3 * SLOT)],
    "state and window": [attention(0), attention(1, 9), state(2)],
    "state and two windows": [attention(0), attention(1, 5), attention(2, 14, 1), state(3, 2 * SLOT)],
    "only state": [state(0)],
}
TIERS: dict[str, list[Callable[[int], Any]]] = {
    "alone": [],
    "host": [HostCacheTierConfig],
    "disk": [lambda quota: DiskCacheTierConfig(quota, "/tmp")],
    "host and disk": [HostCacheTierConfig, lambda quota: DiskCacheTierConfig(quota, "/tmp")],
}
SETTINGS: dict[str, list[Any]] = {
    "enable_partial_reuse": [True, True, False],
    "swa_scratch_reuse": [None, None, SwaScratchReuseConfig(1)],
    "reuse_match_backoff": [0, 0, 1, 3],
    "reserve_null_slot": [False, True],
    "snapshot_policy": [
        SnapshotPolicy(),
        SnapshotPolicy(1, at_close=True),
        SnapshotPolicy(2, max_per_path=2),
        SnapshotPolicy(placement="learned"),
    ],
    "enable_stats": [True, False],
    "max_state_replay_tokens": [0, 0, 6],
    "state_checkpoints": [0, 0, 2],
    "write_policy": ["back", "through"],
    "allow_seq_rebasing": [True, True, False],
}


def draw_config(choices: random.Random, layers: str, tiers: str) -> KVCacheManagerConfig:
    policy = choices.choice(list(EvictionPolicy))
    bytes_per_block = sum(buffer.size for layer in LAYERS[layers] for buffer in layer.buffers)
    quota = choices.randrange(5 * bytes_per_block, 9 * bytes_per_block)
    lower = [make(choices.randrange(4, 20) * bytes_per_block) for make in TIERS[tiers]]
    drawn = {name: choices.choice(values) for name, values in SETTINGS.items()}
    return KVCacheManagerConfig(T, [GpuCacheTierConfig(quota, policy), *lower], LAYERS[layers], max_util_for_resume=1.0, **drawn)


@dataclasses.dataclass(frozen=True)
class Request:
    """One request alone: its prompt in steps that end at multiples of ``chunk`` tokens, then tokens one by one."""

    text: list[int]
    num_prompt: int
    chunk: int
    is_prefetched: bool
    pauses_at: int
    """The length at which it is suspended and resumed."""
    stops_at: int
    """The length from which on nothing is committed."""


def draw_request(choices: random.Random, limit: int, texts: list[list[int]]) -> Request:
    length = max(2, limit - choices.choice([0, 0, 1, 1, 2, 3, 4, 5, 7, 9, choices.randrange(limit)]))
    if texts and choices.random() < 0.9:
        text = choices.choice(texts)[: choices.choice([length, length, choices.randrange(1, length + 1)])]
    else:
        text = []
    text = text + [choices.randrange(1000) for _ in range(length - len(text))]
    num_prompt = choices.choice([length, length - 1, choices.randrange(1, length + 1)])
    chunk = choices.choice([length, T, 1, choices.randrange(1, length + 1)])
    never = length + 1
    return Request(
        text, num_prompt, chunk, choices.random() < 0.3,
        choices.choice([never, choices.randrange(length)]), choices.choice([never, never, choices.randrange(length)]),
    )  # fmt: skip


def serve(manager: KVCacheManager, request: Request) -> str:
    """Nothing, or which call was refused, and why."""
    with manager.create_kv_cache(input_tokens=request.text[: request.num_prompt]) as kv_cache:
        if request.is_prefetched:
            kv_cache.prefetch(0)
        if not kv_cache.resume():
            return f"resume with {kv_cache.num_committed_tokens} tokens matched: {manager.last_refusal}"
        return compute(manager, kv_cache, request)


def compute(manager: KVCacheManager, kv_cache: KVCache, request: Request) -> str:
    position = kv_cache.history_length
    while position < len(request.text):
        # Steps end where they end without a match: a part of a step never takes more than all of it.
        step_end = min((position // request.chunk + 1) * request.chunk, request.num_prompt)
        end = step_end if position < request.num_prompt else position + 1
        if position < request.stops_at < end:
            end = request.stops_at
        if not kv_cache.resize(end, position):
            return f"resize from {position} to {end}: {manager.last_refusal}"
        if end <= request.stops_at:
            kv_cache.commit(request.text[kv_cache.num_committed_tokens : end])
            if end == request.stops_at:
                kv_cache.stop_committing()
        if position <= request.pauses_at < end:
            kv_cache.suspend()
            if not kv_cache.resume():
                return f"resume at {end}: {manager.last_refusal}"
        position = end
    return ""


def manager_of(config: KVCacheManagerConfig) -> KVCacheManager:
    return KVCacheManager(config, device=HostDevice(4096))


def run_cold(config: KVCacheManagerConfig, request: Request) -> str:
    with manager_of(config) as manager:
        return serve(manager, request)


@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.parametrize("layers", LAYERS)
def test_any_layers_on_any_tiers(layers: str, tiers: str) -> None:
    for seed in [*range(NUM_SEEDS), *FOUND.get((layers, tiers), ())]:
        choices = random.Random(f"{layers} {tiers} {seed}")
        config = draw_config(choices, layers, tiers)
        longest = plan_capacity(config).longest_sequence
        limit = MOST_TOKENS if longest is None else min(MOST_TOKENS, longest)
        texts: list[list[int]] = []
        with manager_of(config) as manager:
            assert manager.clamp_max_seq_len_for_mem(1, MOST_TOKENS) == limit
            for number in range(8):
                request = draw_request(choices, limit, texts)
                texts.append(request.text)
                refusal = serve(manager, request)
                manager.check_invariants()
                where = f"seed {seed}, request {number}: {refusal}\n{request}\n{config}"
                assert not refusal or request.chunk > 1, where
                assert not refusal or run_cold(config, request), where


def run_prompt(manager: KVCacheManager, text: list[int]) -> int:
    """Returns how many tokens it reused."""
    with manager.create_kv_cache(input_tokens=text) as kv_cache:
        num_reused = kv_cache.num_committed_tokens
        assert manager.probe_reuse(None, text) == num_reused
        assert kv_cache.resume(), manager.last_refusal
        assert kv_cache.resize(len(text)), manager.last_refusal
        kv_cache.commit(text[num_reused:])
    return num_reused


def test_the_last_page_of_an_attention_and_a_recurrent_layer() -> None:
    """Level 0 has 8 attention pages, the 32 tokens of the longest sequence. 29 tokens are 8 pages, and a ninth would be the copy of the
    last one: so it is not reused, nor is the snapshot behind it. One token less a block needs no copy."""
    layers: list[Any] = [attention(0, size=4 * SLOT), state(1)]
    config = KVCacheManagerConfig(T, [GpuCacheTierConfig(8 * 4 * SLOT + 4 * SLOT)], layers, initial_pool_ratio=[8, 1])
    assert plan_capacity(config).longest_sequence == 32
    text = list(range(32))
    with manager_of(config) as manager:
        assert run_prompt(manager, text[:29]) == 0
        assert run_prompt(manager, text[:30]) == 0
        assert run_prompt(manager, text[:28]) == 0
        assert run_prompt(manager, text[:32]) == 28


def test_the_last_page_of_attention_alone() -> None:
    """29 of 32 tokens are there. Their 8 pages fill level 0, which leaves no slot for the copy of the last one: its token is not reused.
    Statistics call it `BACKOFF`."""
    config = KVCacheManagerConfig(T, [GpuCacheTierConfig(8 * SLOT)], [attention(0)])
    text = list(range(32))
    with manager_of(config) as manager:
        assert run_prompt(manager, text[:29]) == 0
        with manager.create_kv_cache(input_tokens=text) as kv_cache:
            assert kv_cache.statistics.prompts.missed_tokens == {MissCause.BACKOFF: 1, MissCause.NOT_REMEMBERED: 3}
        assert run_prompt(manager, text) == 28


def test_two_that_wait_with_the_same_match() -> None:
    """Neither could take the shared last page over while the other holds it."""
    config = KVCacheManagerConfig(T, [GpuCacheTierConfig(8 * SLOT)], [attention(0)], max_util_for_resume=1.0)
    text = list(range(32))
    with manager_of(config) as manager:
        run_prompt(manager, text[:29])
        for kv_cache in [manager.create_kv_cache(input_tokens=text) for _ in range(2)]:
            assert kv_cache.resume() and kv_cache.resize(32)
            kv_cache.commit(text[kv_cache.num_committed_tokens :])
            kv_cache.close()


@pytest.mark.parametrize("host_quota", [0, 1 << 12])
@pytest.mark.parametrize("kinds", [("full", "window"), ("full", "state"), ("full", "window", "state")])
def test_engines_of_tensorrt_llm(kinds: tuple[str, ...], host_quota: int) -> None:
    """The same prompts a second time, and others of any length near the limit, through the adapter's calls, which assert that none is
    refused."""
    makers: dict[str, Callable[[int], Any]] = {
        "full": lambda index: attention_layer(index, T),
        "window": lambda index: attention_layer(index, T, 9),
        "state": lambda index: state_layer(index),
    }
    adapter = Adapter([makers[kind](index) for index, kind in enumerate(kinds)], quota=1 << 10, host_quota=host_quota)
    longest = plan_capacity(adapter.impl.core.init_config).longest_sequence
    assert longest is not None
    text = list(range(1000, 1000 + longest))
    choices = random.Random(f"{kinds} {host_quota}")
    for number, shorter in enumerate([3, 2, 2, 1, 3, 0, 0, 1, 5, *[choices.randrange(T * 3) for _ in range(20)]]):
        end = [] if number < 9 or choices.random() < 0.6 else [choices.randrange(1000) for _ in range(choices.randrange(T * 2))]
        request = adapter.prefill(EngineRequest(number, [*text[: longest - shorter - len(end)], *end]), 1)
        adapter.free_resources(request)
    adapter.end()


def _fork(manager: KVCacheManager, kv_cache: KVCache, length: int) -> list[bool]:
    child = kv_cache.fork()
    is_done = [one.resize(length + 1) for one in (kv_cache, child)]
    child.close()
    return is_done


def _beams(manager: KVCacheManager, kv_cache: KVCache, length: int) -> list[bool]:
    kv_cache.beam_width = 2
    is_done = [kv_cache.resize(length + 1)]
    kv_cache.reorder_beams([1, 1])
    is_done.append(kv_cache.resize(length + 1))
    return is_done


def _lease(manager: KVCacheManager, kv_cache: KVCache, length: int) -> list[bool]:
    with kv_cache.reserve_transfer():
        return [kv_cache.resize(length + 1)]


def _drafts(manager: KVCacheManager, kv_cache: KVCache, length: int) -> list[bool]:
    return [kv_cache.resize(length + 3), kv_cache.resize(length), kv_cache.resize(length + 2)]


def _again(manager: KVCacheManager, kv_cache: KVCache, length: int) -> list[bool]:
    """A second one with the same prompt beside the first, then alone."""
    with manager.create_kv_cache(input_tokens=range(length)) as other:
        is_done = [other.resume()]
        kv_cache.suspend()
        is_done += [other.is_active or other.resume(), other.is_active and other.resize(length + 1)]
    return [*is_done, kv_cache.resume()]


def _planned(manager: KVCacheManager, kv_cache: KVCache, length: int) -> list[bool]:
    end = min(length + 2 * T, MOST_TOKENS)
    is_done = [kv_cache.resize(end)]
    if is_done[0]:
        kv_cache.publish_planned(range(length, end))
        with manager.create_kv_cache(input_tokens=range(end)) as reader:
            is_done.append(reader.resume())
    return is_done


NEIGHBOURS = [_fork, _beams, _lease, _drafts, _again, _planned]


@pytest.mark.parametrize("indices_stay", [False, True])
@pytest.mark.parametrize("layers", ["full", "window", "state", "state and window"])
@pytest.mark.parametrize("act", NEIGHBOURS)
def test_neighbours_near_the_limit(act: Callable[[KVCacheManager, KVCache, int], list[bool]], layers: str, indices_stay: bool) -> None:
    """Each step that passes where nothing was cached passes where the prompt is, and a part of one like it."""
    for num_blocks in (6, 7):
        quota = num_blocks * sum(buffer.size for layer in LAYERS[layers] for buffer in layer.buffers)
        config = KVCacheManagerConfig(
            T, [GpuCacheTierConfig(quota)], LAYERS[layers], max_util_for_resume=1.0, allow_seq_rebasing=not indices_stay,
            snapshot_policy=SnapshotPolicy(at_close=True), state_checkpoints=3 if act is _drafts and "state" in layers else 0,
        )  # fmt: skip
        longest = plan_capacity(config).longest_prompt
        assert longest is not None
        num_passed = 0
        for length in range(max(2, longest - 2 * T), longest + 1):
            found: list[list[bool]] = []
            for cached in ([], [length], [length - 1, length]):
                with manager_of(config) as manager:
                    for end in cached:
                        run_prompt(manager, list(range(end)))
                    found.append(_act(manager, act, length))
                    manager.check_invariants()
            cold, *warm = found
            num_passed += sum(cold)
            for results in warm:
                assert all(is_done or not was_done for is_done, was_done in zip(results, cold, strict=False)), (length, longest, found)
        assert num_passed > 2 * T, "lengths at which a step passes without a cache"


def _act(manager: KVCacheManager, act: Callable[[KVCacheManager, KVCache, int], list[bool]], length: int) -> list[bool]:
    with manager.create_kv_cache(input_tokens=range(length)) as kv_cache:
        if not kv_cache.resume() or not kv_cache.resize(length):
            return [False]
        kv_cache.commit(range(kv_cache.num_committed_tokens, length))
        try:
            return [True, *act(manager, kv_cache, length)]
        except OutOfPagesError:
            return [True]
