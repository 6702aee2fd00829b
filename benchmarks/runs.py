"""Runs of workloads, each in a process of its own, and what they amount to."""

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from workload import Row

INTERPRETED_SCALE: Final = 0.05
"""How much less the interpreted build does."""

_HERE: Final = Path(__file__).resolve().parent
_NS: Final = {"ns": 1.0, "ns/block": 1.0, "ns/step": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True)
class Build:
    """A tree of the library that can be measured: a name, and the PYTHONPATH that imports it."""

    name: str
    python_path: str
    is_compiled: bool = True


@dataclass
class Figures:
    """One workload on one build: a dict of figures per run, with the primitives of the same run."""

    runs: list[dict[str, float]] = field(default_factory=list)
    primitives: list[dict[str, float]] = field(default_factory=list)
    skipped: str | None = None

    def values(self, name: str) -> list[float]:
        return [run[name] for run in self.runs if name in run]

    def median(self, name: str) -> float | None:
        values = self.values(name)
        return statistics.median(values) if values else None

    def in_dict_lookups(self, name: str, row: Row) -> float | None:
        """The median of the figure over the same run's dict look-up; None if it is no time."""
        factor = _NS.get(row.unit)
        ratios = [
            run[name] * factor / primitives["dict_lookup_ns"]
            for run, primitives in zip(self.runs, self.primitives, strict=True)
            if factor is not None and name in run
        ]
        return statistics.median(ratios) if ratios else None

    def as_json(self) -> dict[str, Any]:
        names = sorted({name for run in self.runs for name in run})
        return {
            "skipped": self.skipped,
            "runs": self.runs,
            "primitives": self.primitives,
            "figures": {
                name: {
                    "median": statistics.median(self.values(name)),
                    "min": min(self.values(name)),
                    "max": max(self.values(name)),
                }
                for name in names
            },
        }


@dataclass(frozen=True)
class ListedWorkload:
    """A workload as the measured side describes it."""

    name: str
    rows: dict[str, Row]
    interpreted: bool


def list_workloads(build: Build) -> list[ListedWorkload]:
    command = [sys.executable, "-P", str(_HERE / "one_run.py"), "--list"]
    environment = dict(os.environ, PYTHONPATH=build.python_path, PYTHONSAFEPATH="1")
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True).stdout
    return [
        ListedWorkload(one["name"], {key: Row(**row) for key, row in one["rows"].items()}, one["interpreted"])
        for one in json.loads(output)
    ]


def run_once(build: Build, workload: str, figures: Figures, core: int | None, huge: bool) -> None:
    """One more run. `RuntimeError` with the child's last words if it fails."""
    command = [sys.executable, "-P", str(_HERE / "one_run.py"), workload]
    if core is not None:
        command += ["--core", str(core)]
    if huge:
        command.append("--huge")
    if not build.is_compiled:
        command += ["--scale", str(INTERPRETED_SCALE)]
    environment = dict(
        os.environ,
        PYTHONPATH=build.python_path,
        PYTHONSAFEPATH="1",
        PYTHONHASHSEED="0",
        # numpy's threads would spin on the one core.
        OPENBLAS_NUM_THREADS="1",
        OMP_NUM_THREADS="1",
    )
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{workload} on {build.name}:\n{done.stderr[-2000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    if result["compiled"] is not build.is_compiled:
        raise RuntimeError(
            f"{build.name} is {'compiled' if result['compiled'] else 'interpreted'}: {build.python_path}"
        )
    if "skipped" in result:
        figures.skipped = result["skipped"]
        return
    figures.runs.append(result["figures"])
    figures.primitives.append(result["primitives"])
