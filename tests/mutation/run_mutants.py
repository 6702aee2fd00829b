"""Makes seeded random mutants of the sources, one at a time in a copy, and climbs a ladder of tests until one of them notices.

    python -P tests/mutation/run_mutants.py [--count 200] [--seed 7] [--only storage] [--waits] [--whole-suite] [--results FILE]

The ladder: twelve simulation seeds, 20 s of the processor; then the promises and unit tests that fit the folder, those first that name the
file, 40 s. ``--whole-suite``: then everything. First the sources as they are must pass each stage: a stage that fails without a mutant says
nothing, and one that is over in half of its time is taken to hang when it runs out of it. What 60 s do not notice lives.

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
from dataclasses import dataclass
from pathlib import Path

if __package__:
    from .fitting_tests import fitting_tests
    from .mutants import FOLDERS, PACKAGE, Mutant, all_mutants, all_waits
else:
    sys.path.insert(0, str(Path(__file__).parent))
    from fitting_tests import fitting_tests
    from mutants import FOLDERS, PACKAGE, Mutant, all_mutants, all_waits

ROOT = PACKAGE.parent
SIMULATION_SECONDS = 20
SECONDS = 60
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


@dataclass(frozen=True)
class Rung:
    name: str
    command: list[str]
    seconds: int


def rungs(file: str, whole_suite: bool) -> list[Rung]:
    """The stages for a mutant of that file."""
    python = [sys.executable, "-P", "-m"]
    pytest = [*python, "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    ladder: list[Rung] = []
    folder = file.split("/")[0]
    if folder in FOLDERS or folder == "device":
        simulation = [*python, "kv_cache_manager_v2.testing.simulation", "--seeds", SEEDS]
        ladder.append(Rung("simulation", simulation, SIMULATION_SECONDS))
    left = SECONDS - sum([rung.seconds for rung in ladder])
    ladder.append(Rung(f"tests of {folder}", [*pytest, *fitting_tests(file)], left))
    if whole_suite:
        ladder.append(Rung("whole suite", [*pytest, "tests/unit", "tests/promises", "tests/property"], 50 * SECONDS))
    return ladder


class Copies:
    """A copy of the package in which one mutant at a time is planted; what did not change stays compiled to bytecode."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._num_planted = 0
        self._seconds: dict[str, float] = {}
        """By name of a stage: what it takes without a mutant."""
        shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))

    def find_killer(self, mutant: Mutant, whole_suite: bool) -> str | None:
        """What noticed the mutant, or None."""
        file = self._folder / PACKAGE.name / mutant.file
        ladder = rungs(mutant.file, whole_suite)
        for rung in ladder:
            self._try_unmutated(rung)
        self._num_planted += 1
        file.write_bytes(mutant.apply(file.read_bytes()))
        # Bytecode is taken for that of another source if size and second are equal: each mutant has a second of its own.
        os.utime(file, (self._num_planted, self._num_planted))
        try:
            return self._climb(ladder)
        finally:
            shutil.copy2(PACKAGE / mutant.file, file)

    def _try_unmutated(self, rung: Rung) -> None:
        """Once for each name, before a mutant gets there."""
        if rung.name in self._seconds:
            return
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = self._run(rung, 50 * SECONDS)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if run.returncode != 0:
            raise SystemExit(f"{rung.name} fails without a mutant:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
        self._seconds[rung.name] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"     {rung.name}: passes without a mutant [{self._seconds[rung.name]:.0f} s, of {rung.seconds} s]", flush=True)

    def _run(self, rung: Rung, seconds: int) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self._folder), os.environ.get("PYTHONPATH", "")]),
            "PYTHONPYCACHEPREFIX": str(self._folder / "pycache"),
            # A mutant is interpreted, whatever the build whose tests ask for it.
            "KV_CACHE_MANAGER_V2_EXPECT_BUILD": "interpreted",
        }
        return run_limited(rung.command, environment, seconds)

    def _climb(self, ladder: list[Rung]) -> str | None:
        for rung in ladder:
            run = self._run(rung, rung.seconds)
            if run.returncode < 0 and 2 * self._seconds[rung.name] < rung.seconds:
                return f"{rung.name}: out of time"
            if run.returncode > 0:
                lines = [line for line in run.stdout.splitlines() if line.startswith(("FAILED ", "ERROR ", "seed "))]
                return f"{rung.name}: {(lines or run.stderr.splitlines() or ['it failed'])[-1][:150]}"
        return None


def find_killer(mutant: Mutant, whole_suite: bool) -> str | None:
    """What noticed the mutant, or None; in a copy of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return Copies(Path(folder)).find_killer(mutant, whole_suite)


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
        copies = Copies(Path(folder))
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
