"""This tree against a git reference: builds both, runs them in turn, and prints the ratio of each pair of runs.

    python -P benchmarks/compare.py --base main --compiled build/compiled [--runs 7] [--only decode ...]

The reference is checked out as a git worktree under build/bench, one folder per commit, and stays there for the
next time. Both builds run this tree's workloads; one that the reference cannot run is left out. Pair by pair, because
a machine's speed drifts: what both runs of a pair share cancels.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

from runs import Build, Figures, ListedWorkload, list_workloads, run_once  # noqa: E402
from table import print_table, shown  # noqa: E402

_ROOT: Final = Path(__file__).resolve().parents[1]


def build_reference(reference: str) -> Build:
    """The reference's compiled tree, built if it is not there yet."""
    commit = _git("rev-parse", "--verify", f"{reference}^{{commit}}")
    tree = _ROOT / "build" / "bench" / commit[:12]
    target = tree / "build" / "compiled"
    if not (target / "kv_cache_manager_v2" / "__init__.py").exists():
        if not tree.exists():
            _git("worktree", "prune")
            _git("worktree", "add", "--detach", str(tree), commit)
        print(f"building {reference} in {tree} (minutes)", file=sys.stderr)
        command = [sys.executable, "setup_mypyc.py", "--quiet", "build", "--build-lib", str(target)]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{reference} does not build:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Build(reference, str(target))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def measure_pairs(
    base: Build, present: Build, workloads: list[ListedWorkload], num_runs: int, core: int | None
) -> dict[str, tuple[Figures, Figures]]:
    results = {workload.name: (Figures(), Figures()) for workload in workloads}
    for run in range(num_runs):
        for workload in workloads:
            of_base, of_present = results[workload.name]
            if of_base.skipped is not None or of_present.skipped is not None:
                continue
            text = f"pair {run + 1} of {num_runs}: {workload.name}"
            print(f"\r{text:78}", end="", file=sys.stderr, flush=True)
            # Who goes first alternates, so that what the first leaves behind favours nobody.
            order = [(base, of_base), (present, of_present)]
            for build, figures in order if run % 2 == 0 else reversed(order):
                try:
                    run_once(build, workload.name, figures, core, huge=False)
                except RuntimeError as error:
                    if build is not base:
                        raise
                    figures.skipped = f"{base.name} cannot run it: {str(error).strip().splitlines()[-1]}"
                    break
    print("\r" + " " * 78 + "\r", end="", file=sys.stderr)
    return results


def print_pairs(workloads: list[ListedWorkload], results: dict[str, tuple[Figures, Figures]], base: Build) -> None:
    rows: list[list[str]] = []
    for workload in workloads:
        of_base, of_present = results[workload.name]
        skipped = of_base.skipped or of_present.skipped
        if skipped is not None:
            rows.append([f"{workload.name}: left out, {skipped}", "", "", "", "", ""])
            continue
        for key, row in workload.rows.items():
            pairs = list(zip(of_base.values(key), of_present.values(key), strict=True))
            ratios = [new / old for old, new in pairs if old > 0]
            if not ratios:
                continue
            each = " ".join(f"{ratio:.2f}" for ratio in ratios)
            cells = [row.title, row.unit, shown(of_base.median(key)), shown(of_present.median(key))]
            rows.append([*cells, f"{statistics.median(ratios):.2f}", each])
    print_table(
        f"this tree against {base.name}; under 1 is better for times and bytes",
        ["figure", "unit", base.name, "this tree", "median ratio", "pair by pair"],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="a git reference")
    parser.add_argument("--compiled", required=True, help="PYTHONPATH of this tree's compiled build")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--only", nargs="*", metavar="WORKLOAD")
    parser.add_argument("--core", type=int, help="default: the last one")
    options = parser.parse_args()
    present = Build("this tree", options.compiled)
    base = build_reference(options.base)
    workloads = [one for one in list_workloads(present) if not options.only or one.name in options.only]
    results = measure_pairs(base, present, workloads, options.runs, options.core)
    print_pairs(workloads, results, base)


if __name__ == "__main__":
    main()
