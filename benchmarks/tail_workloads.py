"""Single calls by the wall clock: median, p99.9 and the worst, with the garbage collector running as it likes.

A neighbour on the core shows here as well: on a busy machine the worst is the scheduler's, not the manager's.
"""

from collections.abc import Callable
from time import perf_counter_ns

from decode_workloads import open_sequences
from models import BLOCK, Prompts, fill, make_manager
from workload import Row, Size, Workload

_CALLS = ("create", "resume", "resize_prompt", "commit_prompt", "close", "resize_decode", "commit_decode")


def _timed(durations: list[int], call: Callable[[], object]) -> None:
    begin = perf_counter_ns()
    call()
    durations.append(perf_counter_ns() - begin)


def tails(size: Size) -> dict[str, float]:
    """Prompts of 64 blocks, half of each cached, in a full pool; decode steps of 64 sequences."""
    durations: dict[str, list[int]] = {name: [] for name in _CALLS}
    num_tokens = 64 * BLOCK
    shared = Prompts(num_tokens).make()
    prompts = Prompts(num_tokens)
    prompts._next = 10_000_000
    with make_manager(64 * 64) as manager:
        fill(manager, 2 * 64 * 64, prompts)
        for _ in range(size.of(6000, 200)):
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
    num_steps = size.of(1000, 100)
    with make_manager(64 * (20 + num_steps // BLOCK)) as manager:
        running = open_sequences(manager, 64, Prompts(16 * BLOCK))
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
        for kv_cache in running:
            kv_cache.close()
    figures: dict[str, float] = {}
    for name, values in durations.items():
        values.sort()
        median = values[len(values) // 2]
        figures[f"{name}_median"] = median / 1000
        figures[f"{name}_p999"] = values[len(values) * 999 // 1000] / 1000
        figures[f"{name}_max"] = values[-1] / 1000
        figures[f"{name}_ratio"] = values[len(values) * 999 // 1000] / median
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
