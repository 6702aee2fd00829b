"""W7: host memory per cached block, and what the garbage collector makes of a large cache."""

import gc
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from models import BLOCK, FULL_AND_WINDOW, WINDOWS_OF_8, Prompts, fill, make_manager
from workload import Row, Size, Workload


def resident_bytes() -> int:
    """Memory of this process that is really there; pools reserve addresses only."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _bytes_per_block(num_blocks: int, windows: tuple[int | None, ...]) -> float:
    prompts = Prompts()
    with make_manager(num_blocks + 1024, windows) as manager:
        fill(manager, 1024, prompts)
        gc.collect()
        before = resident_bytes()
        count = fill(manager, num_blocks - 1024, prompts)
        gc.collect()
        return (resident_bytes() - before) / count


def memory(size: Size) -> dict[str, float]:
    num_blocks = size.of(400_000, 20_000)
    # A process for each: memory that one manager has freed would serve the next without a trace.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        two_groups = processes.submit(_bytes_per_block, num_blocks, FULL_AND_WINDOW).result()
        four_groups = processes.submit(_bytes_per_block, num_blocks, WINDOWS_OF_8[:4]).result()
    return {"per_block": two_groups, "per_further_group": (four_groups - two_groups) / 2}


def _collect_ms() -> float:
    begin = time.perf_counter_ns()
    gc.collect()
    return (time.perf_counter_ns() - begin) / 1e6


def pauses(size: Size) -> dict[str, float]:
    """`gc.collect()` with many cached blocks, and after the freeze that the manager offers."""
    num_blocks = size.of(1_000_000, 20_000)
    gc.collect()
    empty = _collect_ms()
    with make_manager(num_blocks + 1024) as manager:
        fill(manager, num_blocks, Prompts(4 * BLOCK * 64))
        gc.collect()
        filled = _collect_ms()
        manager.freeze()
        frozen = _collect_ms()
        gc.unfreeze()
    return {"empty": empty, "filled": filled, "frozen": frozen}


WORKLOADS = [
    Workload(
        "memory",
        memory,
        {
            "per_block": Row("W7 host memory, two layer groups", "bytes/block", 320),
            "per_further_group": Row("W7 each further layer group", "bytes/block", 24),
        },
        interpreted=False,
    ),
    Workload(
        "pauses",
        pauses,
        {
            "empty": Row("gc.collect, nothing cached", "ms"),
            "filled": Row("gc.collect, 1,000,000 blocks", "ms"),
            "frozen": Row("gc.collect after the freeze", "ms", 5),
        },
        interpreted=False,
    ),
]
