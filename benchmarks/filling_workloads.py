"""A cache that is filled for the first time, as users have it: LEARNED, statistics on, nothing frozen, the collector running.

The same prompts in several passes, each in a process of its own: a manager that comes second in one finds memory that the first has
left. Of each call the shortest time counts (see `tail_workloads`); the greatest of any pass stands beside. "Settled": as malloc is in a
process that has freed larger pieces than any here, which it no longer maps one by one. Once the cache is full, every fourth prompt is of a
second reuse scope: its first calls are among those that are timed.
"""

import gc
import json
import os
import subprocess
import sys
from time import perf_counter_ns
from typing import Final

from kv_cache_manager_v2 import EvictionPolicy, ReuseScope
from models import BLOCK, Prompts, make_manager
from workload import Row, Size, Workload

_CALLS: Final = ("create", "resume", "resize", "commit", "close")
_PASSES: Final = 5
_SETTLED: Final = {"MALLOC_MMAP_THRESHOLD_": "33554432"}
_LENGTHS: Final = (1024, 4096, 32 * 1024, 8192, 16 * 1024)
"""Tokens of the prompts, in turn."""
_TAIL_BLOCKS: Final = 40_000
"""Filled once more when the cache is full, so that each block comes in place of another."""


def _time_pass(num_blocks: int, frozen: bool) -> tuple[list[list[int]], int, int]:
    """For each prompt the ns of its calls; how many blocks all have; and the ns until the manager was made."""
    prompts = Prompts()
    times: list[list[int]] = []
    count = 0
    other_scope = ReuseScope(salt=1)
    begin = perf_counter_ns()
    with make_manager(num_blocks, enable_stats=True, policy=EvictionPolicy.LEARNED) as manager:
        made = perf_counter_ns() - begin
        if frozen:
            manager.freeze()
        while count < num_blocks + _TAIL_BLOCKS:
            prompts.num_tokens = _LENGTHS[len(times) % len(_LENGTHS)]
            tokens = prompts.make()
            scope = other_scope if count > num_blocks and len(times) % 4 == 0 else None
            marks = [perf_counter_ns()]
            kv_cache = manager.create_kv_cache(scope, tokens)
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
    return times, count, made


def filling(size: Size) -> dict[str, float]:
    figures: dict[str, float] = {}
    num_blocks = size.of(1_000_000, 20_000)
    _measure(num_blocks, "fresh", False, {}, figures)
    _measure(num_blocks, "frozen", True, {}, figures)
    _measure(num_blocks, "settled", False, _SETTLED, figures)
    if size.huge:
        _measure(10_000_000, "huge", False, {}, figures)
        _measure(10_000_000, "huge_settled", False, _SETTLED, figures)
    return figures


def _measure(num_blocks: int, name: str, frozen: bool, variables: dict[str, str], figures: dict[str, float]) -> None:
    passes = []
    made = []
    command = [sys.executable, "-P", __file__, str(num_blocks), "frozen" if frozen else "fresh"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables
    for _ in range(_PASSES):
        times, count, made_ns = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
        passes.append(times)
        made.append(made_ns)
    least = [[min(of_call) for of_call in zip(*of_prompt, strict=True)] for of_prompt in zip(*passes, strict=True)]
    figures[f"{name}_made"] = max(made) / 1e6
    figures[f"{name}_mean"] = sum(map(sum, least)) / count
    figures[f"{name}_request"] = max(map(sum, least)) / 1e6
    figures[f"{name}_beyond"] = _beyond(least)
    figures[f"{name}_greatest"] = max(map(_beyond, passes))
    of_calls = [sorted(one[position] for one in least) for position in range(len(_CALLS))]
    longest = max(of_calls, key=lambda times: times[-1])
    figures[f"{name}_longest"] = longest[-1] / 1e6
    figures[f"{name}_median"] = longest[len(longest) // 2] / 1e6


def _beyond(times: list[list[int]]) -> float:
    """By how many ms the longest call is longer than ten medians of its kind."""
    of_calls = [sorted(one[position] for one in times) for position in range(len(_CALLS))]
    return max(0.0, *(ns[-1] - 10 * ns[len(ns) // 2] for ns in of_calls)) / 1e6


WORKLOADS = [
    Workload(
        "filling",
        filling,
        {
            f"{name}_{kind}": Row(f"filling {text}: {title}", unit, goal)
            for name, text in (
                ("fresh", "10^6 blocks, defaults"),
                ("frozen", "10^6 blocks, defaults, frozen"),
                ("settled", "10^6 blocks, defaults, malloc settled"),
                ("huge", "10^7 blocks, defaults"),
                ("huge_settled", "10^7 blocks, defaults, malloc settled"),
            )
            for kind, title, unit, goal in (
                ("made", "the manager made", "ms", 500),
                ("mean", "mean", "ns/block", 300),
                ("longest", "longest call", "ms", None),
                ("median", "median call of that kind", "ms", None),
                ("request", "longest request", "ms", 2),
                ("beyond", "longest call beyond ten medians", "ms", 0.2),
                ("greatest", "the same, greatest of all passes", "ms", None),
            )
        },
        interpreted=False,
    )
]

if __name__ == "__main__":
    print(json.dumps(_time_pass(int(sys.argv[1]), sys.argv[2] == "frozen")))
