"""Whatever is called, in whatever order, refused or not: every total is the sum of its parts, by sequence and by iteration."""

import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import BYTES_PER_TOKEN, config_of

from kv_cache_manager_v2 import GpuCacheTierConfig, HostCacheTierConfig, HostDevice, KVCache, KVCacheManager, ReuseScope, UsageStatistics

BLOCK = 2
SLOT_BYTES = 2 * BYTES_PER_TOKEN * BLOCK
SCOPES = [ReuseScope(), ReuseScope(), ReuseScope(7)]
STEP = st.tuples(
    st.sampled_from(["open", "open", "open", "grow", "grow", "close", "suspend", "fork", "clear", "shrink", "iteration"]),
    st.sampled_from(SCOPES),
    st.lists(st.integers(0, 1), max_size=16),
    st.integers(0, 100),
)
# Windows, slots on the GPU, slots in host memory.
MODELS = st.sampled_from([((None,), 12, 0), ((None,), 5, 6), ((None, 4), 8, 5), ((4,), 6, 0), ((None, 5, 2), 12, 9)])


def flat(usage: UsageStatistics) -> dict[Any, int]:
    """Every count by a name of its own; no peaks, which do not add up."""
    counts: dict[Any, int] = {"requests": usage.requests, "suspends": usage.suspends, "resumes": usage.resumes}
    counts["prompt tokens"] = usage.prompts.tokens
    counts |= {("hit", level): tokens for level, tokens in enumerate(usage.prompts.hit_tokens)}
    counts |= {("missed", cause): tokens for cause, tokens in usage.prompts.missed_tokens.items()}
    for group in usage.layer_groups:
        for name in ("allocated", "reused_full", "reused_partial", "missed", "generated"):
            counts[(name, group.layer_group_id)] = getattr(group, name)
    for one in usage.transfers:
        counts[("blocks", one.source_level, one.target_level, one.pool_group)] = one.blocks
        counts[("bytes", one.source_level, one.target_level, one.pool_group)] = one.bytes
    counts |= {("dropped", drop.level, drop.pool_group, drop.reason): drop.blocks for drop in usage.drops}
    return {name: number for name, number in counts.items() if number != 0}


def added(parts: list[dict[Any, int]]) -> dict[Any, int]:
    total: dict[Any, int] = {}
    for part in parts:
        for name, number in part.items():
            total[name] = total.get(name, 0) + number
    return total


def is_of_calls(name: Any) -> bool:
    """Of what sequences asked for; copies and drops are storage's, and may have no sequence."""
    return not (isinstance(name, tuple) and name[0] in ("blocks", "bytes", "dropped"))


class History:
    def __init__(self, windows: tuple[int | None, ...], num_slots: int, num_host_slots: int) -> None:
        config = config_of(windows, tokens_per_block=BLOCK, num_slots=num_slots)
        if num_host_slots > 0:
            tiers = [*config.cache_tiers, HostCacheTierConfig(num_host_slots * SLOT_BYTES)]
            config = dataclasses.replace(config, cache_tiers=tiers)
        assert isinstance(config.cache_tiers[0], GpuCacheTierConfig)
        self.manager = KVCacheManager(config, device=HostDevice())
        self.all: list[tuple[KVCache, bool]] = []
        self.requests: set[int] = set()
        self.iterations: list[dict[Any, int]] = []

    def open_ones(self) -> list[KVCache]:
        return [kv_cache for kv_cache, _ in self.all if kv_cache.status is not KVCache.Status.CLOSED]

    def step(self, kind: str, scope: ReuseScope, text: list[int], number: int) -> None:
        here = self.open_ones()
        chosen = here[number % len(here)] if here else None
        if kind == "open" and len(here) < 4:
            is_counted = number % 7 > 0
            kv_cache = self.manager.create_kv_cache(reuse_scope=scope, input_tokens=text, count_in_statistics=is_counted)
            self.all.append((kv_cache, is_counted))
            self.check_prompt(kv_cache, len(text))
            if number % 5 > 0 and kv_cache.resume() and kv_cache.resize(max(len(text), kv_cache.capacity)):
                self.requests.add(id(kv_cache))
                kv_cache.commit(text[kv_cache.num_committed_tokens :])
        elif kind == "clear" and not here:
            self.manager.clear_reusable_blocks()
        elif kind == "shrink":
            self.manager.resize(0, (3 + number % 10) * SLOT_BYTES * len(self.manager.layer_grouping), best_efforts=True)
        elif kind == "iteration":
            self.iterations.append(flat(self.manager.get_iteration_statistics()))
        elif chosen is None:
            return
        elif kind == "grow" and chosen.is_active and chosen.resize(chosen.capacity + 1 + number % 3):
            self.requests.add(id(chosen))
            chosen.commit([number % 2])
        elif kind == "close":
            chosen.close()
        elif kind == "suspend":
            if chosen.is_active:
                chosen.suspend()
            else:
                chosen.resume()
        elif kind == "fork" and chosen.is_active and len(here) < 4:
            is_counted = next(counted for kv_cache, counted in self.all if kv_cache is chosen)
            fork = chosen.fork()
            if id(chosen) in self.requests:
                self.requests.add(id(fork))
            self.all.append((fork, is_counted))

    def check_prompt(self, kv_cache: KVCache, num_tokens: int) -> None:
        prompts = kv_cache.statistics.prompts
        assert prompts.tokens == num_tokens == prompts.num_hit + prompts.num_missed
        assert prompts.num_missed == sum(prompts.missed_tokens.values())
        assert prompts.num_hit == kv_cache.num_committed_tokens

    def check(self) -> None:
        total_usage = self.manager.get_statistics()
        total = flat(total_usage)
        # A request is one from its first resize on; a fork goes on from one.
        calls = added([flat(kv_cache.statistics) for kv_cache, is_counted in self.all if is_counted and id(kv_cache) in self.requests])
        assert {name: number for name, number in total.items() if is_of_calls(name)} == {
            name: number for name, number in calls.items() if is_of_calls(name)
        }
        # What calls moved or drove out is part of what was moved and dropped at all.
        summed = added([flat(kv_cache.statistics) for kv_cache, _ in self.all])
        for name, number in summed.items():
            assert is_of_calls(name) or number <= total[name], name
        prompts = total_usage.prompts
        assert prompts.tokens == sum(prompts.hit_tokens) + sum(prompts.missed_tokens.values())
        for group in total_usage.layer_groups:
            # The rest are copies of blocks that were found in part, or that forks shared.
            assert group.allocated >= group.missed + group.generated
        for level, peaks in enumerate(total_usage.peak_slots):
            for peak, slots in zip(peaks, self.manager.get_storage_statistics(level), strict=True):
                assert peak >= slots.total - slots.free


@settings(max_examples=80, deadline=None)
@given(MODELS, st.lists(STEP, max_size=30))
def test_totals_are_sums(model: Any, steps: list[Any]) -> None:
    history = History(*model)
    for step in steps:
        history.step(*step)
        history.check()
    history.iterations.append(flat(history.manager.get_iteration_statistics()))
    assert added(history.iterations) == flat(history.manager.get_statistics())
    for kv_cache in history.open_ones():
        kv_cache.close()
    history.check()
    history.manager.shutdown()
