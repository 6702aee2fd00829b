"""Measures one workload once, in this process, and prints the figures as one line of JSON.

    python -P benchmarks/one_run.py NAME [--scale 0.05] [--huge] [--core 1]
    python -P benchmarks/one_run.py --list      all workloads and how to show their figures

Which build is measured is decided by PYTHONPATH alone.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from typing import Any

# The folder of this script holds no package, so what PYTHONPATH says about the library still holds.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))

from catalogue import WORKLOADS, workload_by_name  # noqa: E402
from measure import Stopwatch, measure_primitives, merge_primitives, pin_to_core  # noqa: E402
from workload import Size, Skipped  # noqa: E402


def _without_functions(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in items if not callable(value)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--huge", action="store_true")
    parser.add_argument("--core", type=int)
    options = parser.parse_args()
    if options.list:
        print(json.dumps([asdict(workload, dict_factory=_without_functions) for workload in WORKLOADS]))
        return
    core = pin_to_core(options.core)
    Stopwatch.calibrate()

    from kv_cache_manager_v2 import is_compiled

    result: dict[str, object] = {"workload": options.name, "compiled": is_compiled(), "core": core}
    before = measure_primitives()
    try:
        result["figures"] = workload_by_name(options.name).measure(Size(options.scale, options.huge))
    except Skipped as reason:
        result["skipped"] = str(reason)
    result["primitives"] = merge_primitives(before, measure_primitives())
    print(json.dumps(result))


if __name__ == "__main__":
    main()
