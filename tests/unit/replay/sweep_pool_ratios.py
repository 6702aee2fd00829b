"""Fixed ratios against the manager's default split, without `adjust`: the figures behind the default in `layout/sizing.py`.

    make interpreted compiled
    PYTHONPATH=build/compiled:tests .venv/bin/python -P -m unit.replay.sweep_pool_ratios [--memory 1,2] [--workload mix]
"""

import argparse
import sys
from collections.abc import Sequence

from kv_cache_manager_v2.replay.console import Console
from kv_cache_manager_v2.replay.generators import WORKLOAD_NAMES, make_workload
from kv_cache_manager_v2.replay.plan import WORKLOAD_MEMORY_BYTES, ReplayPlan
from kv_cache_manager_v2.replay.presets import PRESETS
from kv_cache_manager_v2.replay.replayer import run_replay
from kv_cache_manager_v2.replay.report import ReplayReport
from kv_cache_manager_v2.replay.workload import Workload

MODELS = ("gemma-3-12b", "qwen3-next", "nemotron-h-8b")
"""The presets with two pool groups; the others have one."""
RATIOS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


def serve(model: str, workload: Workload, memory_bytes: int, ratio: tuple[float, ...] | None) -> ReplayReport:
    plan = ReplayPlan(
        workload=workload, model=PRESETS[model], memory_bytes=memory_bytes, pool_ratio=ratio, adjusts=False
    )  # fmt: skip
    return run_replay(plan, Console())


def find_best_ratio(
    model: str, workload: Workload, memory_bytes: int, ratios: Sequence[float] = RATIOS, num_refused: int = 0
) -> tuple[float, tuple[float, float]]:
    """The highest hit rate of any ratio that refuses at most ``num_refused`` requests, which do not count, and that ratio."""
    found: list[tuple[float, tuple[float, float]]] = [(0.0, (0.0, 0.0))]
    for ratio in ratios:
        report = serve(model, workload, memory_bytes, (ratio, 1.0 - ratio))
        if report.requests_refused <= num_refused:
            found.append((report.hit_rate, (ratio, 1.0 - ratio)))
    return max(found)


def main(arguments: Sequence[str]) -> int:
    """How many defaults are beaten by more than a tenth."""
    parser = argparse.ArgumentParser(description="Sweep fixed pool ratios against the default split.")
    parser.add_argument("--memory", default="1", help="multiples of the default memory of a made workload")
    parser.add_argument("--workload", default=",".join(WORKLOAD_NAMES))
    options = parser.parse_args(arguments)
    num_beaten = 0
    for model in MODELS:
        for name in options.workload.split(","):
            for factor in options.memory.split(","):
                workload = make_workload(name, 0, 200)
                memory_bytes = int(WORKLOAD_MEMORY_BYTES * float(factor))
                report = serve(model, workload, memory_bytes, None)
                default = report.hit_rate
                best, ratio = find_best_ratio(model, workload, memory_bytes, num_refused=report.requests_refused)
                is_beaten = default < 0.9 * best
                num_beaten += is_beaten
                mark = "BEATEN" if is_beaten else ""
                sys.stdout.write(
                    f"{model:14} {name:14} {factor:>4}x default {default:6.2%} best {best:6.2%} with {ratio[0]:.2f} {mark}\n"
                )
                sys.stdout.flush()
    return min(num_beaten, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
