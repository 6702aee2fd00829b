"""`make gpu`: everything that only a card can show, in one command, with one table at the end.

    python -P tests/gpu/gpu_report.py [--only NAME] [--no-append]

Runs the contract suite, tests/gpu, the cases of `first_minutes` and the measurements of `gpu_figures`, each in a process of its own
under a time limit, and a verified replay over GPU, host memory and disk. What is skipped is said by name, with the reason. With a card
the table is appended to docs/performance.md, with the card, its driver and the date; figures of a fake driver are never written. Exit
status: 1 if anything failed, else 0, also without a card.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from gpu.first_minutes import CASES  # noqa: E402
from gpu.gpu_figures import MEASUREMENTS, Figure, Figures  # noqa: E402
from gpu.gpu_setting import Card, Setting, Skipped, find_card, is_fake_library  # noqa: E402

from kv_cache_manager_v2 import is_compiled  # noqa: E402
from kv_cache_manager_v2.device.cuda_driver import find_cuda_obstacle  # noqa: E402

PERFORMANCE = ROOT / "docs" / "performance.md"
HEADING = "## On a card"
ALL_CASES = {**CASES, **MEASUREMENTS}
CASE_SECONDS = 180
SUITE_SECONDS = 1800
ONE_QUEUE = {"idle_streams_with_one_queue": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}
PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"


@dataclass
class Outcome:
    name: str
    status: str
    reason: str = ""
    figures: Figures = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Of a suite: its tests that were skipped, with their reasons."""
    seconds: float = 0.0


# -- one case, in a process of its own --------------------------------------------------------------------------------


def run_case(name: str, setting: Setting) -> dict[str, Any]:
    try:
        figures = ALL_CASES[name](setting)
    except Skipped as skipped:
        return {"status": SKIPPED, "reason": str(skipped), "figures": []}
    return {"status": PASSED, "reason": "", "figures": [figure.to_json() for figure in figures]}


def start_case(name: str, folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--case", name, "--folder", str(folder)]
    environment = {**os.environ, **ONE_QUEUE.get(name, {})}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def outcome_of_case(name: str, folder: Path, limit_seconds: float = CASE_SECONDS) -> Outcome:
    child = start_case(name, folder)
    try:
        output, _ = child.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        output, _ = child.communicate()
        return Outcome(name, FAILED, f"not through after {limit_seconds:.0f} s: {last_line(output)}")
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            found = json.loads(line)
            figures = [Figure(**figure) for figure in found["figures"]]
            return Outcome(name, found["status"], found["reason"], figures)
    return Outcome(name, FAILED, f"ended with status {child.returncode}: {last_line(output)}")


def last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


# -- suites -----------------------------------------------------------------------------------------------------------


def outcome_of_suite(name: str, arguments: list[str]) -> Outcome:
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *arguments]
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SUITE_SECONDS)
    except subprocess.TimeoutExpired:
        return Outcome(name, FAILED, f"not through after {SUITE_SECONDS} s")
    skipped = re.findall(r"^SKIPPED \[\d+\] (.*)$", run.stdout, re.MULTILINE)
    closing = last_line(run.stdout)
    return Outcome(name, PASSED if run.returncode == 0 else FAILED, closing, skipped=skipped)


def outcome_of_replay(device: str = "cuda") -> Outcome:
    name = "verified replay over gpu, host and disk"
    command = [sys.executable, "-P", "-m", "kv_cache_manager_v2.replay", "--verify", "--device", device, "--quiet"]
    command += ["--workload", "shared-prompt", "--limit", "80", "--tiers", "gpu=5MiB,host=256KiB,disk=256MiB", "--json", "-"]
    began = time.monotonic()
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=SUITE_SECONDS)
    except subprocess.TimeoutExpired:
        return Outcome(name, FAILED, f"not through after {SUITE_SECONDS} s")
    seconds = time.monotonic() - began
    if run.returncode != 0:
        return Outcome(name, FAILED, last_line(run.stdout + run.stderr))
    unused = find_unused_tiers(json.loads(run.stdout))
    if unused:
        return Outcome(name, FAILED, f"no page went to and came from: {', '.join(unused)}")
    return Outcome(name, PASSED, figures=[Figure("verified replay of 80 requests over gpu, host and disk", seconds, "s")])


def find_unused_tiers(report: dict[str, Any]) -> list[str]:
    """A replay that verifies bytes says something of a tier only if pages went there and came back."""
    return [tier["tier"] for tier in report["tiers"] if tier["pages_in"] == 0 or tier["pages_out"] == 0]


# -- the table --------------------------------------------------------------------------------------------------------


def table_of(outcomes: list[Outcome]) -> list[str]:
    lines = ["| what | figure | goal | |", "| --- | ---: | ---: | --- |"]
    for outcome in outcomes:
        for figure in outcome.figures:
            lines.append(f"| {' | '.join(figure.cells)} |")
    for outcome in outcomes:
        if not outcome.figures or outcome.status != PASSED:
            reason = f": {outcome.reason}" if outcome.reason else ""
            lines.append(f"| {outcome.name} | | | {(outcome.status + reason).replace('|', '/')} |")
    return lines


def append_figures(path: Path, card: Card, outcomes: list[Outcome]) -> None:
    """Behind the last line of the document; each run has a table of its own."""
    if type(card) is not Card:
        raise TypeError("figures are written with the card that they were measured on, and there is none")
    text = path.read_text(encoding="utf-8").rstrip("\n")
    if HEADING not in text:
        text += f"\n\n{HEADING}\n\nWhat `make gpu` measured, one table for each run."
    build = "compiled" if is_compiled() else "interpreted"
    text += f"\n\n{card.name}, {card.driver_version}, {card.date}, {build}:\n\n" + "\n".join(table_of(outcomes)) + "\n"
    path.write_text(text, encoding="utf-8")


# -- all of it --------------------------------------------------------------------------------------------------------


def names_of_all() -> list[str]:
    return ["contract suite", "tests/gpu", *ALL_CASES, "verified replay over gpu, host and disk"]


def run_all(only: str, say: Any) -> list[Outcome]:
    obstacle = find_cuda_obstacle()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="gpu-report-") as folder:
        for name in names_of_all():
            if only and only not in name:
                continue
            began = time.monotonic()
            if obstacle:
                outcome = Outcome(name, SKIPPED, f"no CUDA: {obstacle}")
            elif name == "contract suite":
                outcome = outcome_of_suite(name, ["tests/contract", "-k", "[cuda and not fake"])
            elif name not in ALL_CASES and name != "contract suite" and is_fake_library():
                outcome = Outcome(name, SKIPPED, "the driver in host memory runs no kernels")
            elif name == "tests/gpu":
                # The cases follow one by one, and the other file is about this script.
                ignored = [f"--ignore=tests/gpu/{file}.py" for file in ("test_first_minutes", "test_gpu_report")]
                outcome = outcome_of_suite(name, ["tests/gpu", *ignored])
            elif name in ALL_CASES:
                outcome = outcome_of_case(name, Path(folder))
            else:
                outcome = outcome_of_replay()
            outcome.seconds = time.monotonic() - began
            outcomes.append(outcome)
            say(f"{outcome.status:8s} {outcome.seconds:7.1f} s  {name}{f': {outcome.reason}' if outcome.reason else ''}")
            for test in outcome.skipped:
                say(f"             skipped: {test}")
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description="What only a card can show.")
    parser.add_argument("--only", default="", help="what has this in its name")
    parser.add_argument("--no-append", action="store_true", help="leave docs/performance.md as it is")
    parser.add_argument("--case", choices=sorted(ALL_CASES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(run_case(options.case, Setting(Path(options.folder)))), flush=True)
        return 0
    outcomes = run_all(options.only, lambda line: print(line, flush=True))
    print("\n" + "\n".join(table_of(outcomes)))
    card = find_card()
    if card is None:
        print("\nno card: nothing was written to docs/performance.md")
    elif not options.no_append:
        append_figures(PERFORMANCE, card, outcomes)
        print(f"\nappended to {PERFORMANCE.relative_to(ROOT)}: {card.name}, {card.driver_version}, {card.date}")
    return 1 if any(outcome.status == FAILED for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
