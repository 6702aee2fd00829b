"""Measures every workload, several times, on one or more builds; prints a table and writes JSON.

    python -P benchmarks/bench.py --compiled build/compiled --interpreted build/interpreted:. [--only decode]

Each run is a process of its own, pinned to one core. `make bench` builds what is needed and calls this.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

from runs import Build, Figures, ListedWorkload, list_workloads, run_once  # noqa: E402
from table import print_table, shown  # noqa: E402


def describe_machine() -> dict[str, Any]:
    model = ""
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "processor": model or platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "time": time.strftime("%Y-%m-%d %H:%M"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiled", help="PYTHONPATH of a compiled build")
    parser.add_argument("--interpreted", help="PYTHONPATH of the interpreted sources")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="*", metavar="WORKLOAD")
    parser.add_argument("--core", type=int, help="default: the last one")
    parser.add_argument("--huge", action="store_true", help="also 10^7 cached blocks: minutes, and gigabytes of memory")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true", help="tables as docs/performance.md has them")
    options = parser.parse_args()
    builds: list[Build] = []
    if options.compiled:
        builds.append(Build("compiled", options.compiled))
    if options.interpreted:
        builds.append(Build("interpreted", options.interpreted, is_compiled=False))
    if not builds:
        parser.error("name a build: --compiled or --interpreted")
    workloads = [one for one in list_workloads(builds[0]) if not options.only or one.name in options.only]
    if not workloads:
        parser.error(f"no such workload; there are {', '.join(one.name for one in list_workloads(builds[0]))}")
    results = measure(builds, workloads, options.runs, options.core, options.huge)
    machine = describe_machine()
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "machine": machine,
            "runs": options.runs,
            "builds": {
                build.name: {name: figures[build.name].as_json() for name, figures in results.items()}
                for build in builds
            },
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print_results(workloads, results, builds, machine, options.runs, options.markdown)


def measure(
    builds: list[Build], workloads: list[ListedWorkload], num_runs: int, core: int | None, huge: bool
) -> dict[str, dict[str, Figures]]:
    """Figures by workload and build. All workloads once, then all again: a noisy minute spoils one run of each."""
    results = {workload.name: {build.name: Figures() for build in builds} for workload in workloads}
    for run in range(num_runs):
        for workload in workloads:
            for build in builds:
                figures = results[workload.name][build.name]
                if figures.skipped is None and (build.is_compiled or workload.interpreted):
                    text = f"run {run + 1} of {num_runs}: {workload.name} ({build.name})"
                    print(f"\r{text:78}", end="", file=sys.stderr, flush=True)
                    run_once(build, workload.name, figures, core, huge)
    print("\r" + " " * 78 + "\r", end="", file=sys.stderr)
    return results


def print_results(
    workloads: list[ListedWorkload],
    results: dict[str, dict[str, Figures]],
    builds: list[Build],
    machine: dict[str, Any],
    num_runs: int,
    as_markdown: bool,
) -> None:
    first = builds[0].name
    has_both = len(builds) > 1
    headings = ["figure", "unit", "goal", f"{first} median", "min", "max", "in dict look-ups"]
    if has_both:
        headings += ["interpreted", "times"]
    rows: list[list[str]] = []
    for workload in workloads:
        by_build = results[workload.name]
        figures = by_build[first]
        if figures.skipped is not None:
            rows.append([f"{workload.name}: skipped, {figures.skipped}"] + [""] * (len(headings) - 1))
            continue
        for key, row in workload.rows.items():
            median = figures.median(key)
            if median is None:
                continue
            values = figures.values(key)
            cells = [row.title, row.unit, "" if row.goal is None else shown(row.goal), shown(median)]
            cells += [shown(min(values)), shown(max(values)), shown(figures.in_dict_lookups(key, row))]
            if has_both:
                interpreted = by_build[builds[1].name].median(key)
                is_time = figures.in_dict_lookups(key, row) is not None and median > 0
                cells += [
                    shown(interpreted),
                    shown(interpreted / median) if interpreted is not None and is_time else "",
                ]
            rows.append(cells)
    title = (
        f"{machine['processor']}, {machine['cores']} cores, load {machine['load']:.1f}, Python {machine['python']}; "
        f"{num_runs} runs"
    )
    print_table(title, headings, rows, as_markdown)
    primitives = [one for by_build in results.values() for one in by_build[first].primitives]
    if primitives:
        print_table(
            "primitives in the same runs",
            ["primitive", "min ns", "max ns"],
            [
                [key, shown(min(p[key] for p in primitives)), shown(max(p[key] for p in primitives))]
                for key in primitives[0]
            ],
            as_markdown,
        )


if __name__ == "__main__":
    main()
