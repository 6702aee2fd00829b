"""A cache that is filled for the first time, as users have it: LEARNED, statistics on, nothing frozen, the collector running.

The same prompts in several passes, each with a new manager; of each call the shortest time counts (see `tail_workloads`).
"""

import gc
from time import perf_counter_ns
from typing import Final

from kv_cache_manager_v2 import EvictionPolicy
from models import BLOCK, Prompts, make_manager
from workload import Row, Size, Workload

_CALLS: Final = ("create", "resume", "resize", "commit", "close")
_PASSES: Final = 5
_LENGTHS: Final = (1024, 4096, 32 * 1024, 8192, 16 * 1024)
"""Tokens of the prompts, in turn."""
_TAIL_BLOCKS: Final = 40_000
"""Filled once more when the cache is full, so that each block comes in place of another."""


def _time_pass(num_blocks: int, frozen: bool) -> tuple[list[list[int]], int]:
    """For each prompt the ns of its calls; and how many blocks all have."""
    prompts = Prompts()
    times: list[list[int]] = []
    count = 0
    with make_manager(num_blocks, enable_stats=True, policy=EvictionPolicy.LEARNED) as manager:
        if frozen:
            manager.freeze()
        while count < num_blocks + _TAIL_BLOCKS:
            prompts.num_tokens = _LENGTHS[len(times) % len(_LENGTHS)]
            tokens = prompts.make()
            marks = [perf_counter_ns()]
            kv_cache = manager.create_kv_cache(None, tokens)
            marks.append(perf_counter_ns())
            kv_cache.resume()
            marks.append(perf_counter_ns())
            kv_cache.resize(len(tokens))
            marks.append(perf_counter_ns())
            kv_cache.commit(tokens)
            marks.append(perf_counter_ns())
            kv_cache.close()
            marks.append(perf_counter_ns())
            times.append([end - begin for begin, end in zip(marks, marks[1:], strict=False)])
            count += len(tokens) // BLOCK
    if frozen:
        gc.unfreeze()
    return times, count


def filling(size: Size) -> dict[str, float]:
    figures: dict[str, float] = {}
    num_blocks = 10_000_000 if size.huge else size.of(1_000_000, 20_000)
    for name, frozen in (("fresh", False), ("frozen", True)):
        passes = []
        for _ in range(_PASSES):
            times, count = _time_pass(num_blocks, frozen)
            passes.append(times)
        least = [[min(of_call) for of_call in zip(*of_prompt, strict=True)] for of_prompt in zip(*passes, strict=True)]
        figures[f"{name}_mean"] = sum(map(sum, least)) / count
        figures[f"{name}_request"] = max(map(sum, least)) / 1e6
        beyond = 0.0
        for position in range(len(_CALLS)):
            of_call = sorted(one[position] for one in least)
            beyond = max(beyond, of_call[-1] - 10 * of_call[len(of_call) // 2])
        figures[f"{name}_beyond"] = beyond / 1e6
    return figures


WORKLOADS = [
    Workload(
        "filling",
        filling,
        {
            f"{name}_{kind}": Row(f"filling 10^6 blocks, defaults{text}: {title}", unit, goal)
            for name, text in (("fresh", ""), ("frozen", ", frozen"))
            for kind, title, unit, goal in (
                ("mean", "mean", "ns/block", 300),
                ("request", "longest request", "ms", 2),
                ("beyond", "longest call beyond ten medians", "ms", 0.2),
            )
        },
        interpreted=False,
    )
]
