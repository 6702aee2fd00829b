"""Decode steps until the page tables are ready: by `DecodeBatch`, and by the three calls that it takes the place of; and one cold row."""

import gc
from typing import Any, Final

import numpy as np
from decode_workloads import NUM_RUNNING, open_sequences
from kv_cache_manager_v2 import BatchPageTable, KVCache, KVCacheManager, StridedPages
from measure import Stopwatch
from models import BLOCK, Prompts, make_manager
from workload import Row, Size, Skipped, Workload

PROMPT_TOKENS: Final = 512
_COLD_BYTES: Final = 64 << 20
"""More than the caches of one core have."""


def _add_outputs(table: BatchPageTable, form: str) -> None:
    for group in range(2):
        if form == "block":
            table.add_block_table(StridedPages(group))
        elif form == "csr":
            table.add_csr(StridedPages(group))
        else:
            table.add_slot_mapping(StridedPages(group), NUM_RUNNING)
    if form == "slots":
        table.add_block_table(StridedPages(0))
        table.add_block_table(StridedPages(1))


def _open(num_steps: int, enable_stats: bool) -> tuple[KVCacheManager, list[KVCache]]:
    num_blocks = NUM_RUNNING * ((PROMPT_TOKENS + num_steps) // BLOCK + 3)
    manager = make_manager(num_blocks, enable_stats=enable_stats)
    return manager, open_sequences(manager, NUM_RUNNING, Prompts(PROMPT_TOKENS))


def _time_steps(form: str, num_steps: int, enable_stats: bool) -> float:
    """ns a sequence and step."""
    try:
        from kv_cache_manager_v2 import DecodeBatch
    except ImportError:
        raise Skipped("there is no DecodeBatch") from None
    manager, kv_caches = _open(num_steps + BLOCK, enable_stats)
    with manager:
        batch = DecodeBatch(manager, NUM_RUNNING, 1024)
        _add_outputs(batch.table, form)
        for kv_cache in kv_caches:
            batch.join(kv_cache)
        tokens = np.arange(NUM_RUNNING, dtype=np.int32) + 7000
        batch.step()
        for _ in range(BLOCK):
            batch.step(tokens)
        gc.collect()
        watch = Stopwatch()
        with watch:
            for _ in range(num_steps):
                batch.step(tokens)
        for kv_cache in kv_caches:
            kv_cache.close()
    return watch.ns / (num_steps * NUM_RUNNING)


def _time_three_calls(num_steps: int) -> float:
    """The same by `resize_batch`, `BatchPageTable.update` and `commit_batch`."""
    manager, kv_caches = _open(num_steps + BLOCK, False)
    with manager:
        table = BatchPageTable(manager, NUM_RUNNING, 1024)
        _add_outputs(table, "block")
        for kv_cache in kv_caches:
            table.add(kv_cache)
        tokens = np.arange(NUM_RUNNING, dtype=np.int32) + 7000
        capacities = [kv_cache.capacity for kv_cache in kv_caches]
        ones = [1] * NUM_RUNNING
        watch = Stopwatch()
        for step in range(num_steps + BLOCK):
            if step == BLOCK:
                gc.collect()
                watch.ns = 0
            with watch:
                capacities = [capacity + 1 for capacity in capacities]
                manager.resize_batch(kv_caches, capacities)
                table.update(ones)
                manager.commit_batch(kv_caches, tokens)
        for kv_cache in kv_caches:
            kv_cache.close()
    return watch.ns / (num_steps * NUM_RUNNING)


def decode_steps(size: Size) -> dict[str, float]:
    num_steps = size.of(320, 40)
    figures = {f"{form}": _time_steps(form, num_steps, False) for form in ("block", "csr", "slots")}
    figures["defaults"] = _time_steps("block", num_steps, True)
    figures["three_calls"] = _time_three_calls(num_steps)
    return figures


def one_row(size: Size) -> dict[str, float]:
    """us of `BatchPageTable.update` of one row, in a tight loop, and each time after something else has filled the caches."""
    rounds = size.of(400, 40)
    figures: dict[str, float] = {}
    filler: Any = np.zeros(_COLD_BYTES // 8)
    with make_manager(1024) as manager:
        kv_caches = open_sequences(manager, 1, Prompts(PROMPT_TOKENS))
        table = BatchPageTable(manager, 8, 1024)
        _add_outputs(table, "slots")
        table.add(kv_caches[0])
        kv_caches[0].resize(kv_caches[0].capacity + 1)
        for name in ("tight", "cold"):
            watch = Stopwatch()
            for step in range(rounds):
                kv_caches[0].commit([step])
                kv_caches[0].resize(kv_caches[0].capacity + 1)
                if name == "cold":
                    filler += 1.0
                with watch:
                    table.update()
            figures[name] = watch.ns / rounds / 1000
        kv_caches[0].close()
    return figures


_PER_STEP = "ns/step"
WORKLOADS = [
    Workload(
        "decode_steps",
        decode_steps,
        {
            "block": Row("W3 DecodeBatch, two block tables, 256 members", _PER_STEP, 50),
            "csr": Row("W3 DecodeBatch, two CSR tables", _PER_STEP),
            "slots": Row("W3 DecodeBatch, slot mappings and block tables", _PER_STEP),
            "defaults": Row("W3 DecodeBatch, block tables, statistics on", _PER_STEP),
            "three_calls": Row("W3 resize_batch, update, commit_batch", _PER_STEP),
        },
    ),
    Workload(
        "one_row",
        one_row,
        {
            "tight": Row("update of one row, in a tight loop", "us", 10),
            "cold": Row("update of one row, caches cold", "us", 10),
        },
    ),
]
