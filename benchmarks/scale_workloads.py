"""How the figures grow: with cached blocks, with open sequences, with the length of a sequence."""

import gc

from decode_workloads import open_sequences, time_batches, time_decode
from kv_cache_manager_v2 import KVCache
from measure import Stopwatch
from models import BLOCK, PROMPT, Prompts, fill, make_manager, prefill
from prompts_workloads import time_cold
from workload import Row, Size, Workload

_NAMES = {3: "10^3", 4: "10^4", 5: "10^5", 6: "10^6", 7: "10^7"}


def cached_blocks(size: Size) -> dict[str, float]:
    """The same work beside 10^3 .. 10^6 cached blocks (10^7 where huge): all of them full pools."""
    figures: dict[str, float] = {}
    exponents = [3, 4, 5, 6, 7] if size.huge else [3, 4, 5, 6]
    for exponent in exponents:
        num_blocks = 10**exponent
        if num_blocks > 10**6 * size.scale and not size.huge:
            continue
        prompts = Prompts(2048 if exponent < 5 else PROMPT)
        if exponent == 7:
            prompts = Prompts(32 * BLOCK * 1024)
        with make_manager(num_blocks + 512) as manager:
            fill(manager, num_blocks + 512, prompts)
            gc.collect()
            gc.freeze()
            own = Prompts(2048)
            own._next = 2**31 - 2**27
            cold_prompts = list(own.make_many(size.of(40, 10)))
            figures[f"full_{exponent}"], _ = time_cold(manager, cold_prompts)
            warm = Stopwatch()
            with warm:
                for tokens in cold_prompts[-4:]:
                    assert manager.probe_reuse(None, tokens) == len(tokens)
            figures[f"match_{exponent}"] = warm.ns / (4 * 2048 // BLOCK)
            kv_caches = open_sequences(manager, 4, own)
            figures[f"decode_{exponent}"] = time_decode(kv_caches, size.of(1000, 100))
            for kv_cache in kv_caches:
                kv_cache.close()
            gc.unfreeze()
    return figures


def running_sequences(size: Size) -> dict[str, float]:
    figures: dict[str, float] = {}
    for exponent in range(5):
        count = 10**exponent
        if count > 10_000 * size.scale:
            continue
        num_steps = max(min(size.of(100_000) // count, 1000), 40)
        prompts = Prompts(8 * BLOCK)
        with make_manager(count * (10 + 2 * num_steps // BLOCK + 2)) as manager:
            kv_caches = open_sequences(manager, count, prompts)
            gc.collect()
            time_decode(kv_caches, 2)
            figures[f"decode_{exponent}"] = time_decode(kv_caches, num_steps)
            figures[f"batch_{exponent}"], _ = time_batches(manager, kv_caches, num_steps)
            for kv_cache in kv_caches:
                kv_cache.close()
    return figures


def long_sequences(size: Size) -> dict[str, float]:
    figures: dict[str, float] = {}
    for exponent in (3, 4, 5, 6):
        num_tokens = 10**exponent // BLOCK * BLOCK
        if num_tokens > 10**6 * size.scale:
            continue
        tokens = Prompts(num_tokens).make()
        with make_manager(num_tokens // BLOCK + 200) as manager:
            whole = Stopwatch()
            with whole:
                kv_cache: KVCache = prefill(manager, tokens)
            figures[f"cold_{exponent}"] = whole.ns / (num_tokens // BLOCK)
            time_decode([kv_cache], 10)
            figures[f"decode_{exponent}"] = time_decode([kv_cache], size.of(4000, 200))
            kv_cache.close()
    return figures


WORKLOADS = [
    Workload(
        "cached_blocks",
        cached_blocks,
        {
            f"{kind}_{exponent}": Row(f"{name} cached blocks: {title}", unit)
            for kind, title, unit in (
                ("full", "W4, 2k prompts", "ns/block"),
                ("match", "match", "ns/block"),
                ("decode", "decode, 4 running", "ns/step"),
            )
            for exponent, name in _NAMES.items()
        },
        interpreted=False,
    ),
    Workload(
        "running_sequences",
        running_sequences,
        {
            f"{kind}_{exponent}": Row(f"{10**exponent:,} running: {title}", "ns/step")
            for kind, title in (("decode", "decode"), ("batch", "resize_batch"))
            for exponent in range(5)
        },
        interpreted=False,
    ),
    Workload(
        "long_sequences",
        long_sequences,
        {
            f"{kind}_{exponent}": Row(f"{_NAMES[exponent]} tokens: {title}", unit)
            for kind, title, unit in (("cold", "cold prefill", "ns/block"), ("decode", "decode, 1 running", "ns/step"))
            for exponent in (3, 4, 5, 6)
        },
        interpreted=False,
    ),
]
