"""What a durable disk level costs the engine's thread while serving, beside the same disk level that is not durable.

Level 0 holds everything, so the one that is not durable writes nothing. 32 sequences have prompts of 1,024 tokens, of which 512 are shared,
and generate 96 tokens each. Both are measured in turn, so that a busy neighbour meets both; a figure is durable divided by not durable.
"""

import random
import statistics
import tempfile

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    DiskCacheTierConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    ModelId,
)
from measure import Stopwatch
from models import BLOCK
from workload import Row, Size, Workload

_NUM_SEQUENCES = 32
_NUM_SHARED = 512
_NUM_OWN = 512
_NUM_STEPS = 96
_WINDOW = 256
_KINDS = ("decode", "prompt", "close")
_CASES: dict[str, tuple[int | None, ...]] = {"one": (None,), "two": (None, _WINDOW), "pools": (None, _WINDOW, _WINDOW)}
"""Windows of the layers. Layer groups whose slots are equally large share a pool group; where twice as many layers have the window they do
not, as in most models with windows."""
_TITLES = {"one": "one layer group", "two": "two, one with a window", "pools": "two in pool groups of their own"}
_NUM_TURNS = 9


def _make_config(folder: str, windows: tuple[int | None, ...], is_durable: bool) -> KVCacheManagerConfig:
    layers = [
        AttentionLayerConfig(LayerId(number), [BufferConfig("key", 64 * BLOCK), BufferConfig("value", 64 * BLOCK)], window)
        for number, window in enumerate(windows)
    ]
    slot_bytes = 2 * 64 * BLOCK * len(windows)
    disk = DiskCacheTierConfig(16_000 * slot_bytes, folder)
    if is_durable:
        disk = DiskCacheTierConfig(16_000 * slot_bytes, folder, durable=True, model_id=ModelId("measured"))
    return KVCacheManagerConfig(
        tokens_per_block=BLOCK,
        cache_tiers=[GpuCacheTierConfig(8000 * slot_bytes), disk],
        layers=layers,
        # Windowed pages that are published stay as well, as long as there is room.
        initial_pool_ratio=[0.5, 0.5] if len(windows) > 2 else None,
    )


def serve(windows: tuple[int | None, ...], is_durable: bool, num_rounds: int, num_steps: int = _NUM_STEPS) -> dict[str, float]:
    """us of this thread: by decode step of all sequences, by prompt, by close."""
    watches = {kind: Stopwatch() for kind in _KINDS}
    numbers = random.Random(1)
    shared = list(range(_NUM_SHARED))
    device = HostDevice()
    with tempfile.TemporaryDirectory() as folder, KVCacheManager(_make_config(folder, windows, is_durable), device=device) as manager:
        for _round in range(num_rounds):
            running = []
            for _ in range(_NUM_SEQUENCES):
                prompt = shared + [numbers.randrange(10**6) for _ in range(_NUM_OWN)]
                with watches["prompt"]:
                    kv_cache = manager.create_kv_cache(None, prompt)
                    assert kv_cache.resume(), manager.last_refusal
                    num_reused = kv_cache.num_committed_tokens
                    assert kv_cache.resize(len(prompt), num_reused), manager.last_refusal
                    kv_cache.commit(prompt[num_reused:])
                running.append(kv_cache)
            capacities = [kv_cache.capacity for kv_cache in running]
            for step in range(num_steps):
                tokens = [step + 7] * _NUM_SEQUENCES
                histories = capacities
                capacities = [capacity + 1 for capacity in capacities]
                with watches["decode"]:
                    manager.resize_batch(running, capacities, histories)
                    manager.commit_batch(running, tokens)
            for kv_cache in running:
                with watches["close"]:
                    kv_cache.close()
        written = manager.get_storage_statistics(1)
        used = sum(group.total - group.free for group in written)
    device.close()
    assert not is_durable or used == 0, "copies take no room"
    num_prompts = num_rounds * _NUM_SEQUENCES
    counts = {"decode": num_rounds * num_steps, "prompt": num_prompts, "close": num_prompts}
    return {kind: watches[kind].ns / 1000 / counts[kind] for kind in _KINDS}


def durable_cost(size: Size) -> dict[str, float]:
    num_rounds = size.of(4)
    figures: dict[str, float] = {}
    for name, windows in _CASES.items():
        turns = [(serve(windows, False, num_rounds), serve(windows, True, num_rounds)) for _ in range(_NUM_TURNS)]
        for kind in _KINDS:
            ratios = [durable[kind] / plain[kind] for plain, durable in turns]
            figures[f"{kind}_{name}"] = statistics.median(ratios)
            figures[f"{kind}_{name}_most"] = max(ratios)
            figures[f"{kind}_{name}_us"] = min(plain[kind] for plain, _durable in turns)
    return figures


def _rows() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for name, groups in _TITLES.items():
        for kind, title in (("decode", "a decode step of 32"), ("prompt", "a prompt"), ("close", "a close")):
            goal = 1.1 if kind == "decode" else None
            rows[f"{kind}_{name}"] = Row(f"durable / not durable, {title}, {groups}: median of {_NUM_TURNS} turns", "x", goal)
            rows[f"{kind}_{name}_most"] = Row(f"the same, {title}, {groups}: most", "x")
            rows[f"{kind}_{name}_us"] = Row(f"not durable, {title}, {groups}", "us")
    return rows


WORKLOADS = [Workload("durable", durable_cost, _rows(), interpreted=False)]
