"""W3: what a decode step costs a running sequence, called one by one and in a batch."""

import gc
from typing import Any

from kv_cache_manager_v2 import KVCache, KVCacheManager
from measure import Stopwatch
from models import BLOCK, FULL_AND_WINDOW, WINDOWS_OF_8, Prompts, make_manager, prefill
from workload import Row, Size, Workload

PROMPT_TOKENS = 2048
NUM_RUNNING = 256


def open_sequences(manager: KVCacheManager, count: int, prompts: Prompts) -> list[KVCache]:
    """Running sequences whose next block begins at different steps."""
    kv_caches = []
    for number in range(count):
        tokens = prompts.make()
        kv_caches.append(prefill(manager, tokens[: len(tokens) - number % BLOCK]))
    return kv_caches


def time_decode(kv_caches: list[KVCache], num_steps: int) -> float:
    """ns per sequence and step of resize and commit together, one call each; the loop over the sequences is in it."""
    calls = []
    capacities = [kv_cache.capacity for kv_cache in kv_caches]
    for step in range(1, num_steps + 1):
        token = 5000 + step * 7919 % 100_000
        for kv_cache, capacity in zip(kv_caches, capacities, strict=True):
            calls.append((kv_cache, capacity + step, [token]))
    watch = Stopwatch()
    with watch:
        for kv_cache, capacity, tokens in calls:
            kv_cache.resize(capacity)
            kv_cache.commit(tokens)
    return watch.ns / len(calls)


def time_empty_steps(count: int) -> float:
    """The same loop with two calls of a method that does next to nothing: what the caller's Python costs."""
    calls = [(number, number + 1, [number]) for number in range(5000, 5000 + count)]
    watch = Stopwatch()
    with watch:
        for number, capacity, _tokens in calls:
            number.bit_length()
            capacity.bit_length()
    return watch.ns / count


def time_resize_alone(kv_caches: list[KVCache], num_steps: int) -> float:
    """Drafts that are not accepted yet: the capacity grows, nothing is committed."""
    calls = []
    capacities = [kv_cache.capacity for kv_cache in kv_caches]
    for step in range(1, num_steps + 1):
        for kv_cache, capacity in zip(kv_caches, capacities, strict=True):
            calls.append((kv_cache, capacity + step))
    watch = Stopwatch()
    with watch:
        for kv_cache, capacity in calls:
            kv_cache.resize(capacity)
    return watch.ns / len(calls)


def time_commit_alone(kv_caches: list[KVCache], num_steps: int) -> float:
    """What `time_resize_alone` made room for."""
    calls = [(kv_cache, [6000 + step * 6151 % 100_000]) for step in range(num_steps) for kv_cache in kv_caches]
    watch = Stopwatch()
    with watch:
        for kv_cache, tokens in calls:
            kv_cache.commit(tokens)
    return watch.ns / len(calls)


def time_batches(manager: KVCacheManager, kv_caches: list[KVCache], num_steps: int) -> tuple[float, float]:
    """ns per sequence and step of `resize_batch`, and of `commit_batch` where the manager has it, else of commits."""
    commit_batch: Any = getattr(manager, "commit_batch", None)
    capacities = [kv_cache.capacity for kv_cache in kv_caches]
    steps = []
    for step in range(num_steps):
        capacities = [capacity + 1 for capacity in capacities]
        token = 7000 + step * 6151 % 100_000
        steps.append((capacities, [token] * len(kv_caches), [[token] for _ in kv_caches]))
    resizing = Stopwatch()
    committing = Stopwatch()
    for capacities, batch_tokens, tokens in steps:
        with resizing:
            manager.resize_batch(kv_caches, capacities)
        with committing:
            if commit_batch is not None:
                commit_batch(kv_caches, batch_tokens)
            else:
                for kv_cache, one_token in zip(kv_caches, tokens, strict=True):
                    kv_cache.commit(one_token)
    count = num_steps * len(kv_caches)
    return resizing.ns / count, committing.ns / count


def measure_decode(
    size: Size, num_running: int, num_steps: int, windows: tuple[int | None, ...] = FULL_AND_WINDOW
) -> dict[str, float]:
    num_steps = size.of(num_steps, 40)
    max_tokens = PROMPT_TOKENS + 4 * num_steps + 2 * BLOCK
    with make_manager(num_running * (max_tokens // BLOCK + 2), windows) as manager:
        kv_caches = open_sequences(manager, num_running, Prompts(PROMPT_TOKENS))
        gc.collect()
        time_decode(kv_caches, min(num_steps, 8))
        both = time_decode(kv_caches, num_steps)
        empty = time_empty_steps(num_running * num_steps)
        resize = time_resize_alone(kv_caches, num_steps)
        commit = time_commit_alone(kv_caches, num_steps)
        batch_resize, batch_commit = time_batches(manager, kv_caches, num_steps)
        for kv_cache in kv_caches:
            kv_cache.close()
    return {
        "both": both,
        "empty": empty,
        "resize": resize,
        "commit": commit,
        "batch_both": batch_resize + batch_commit,
        "batch_resize": batch_resize,
        "batch_commit": batch_commit,
    }


def decode(size: Size) -> dict[str, float]:
    return measure_decode(size, NUM_RUNNING, 320)


def decode_by_layer_groups(size: Size) -> dict[str, float]:
    figures: dict[str, float] = {}
    for num_groups in (1, 2, 4, 8):
        measured = measure_decode(size, 64, 320, WINDOWS_OF_8[:num_groups])
        figures[f"both_{num_groups}"] = measured["both"]
        figures[f"batch_{num_groups}"] = measured["batch_resize"]
    return figures


_PER_STEP = "ns/step"
WORKLOADS = [
    Workload(
        "decode",
        decode,
        {
            "both": Row("W3 decode, resize and commit", _PER_STEP, 90),
            "empty": Row("W3 of which the loop and two empty calls", _PER_STEP),
            "resize": Row("W3 resize", _PER_STEP),
            "commit": Row("W3 commit", _PER_STEP),
            "batch_both": Row("W3 batch, resize and commit", _PER_STEP, 15),
            "batch_resize": Row("W3 resize_batch", _PER_STEP),
            "batch_commit": Row("W3 commit beside it", _PER_STEP),
        },
    ),
    Workload(
        "decode_by_layer_groups",
        decode_by_layer_groups,
        {
            f"{kind}_{count}": Row(f"{count} layer groups: {title}", _PER_STEP)
            for kind, title in (("both", "W3"), ("batch", "W3 resize_batch"))
            for count in (1, 2, 4, 8)
        },
        interpreted=False,
    ),
]
