"""Plants each bug of `canaries.py` in a copy of the package and runs the simulation until it finds it.

    python -P tests/simulation/run_canaries.py [--only TEXT] [--seconds 60]

Prints a line per canary; the exit status is 1 if one was not found. Interpreted, one core; the seconds are those of the processor,
so that a busy machine finds as much as an idle one.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

if __package__:
    from .canaries import CANARIES, Canary
    from .planting import NoSuchPlace, plant
else:
    sys.path.insert(0, str(Path(__file__).parent))
    from canaries import CANARIES, Canary
    from planting import NoSuchPlace, plant

PACKAGE = Path(__file__).resolve().parents[2] / "kv_cache_manager_v2"
SEEDS_AT_ONCE = 100


def planted(canary: Canary, source: str) -> str:
    return plant(source, canary.function, canary.old, canary.new, canary.nth, canary.count)


def spent_seconds() -> float:
    """Processor time of the runs so far."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def run_limited(command: list[str], environment: dict[str, str], seconds: int) -> subprocess.CompletedProcess[str]:
    """Killed by SIGXCPU when it has spent that many seconds of the processor."""
    limited = ["bash", "-c", f'ulimit -t {seconds}; exec "$@"', "bash", *command]
    return subprocess.run(limited, env=environment, capture_output=True, text=True)


def find(canary: Canary, seconds: float) -> str | None:
    """The line that names the failing seed, or None if the bug lives on after that many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        file = copy / canary.file
        try:
            file.write_text(planted(canary, file.read_text()))
        except NoSuchPlace as error:
            raise SystemExit(f"canary {canary.name!r} in {canary.file}: {error}") from error
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
        begin = spent_seconds()
        first = canary.first_seed
        while (remaining := seconds - (spent_seconds() - begin)) > 0:
            command = [sys.executable, "-P", "-m", "kv_cache_manager_v2.testing.simulation"]
            command += ["--seeds", f"{first}:{first + SEEDS_AT_ONCE}", "--worlds", canary.worlds]
            run = run_limited(command, environment, int(remaining) + 1)
            if run.returncode < 0:
                return None
            if run.returncode != 0:
                lines = [line for line in run.stdout.splitlines() if line.startswith("seed ")]
                return lines[0] if lines else (run.stderr.splitlines() or ["it ended without a word"])[-1]
            first += SEEDS_AT_ONCE
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Show that the simulation finds planted bugs.")
    parser.add_argument("--only", default="", help="canaries whose name has this text")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each (default 60)")
    options = parser.parse_args()
    alive = 0
    for canary in CANARIES:
        if options.only not in canary.name:
            continue
        begin = spent_seconds()
        found = find(canary, options.seconds)
        alive += found is None
        print(f"{spent_seconds() - begin:5.1f} s  {canary.name}: {found or 'NOT FOUND'}", flush=True)
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
