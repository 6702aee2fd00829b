"""Makes seeded random mutants of the sources, one at a time in a copy, and climbs a ladder of tests until one of them notices.

    python -P tests/mutation/run_mutants.py [--count 200] [--seed 7] [--only storage] [--waits] [--whole-suite] [--results FILE]

The ladder: tests that begin the suite of statements in which the mutant lies, those first that name its file, then short ones, 36 s of the
processor; then twelve simulation seeds, 24 s. ``--whole-suite``: then everything. Which tests begin what is found once, in some minutes,
and kept in `build` (`covering_tests.py`). A test that fails with a mutant must pass without it, or it is left out; tests that are over in
half of their time are taken to hang when they run out of it. What 60 s do not notice lives.

``--waits``: instead of a draw each statement of `sequence`, `shared`, `durable` and `integrations` that only waits, left out.

Prints a line per mutant, and a table of those that live. One that no test can notice is listed in `equivalent_mutants.txt` with the
reason. With ``--results`` what was found is kept, and a mutant that is there already is not run again. The exit status is 1 if a
mutant lives that is not listed. Interpreted, one core.
"""

import argparse
import json
import os
import random
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

if __package__:
    from .covering_tests import CoveringTests, read_map
    from .mutants import FOLDERS, PACKAGE, Mutant, all_mutants, all_waits
else:
    sys.path.insert(0, str(Path(__file__).parent))
    from covering_tests import CoveringTests, read_map
    from mutants import FOLDERS, PACKAGE, Mutant, all_mutants, all_waits

ROOT = PACKAGE.parent
TEST_SECONDS = 36
SIMULATION_SECONDS = 24
SEEDS = "0:12"
EQUIVALENT = Path(__file__).parent / "equivalent_mutants.txt"


def read_equivalent() -> dict[str, str]:
    """By key of a mutant, why no test can notice it."""
    reasons: dict[str, str] = {}
    lines = [line for line in EQUIVALENT.read_text().splitlines() if line and not line.startswith("#")]
    for key, reason in zip(lines[::2], lines[1::2], strict=True):
        reasons[key] = reason.strip()
    return reasons


def run_limited(command: list[str], environment: dict[str, str], seconds: int) -> subprocess.CompletedProcess[str]:
    """Killed when it has spent that many seconds of the processor; `TimeoutExpired` after ten times as many of the clock."""
    limited = ["bash", "-c", f'ulimit -t {seconds}; exec "$@"', "bash", *command]
    return subprocess.run(limited, env=environment, capture_output=True, text=True, cwd=ROOT, timeout=10 * seconds)


PYTHON = [sys.executable, "-P", "-m"]
PYTEST = [*PYTHON, "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
SIMULATION = [*PYTHON, "kv_cache_manager_v2.testing.simulation", "--seeds", SEEDS]
WHOLE_SUITE = [*PYTEST, "tests/unit", "tests/promises", "tests/property"]


class Copies:
    """A copy of the package in which one mutant at a time is planted; what did not change stays compiled to bytecode."""

    def __init__(self, folder: Path, covering: CoveringTests) -> None:
        self._folder = folder
        self._covering = covering
        self._num_planted = 0
        self._passing: dict[str, bool] = {}
        """By name of a test, or of the simulation: whether it passes without a mutant."""
        self._seconds: dict[str, float] = {}
        """By the same names: what that took."""
        shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))

    def find_killer(self, mutant: Mutant, whole_suite: bool) -> str | None:
        """What noticed the mutant, or None."""
        killer = self._try_tests(mutant)
        if killer is None and mutant.file.split("/")[0] in (*FOLDERS, "device"):
            killer = self._try(mutant, SIMULATION, SIMULATION_SECONDS, "simulation")
        if killer is None and whole_suite:
            killer = self._try(mutant, WHOLE_SUITE, 3000, "whole suite")
        return killer

    def _try_tests(self, mutant: Mutant) -> str | None:
        while tests := [test for test in self._covering.choose(mutant, TEST_SECONDS) if self._may_fail(test)]:
            run = self._run_mutated(mutant, [*PYTEST, *tests], TEST_SECONDS)
            if run.returncode == 0:
                return None
            if run.returncode < 0:
                hangs = 2 * sum([self._covering.seconds[test] for test in tests]) < TEST_SECONDS
                return f"{len(tests)} tests: out of time" if hangs else None
            failures = [line for line in run.stdout.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
            if not failures:
                return f"pytest ends: {(run.stderr.splitlines() or run.stdout.splitlines() or ['without a word'])[-1][:150]}"
            failed = failures[0].split(" ", 1)[1]
            named = [name for test in tests for name in (test, test.partition("::")[0]) if failed.startswith(name)]
            if not named:
                return failures[0][:150]
            test = max(named, key=len)
            if self._passes(test, [*PYTEST, test]):
                return failures[0][:150]
        return None

    def _may_fail(self, test: str) -> bool:
        return self._passing.get(test, True) and self._passing.get(test.partition("::")[0], True)

    def _try(self, mutant: Mutant, command: list[str], seconds: int, name: str) -> str | None:
        if not self._passes(name, command):
            raise SystemExit(f"{name} fails without a mutant")
        run = self._run_mutated(mutant, command, seconds)
        if run.returncode == 0 or (run.returncode < 0 and 2 * self._seconds[name] >= seconds):
            return None
        lines = [line for line in run.stdout.splitlines() if line.startswith(("FAILED ", "ERROR ", "seed "))]
        return f"{name}: {(lines or run.stderr.splitlines() or ['out of time'])[-1][:150]}"

    def _passes(self, name: str, command: list[str]) -> bool:
        if name not in self._passing:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            self._passing[name] = self._run(command, 3000).returncode == 0
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            self._seconds[name] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            if not self._passing[name]:
                print(f"     fails without a mutant, and is left out: {name}", flush=True)
        return self._passing[name]

    def _run_mutated(self, mutant: Mutant, command: list[str], seconds: int) -> subprocess.CompletedProcess[str]:
        file = self._folder / PACKAGE.name / mutant.file
        self._num_planted += 1
        file.write_bytes(mutant.apply(file.read_bytes()))
        # Bytecode is taken for that of another source if size and second are equal: each mutant has a second of its own.
        os.utime(file, (self._num_planted, self._num_planted))
        try:
            return self._run(command, seconds)
        finally:
            shutil.copy2(PACKAGE / mutant.file, file)

    def _run(self, command: list[str], seconds: int) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPATH": os.pathsep.join([str(self._folder), os.environ.get("PYTHONPATH", "")]),
            "PYTHONPYCACHEPREFIX": str(self._folder / "pycache"),
            # A mutant is interpreted, whatever the build whose tests ask for it.
            "KV_CACHE_MANAGER_V2_EXPECT_BUILD": "interpreted",
        }
        return run_limited(command, environment, seconds)


def find_killer(mutant: Mutant, whole_suite: bool) -> str | None:
    """What noticed the mutant, or None; in a copy of its own, by the simulation alone."""
    with tempfile.TemporaryDirectory() as folder:
        return Copies(Path(folder), CoveringTests()).find_killer(mutant, whole_suite)


def read_results(path: Path | None) -> dict[str, str | None]:
    if path is None or not path.exists():
        return {}
    return {key: killer for key, killer in (json.loads(line) for line in path.read_text().splitlines())}


def main() -> int:
    parser = argparse.ArgumentParser(description="Show which small wrong changes of the sources no test notices.")
    parser.add_argument("--count", type=int, default=200, help="so many mutants (default 200)")
    parser.add_argument("--first", type=int, default=0, help="leave out those before this one")
    parser.add_argument("--seed", type=int, help="which ones are drawn (default: a new seed)")
    parser.add_argument("--waits", action="store_true", help="each statement that only waits, instead of a draw")
    parser.add_argument("--only", default="", help="files whose name begins so, as storage/")
    parser.add_argument("--whole-suite", action="store_true", help="run all tests on those that live")
    parser.add_argument("--results", type=Path, help="where to keep what was found")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    mutants = [mutant for mutant in (all_waits() if options.waits else all_mutants()) if mutant.file.startswith(options.only)]
    chosen = mutants
    if not options.waits:
        chosen = random.Random(seed).sample(mutants, min(options.first + options.count, len(mutants)))[options.first :]
    results = read_results(options.results)
    equivalent = read_equivalent()
    outcomes: Counter[str] = Counter()
    living: list[Mutant] = []
    with tempfile.TemporaryDirectory() as folder:
        copies = Copies(Path(folder), read_map())
        for number, mutant in enumerate(chosen, options.first):
            if mutant.key not in equivalent and mutant.key not in results:
                try:
                    results[mutant.key] = copies.find_killer(mutant, options.whole_suite)
                except subprocess.TimeoutExpired:
                    outcomes["unknown"] += 1
                    print(f"{number:4} unknown    {mutant.kind:18} {mutant.file}:{mutant.line} out of the clock's time", flush=True)
                    continue
                if options.results is not None:
                    with options.results.open("a") as file:
                        file.write(json.dumps([mutant.key, results[mutant.key]]) + "\n")
            killer = results.get(mutant.key)
            outcome = "equivalent" if mutant.key in equivalent else "lives" if killer is None else "killed"
            outcomes[outcome] += 1
            if outcome == "lives":
                living.append(mutant)
            seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            print(f"{number:4} {outcome:10} {mutant.kind:18} {mutant.file}:{mutant.line} {killer or ''} [{seconds:.0f} s]", flush=True)
    drawn = "taken" if options.waits else f"drawn with seed {seed}"
    print(f"\nof {len(mutants)} possible mutants {len(chosen)} were {drawn}: {dict(outcomes)}")
    counted = outcomes["killed"] + outcomes["lives"]
    if counted:
        print(f"killed: {outcomes['killed'] / counted:.1%} of those that are not equivalent")
    for mutant in living:
        print(f"LIVES {mutant.kind}, line {mutant.line}\n  {mutant.key}")
    return 1 if living or outcomes["unknown"] else 0


if __name__ == "__main__":
    sys.exit(main())
