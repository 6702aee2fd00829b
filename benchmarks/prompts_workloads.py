"""W1, W2, W4, W5 and close: what a prompt costs, by block."""

import gc
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from kv_cache_manager_v2 import EvictionPolicy, KVCache, KVCacheManager
from measure import Stopwatch
from models import BLOCK, FULL_AND_WINDOW, PROMPT, WINDOWS_OF_8, Prompts, Tokens, fill, make_manager, prefill
from workload import Row, Size, Workload


def _as_given(prompts: list[Tokens], as_list: bool) -> list[Any]:
    return [tokens.tolist() for tokens in prompts] if as_list else list(prompts)


OPEN_AT_ONCE: Final = 4


def prefill_once_packed(manager: KVCacheManager, tokens: Any) -> KVCache:
    """As `prefill`, with `commit_input` where the library has it."""
    kv_cache: Any = manager.create_kv_cache(None, tokens)
    if not hasattr(kv_cache, "commit_input"):
        kv_cache.close()
        return prefill(manager, tokens)
    if not (kv_cache.resume() and kv_cache.resize(len(tokens))):
        raise RuntimeError(f"the benchmark's pool is too small: {manager.last_refusal}")
    kv_cache.commit_input()
    prefilled: KVCache = kv_cache
    return prefilled


def time_cold(
    manager: KVCacheManager, prompts: list[Any], make: Callable[[KVCacheManager, Any], KVCache] = prefill
) -> tuple[float, float]:
    """ns per block of whole prompts nobody has seen, a few open at once, and of the close alone."""
    opening = Stopwatch()
    closing = Stopwatch()
    num_blocks = 0
    for first in range(0, len(prompts), OPEN_AT_ONCE):
        batch = prompts[first : first + OPEN_AT_ONCE]
        with opening:
            kv_caches = [make(manager, tokens) for tokens in batch]
        with closing:
            for kv_cache in kv_caches:
                kv_cache.close()
        num_blocks += sum(len(tokens) // BLOCK for tokens in batch)
    return (opening.ns + closing.ns) / num_blocks, closing.ns / num_blocks


def _measure_cold(
    size: Size,
    windows: tuple[int | None, ...],
    as_list: bool,
    with_defaults: bool = False,
    make: Callable[[KVCacheManager, Any], KVCache] = prefill,
) -> tuple[float, float]:
    count = size.of(64, 4)
    prompts = Prompts()
    policy = EvictionPolicy.LEARNED if with_defaults else EvictionPolicy.LRU
    with make_manager((count + 1) * PROMPT // BLOCK, windows, with_defaults, policy=policy) as manager:
        # Once for nothing: the pools have their first blocks made, the memory is touched.
        time_cold(manager, prompts.make_many(count))
        manager.clear_reusable_blocks()
        given = _as_given(prompts.make_many(count), as_list)
        gc.collect()
        return time_cold(manager, given, make)


def cold_prefill(size: Size) -> dict[str, float]:
    whole, closing = _measure_cold(size, FULL_AND_WINDOW, as_list=False)
    whole_of_list, _ = _measure_cold(size, FULL_AND_WINDOW, as_list=True)
    with_defaults, _ = _measure_cold(size, FULL_AND_WINDOW, as_list=False, with_defaults=True)
    once_packed, _ = _measure_cold(size, FULL_AND_WINDOW, as_list=True, make=prefill_once_packed)
    return {"numpy": whole, "list": whole_of_list, "close": closing, "defaults": with_defaults, "list_input": once_packed}


def first_touch(size: Size) -> dict[str, float]:
    """The same in a pool that was never used: blocks and rows are made."""
    count = size.of(64, 4)
    with make_manager((count + 1) * PROMPT // BLOCK) as manager:
        whole, _ = time_cold(manager, list(Prompts().make_many(count)))
    return {"numpy": whole}


def _time_warm(manager: KVCacheManager, tokens: Any, num_groups: int, rounds: int) -> float:
    watch = Stopwatch()
    with watch:
        for _ in range(rounds):
            kv_cache = manager.create_kv_cache(None, tokens)
            kv_cache.resume()
            for group in range(num_groups):
                kv_cache.get_base_page_indices(group)
            kv_cache.close()
    return watch.ns / (rounds * (len(tokens) // BLOCK))


def warm_prompt(size: Size) -> dict[str, float]:
    num_tokens = 128 * 1024
    rounds = size.of(20, 2)
    tokens = Prompts(num_tokens).make()
    probing = Stopwatch()
    with make_manager(2 * num_tokens // BLOCK) as manager:
        prefill(manager, tokens).close()
        _time_warm(manager, tokens, 2, 1)
        numpy_ns = _time_warm(manager, tokens, 2, rounds)
        list_ns = _time_warm(manager, tokens.tolist(), 2, rounds)
        with probing:
            for _ in range(rounds):
                assert manager.probe_reuse(None, tokens) == num_tokens
    with make_manager(2 * num_tokens // BLOCK, enable_stats=True, policy=EvictionPolicy.LEARNED) as manager:
        prefill(manager, tokens).close()
        _time_warm(manager, tokens, 2, 1)
        defaults_ns = _time_warm(manager, tokens, 2, rounds)
    match_ns = probing.ns / (rounds * num_tokens // BLOCK)
    return {"numpy": numpy_ns, "list": list_ns, "match_only": match_ns, "defaults": defaults_ns}


def short_warm_prompt(size: Size) -> dict[str, float]:
    """Fixed costs: a prompt of 4 blocks, all of it cached."""
    rounds = size.of(20_000, 500)
    tokens = Prompts(4 * BLOCK).make()
    watch = Stopwatch()
    with make_manager(64) as manager:
        prefill(manager, tokens).close()
        with watch:
            for _ in range(rounds):
                kv_cache = manager.create_kv_cache(None, tokens)
                kv_cache.resume()
                kv_cache.close()
    return {"call": watch.ns / rounds}


def full_pool(size: Size) -> dict[str, float]:
    return {
        "numpy": _measure_full_pool(size, EvictionPolicy.LRU),
        "learned": _measure_full_pool(size, EvictionPolicy.LEARNED),
        "defaults": _measure_full_pool(size, EvictionPolicy.LEARNED, True),
    }


def _measure_full_pool(size: Size, policy: EvictionPolicy, enable_stats: bool = False) -> float:
    num_prompts = size.of(64, 4)
    prompts = Prompts()
    with make_manager(num_prompts * PROMPT // BLOCK, enable_stats=enable_stats, policy=policy) as manager:
        for tokens in prompts.make_many(2 * num_prompts):
            prefill(manager, tokens).close()
        evicted = sum(group.evicted for group in manager.get_storage_statistics())
        given = list(prompts.make_many(num_prompts))
        gc.collect()
        whole, _ = time_cold(manager, given)
        evicted = sum(group.evicted for group in manager.get_storage_statistics()) - evicted
    assert evicted > num_prompts * PROMPT // BLOCK, "the pool was not full"
    return whole


def many_children(size: Size) -> dict[str, float]:
    """Prompts share 31 and a half blocks; the 32nd has as many versions as there were prompts."""
    num_children = size.of(20_000, 500)
    num_shared = 1008
    rounds = size.of(5_000, 200)
    shared = Prompts(num_shared).make()
    with make_manager(2 * num_children + 100) as manager:
        for child in range(num_children):
            rest = np.arange(100_000 + child * BLOCK, 100_000 + child * BLOCK + BLOCK // 2, dtype=np.int32)
            prefill(manager, np.concatenate([shared, rest])).close()
        # Every third version again, a little later in its own half of the block.
        queries = []
        for number in range(rounds):
            rest = np.arange(BLOCK, dtype=np.int32) + (100_000 + (number * 3 % num_children) * BLOCK + 7)
            queries.append(np.concatenate([shared, rest]))
        assert manager.probe_reuse(None, queries[0]) == num_shared
        watch = Stopwatch()
        with watch:
            for query in queries:
                manager.probe_reuse(None, query)
        cheap = Stopwatch()
        whole_blocks = [query[: num_shared // BLOCK * BLOCK] for query in queries]
        with cheap:
            for query in whole_blocks:
                manager.probe_reuse(None, query)
    return {"lookup": watch.ns / rounds / 1000, "whole_blocks_only": cheap.ns / rounds / 1000}


def layer_groups(size: Size) -> dict[str, float]:
    figures: dict[str, float] = {}
    for num_groups in (1, 2, 4, 8):
        windows = WINDOWS_OF_8[:num_groups]
        whole, closing = _measure_cold(Size(size.scale / 2), windows, as_list=False)
        figures[f"cold_{num_groups}"] = whole
        figures[f"close_{num_groups}"] = closing
        prompts = Prompts()
        with make_manager(2 * PROMPT // BLOCK, windows) as manager:
            tokens = prompts.make()
            prefill(manager, tokens).close()
            _time_warm(manager, tokens, num_groups, 1)
            figures[f"warm_{num_groups}"] = _time_warm(manager, tokens, num_groups, size.of(100, 5))
        num_prompts = size.of(16, 2)
        with make_manager(num_prompts * PROMPT // BLOCK, windows) as manager:
            fill(manager, 2 * num_prompts * PROMPT // BLOCK, prompts)
            figures[f"full_{num_groups}"], _ = time_cold(manager, list(prompts.make_many(num_prompts)))
    return figures


_PER_BLOCK = "ns/block"
WORKLOADS = [
    Workload(
        "cold_prefill",
        cold_prefill,
        {
            "numpy": Row("W1 cold prefill, numpy", _PER_BLOCK, 90),
            "list": Row("W1 cold prefill, list", _PER_BLOCK, 220),
            "close": Row("close", _PER_BLOCK, 20),
            "defaults": Row("W1 with the defaults: LEARNED, statistics on", _PER_BLOCK, 150),
            "list_input": Row("W1 cold prefill, list, with commit_input", _PER_BLOCK, 280),
        },
    ),
    Workload("first_touch", first_touch, {"numpy": Row("W1 in a pool never used", _PER_BLOCK)}),
    Workload(
        "warm_prompt",
        warm_prompt,
        {
            "numpy": Row("W2 warm 128k, numpy", _PER_BLOCK, 35),
            "list": Row("W2 warm 128k, list", _PER_BLOCK, 120),
            "match_only": Row("W2 the match alone, numpy", _PER_BLOCK),
            "defaults": Row("W2 with the defaults: LEARNED, statistics on", _PER_BLOCK, 55),
        },
    ),
    Workload("short_warm_prompt", short_warm_prompt, {"call": Row("create, resume, close; 4 blocks", "ns")}),
    Workload(
        "full_pool",
        full_pool,
        {
            "numpy": Row("W4 full pool, numpy", _PER_BLOCK, 150),
            "learned": Row("W4 with the default policy, LEARNED", _PER_BLOCK),
            "defaults": Row("W4 with the defaults: LEARNED, statistics on", _PER_BLOCK, 260),
        },
    ),
    Workload(
        "many_children",
        many_children,
        {
            "lookup": Row("W5 look-up among 20,000 children", "us", 2),
            "whole_blocks_only": Row("W5 the same, whole blocks only", "us"),
        },
    ),
    Workload(
        "layer_groups",
        layer_groups,
        {
            f"{kind}_{count}": Row(f"{count} layer groups: {title}", _PER_BLOCK)
            for kind, title in (("cold", "W1"), ("warm", "W2, 8k"), ("full", "W4"), ("close", "close"))
            for count in (1, 2, 4, 8)
        },
        interpreted=False,
    ),
]
