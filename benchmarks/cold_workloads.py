"""What an engine pays: calls whose data and code a model's step has pushed out of the caches, beside the same calls in a tight loop.

Between two calls 64 MiB of other memory are read and written, as a step of the model does; the call alone is timed. Defaults first
(LEARNED, statistics), then LRU without statistics ("tuned"). Per call the median, and of the cold ones the greatest.
"""

import gc
import statistics
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from decode_workloads import open_sequences
from kv_cache_manager_v2 import DecodeBatch, EvictionPolicy, KVCache, KVCacheManager, StridedPages
from measure import Stopwatch
from models import BLOCK, FULL_AND_WINDOW, PROMPT, Prompts, make_manager, prefill
from workload import Row, Size, Workload

OTHER_BYTES: Final = 64 << 20
"""More than the caches of one core have."""
_OTHERS: Final[Any] = np.zeros(OTHER_BYTES // 8)

KINDS: Final = {
    "prompt": "a new prompt of 8k",
    "close": "its close",
    "warm": "a cached prompt of 8k, with close",
    "probe": "how much of a prompt of 32k is cached",
    "step_256": "a decode step of 256 sequences, two block tables",
    "step_1": "a decode step of one sequence, two block tables",
    "nothing": "nothing: what reading the clock costs, in each row",
}


def _time(calls: Iterable[Callable[[], object]], is_cold: bool) -> list[float]:
    """us of each call; what a call returns is kept until all are done, so that freeing it is not timed."""
    times: list[float] = []
    kept: list[object] = []
    for call in calls:
        if is_cold:
            _OTHERS.__iadd__(1.0)
        watch = Stopwatch()
        with watch:
            kept.append(call())
        times.append(watch.ns / 1000)
    return times


def _prompts(manager: KVCacheManager, rounds: int, is_cold: bool, own: Prompts) -> dict[str, list[float]]:
    opened: list[KVCache] = []
    given = own.make_many(rounds)
    prompt = _time([lambda tokens=tokens: opened.append(prefill(manager, tokens)) for tokens in given], is_cold)
    close = _time([kv_cache.close for kv_cache in opened], is_cold)
    warm = _time([lambda tokens=tokens: prefill(manager, tokens).close() for tokens in given], is_cold)
    long_prompts = [np.concatenate([given[(first + number) % rounds] for number in range(4)]) for first in range(rounds)]
    probe = _time([lambda tokens=tokens: manager.probe_reuse(None, tokens) for tokens in long_prompts], is_cold)
    return {"prompt": prompt, "close": close, "warm": warm, "probe": probe}


def _steps(manager: KVCacheManager, count: int, rounds: int, is_cold: bool, own: Prompts) -> list[float]:
    kv_caches = open_sequences(manager, count, own)
    batch = DecodeBatch(manager, count, 1024)
    for group in range(2):
        batch.table.add_block_table(StridedPages(group))
    for kv_cache in kv_caches:
        batch.join(kv_cache)
    tokens = np.arange(count, dtype=np.int32) + 7000
    batch.step()
    for _ in range(BLOCK):
        batch.step(tokens)
    times = _time([lambda: batch.step(tokens)] * rounds, is_cold)
    for kv_cache in kv_caches:
        kv_cache.close()
    return times


def cold_caches(size: Size) -> dict[str, float]:
    rounds = size.of(64, 8)
    figures: dict[str, float] = {}
    for setting, policy, enable_stats in (("defaults", EvictionPolicy.LEARNED, True), ("tuned", EvictionPolicy.LRU, False)):
        num_blocks = 2 * (rounds + 2) * PROMPT // BLOCK + 4 * 257 * (512 + rounds + BLOCK) // BLOCK + 4096
        with make_manager(num_blocks, FULL_AND_WINDOW, enable_stats, policy=policy) as manager:
            long, short = Prompts(), Prompts(512)
            _prompts(manager, 4, False, long)
            for is_cold in (False, True):
                gc.collect()
                found = _prompts(manager, rounds, is_cold, long)
                found["step_256"] = _steps(manager, 256, rounds, is_cold, short)
                found["step_1"] = _steps(manager, 1, rounds, is_cold, short)
                found["nothing"] = _time([lambda: None] * rounds, is_cold)
                for kind, times in found.items():
                    figures[f"{kind}_{setting}_{'cold' if is_cold else 'tight'}"] = statistics.median(times)
                    if is_cold:
                        figures[f"{kind}_{setting}_most"] = max(times)
    return figures


WORKLOADS = [
    Workload(
        "cold_caches",
        cold_caches,
        {
            f"{kind}_{setting}_{way}": Row(f"{title}, {setting}, {shown}", "us", goal)
            for kind, title in KINDS.items()
            for setting in ("defaults", "tuned")
            for way, shown, goal in (
                ("tight", "in a tight loop", None),
                ("cold", "caches cold", {"step_256": 50.0, "step_1": 12.0}.get(kind)),
                ("most", "caches cold, greatest", None),
            )
        },
        interpreted=False,
    ),
]
