"""Single calls by the wall clock: median, p99.9 and the worst, with the garbage collector running as it likes.

The same calls are made in several passes, and of each call the shortest time counts: what is long in one pass only is the
machine's doing (an interrupt, a neighbour on the core), what is long in each is the manager's. A collection of garbage comes at
the same call of each pass.
"""

import gc
from collections.abc import Callable
from time import perf_counter_ns

from decode_workloads import open_sequences
from models import BLOCK, Prompts, fill, make_manager
from workload import Row, Size, Workload

_CALLS = (
    "create", "resume", "resize_prompt", "commit_prompt", "close", "resize_decode", "commit_decode", "resize_batch", "commit_batch",
)  # fmt: skip
_PASSES = 5
_BATCH = 64

Durations = dict[str, list[int]]


def _timed(durations: list[int], call: Callable[[], object]) -> None:
    begin = perf_counter_ns()
    call()
    durations.append(perf_counter_ns() - begin)


def _time_prompts(durations: Durations, count: int) -> None:
    """Prompts of 64 blocks, half of each cached, in a full pool."""
    num_tokens = 64 * BLOCK
    shared = Prompts(num_tokens).make()
    prompts = Prompts(num_tokens)
    prompts._next = 10_000_000
    with make_manager(64 * 64) as manager:
        fill(manager, 2 * 64 * 64, prompts)
        gc.collect()
        for _ in range(count):
            tokens = prompts.make()
            tokens[: num_tokens // 2] = shared[: num_tokens // 2]
            kv_caches = []
            _timed(durations["create"], lambda: kv_caches.append(manager.create_kv_cache(None, tokens)))
            kv_cache = kv_caches[0]
            _timed(durations["resume"], kv_cache.resume)
            _timed(durations["resize_prompt"], lambda: kv_cache.resize(num_tokens))
            rest = tokens[kv_cache.num_committed_tokens :]
            _timed(durations["commit_prompt"], lambda: kv_cache.commit(rest))
            _timed(durations["close"], kv_cache.close)


def _time_steps(durations: Durations, num_steps: int) -> None:
    """Decode steps of 64 sequences, first one by one, then in batches."""
    with make_manager(_BATCH * (20 + 3 * num_steps // BLOCK)) as manager:
        running = open_sequences(manager, _BATCH, Prompts(16 * BLOCK))
        gc.collect()
        for step in range(num_steps):
            for kv_cache in running:
                capacity = kv_cache.capacity + 1
                token = [1000 + step]
                begin = perf_counter_ns()
                kv_cache.resize(capacity)
                middle = perf_counter_ns()
                kv_cache.commit(token)
                end = perf_counter_ns()
                durations["resize_decode"].append(middle - begin)
                durations["commit_decode"].append(end - middle)
        for step in range(2 * num_steps):
            capacities = [kv_cache.capacity + 1 for kv_cache in running]
            tokens = [1000 + step] * _BATCH
            _timed(durations["resize_batch"], lambda: manager.resize_batch(running, capacities))
            _timed(durations["commit_batch"], lambda: manager.commit_batch(running, tokens))
        for kv_cache in running:
            kv_cache.close()


def _time_once(size: Size) -> Durations:
    durations: Durations = {name: [] for name in _CALLS}
    _time_prompts(durations, size.of(3000, 200))
    _time_steps(durations, size.of(1000, 100))
    return durations


def tails(size: Size) -> dict[str, float]:
    passes = [_time_once(size) for _ in range(_PASSES)]
    figures: dict[str, float] = {}
    for name in _CALLS:
        values = sorted(min(times) for times in zip(*(durations[name] for durations in passes), strict=True))
        median = values[len(values) // 2]
        p999 = values[len(values) * 999 // 1000]
        figures[f"{name}_median"] = median / 1000
        figures[f"{name}_p999"] = p999 / 1000
        figures[f"{name}_max"] = values[-1] / 1000
        figures[f"{name}_ratio"] = p999 / median
    return figures


WORKLOADS = [
    Workload(
        "tails",
        tails,
        {
            f"{name}_{kind}": Row(f"{name.replace('_', ', ')}: {title}", unit, goal)
            for name in _CALLS
            for kind, title, unit, goal in (
                ("median", "median", "us", None),
                ("p999", "p99.9", "us", None),
                ("max", "worst", "us", None),
                ("ratio", "p99.9 / median", "x", 10),
            )
        },
        interpreted=False,
    )
]
