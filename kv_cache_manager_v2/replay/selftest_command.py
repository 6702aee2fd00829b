"""The command ``selftest``: whether what was installed works here. Some seconds: a short workload with every byte checked."""

import argparse
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from time import monotonic
from typing import Final

from .. import __version__, default_device, is_compiled
from .console import Console
from .exit_codes import EXIT_OK, EXIT_WRONG
from .generators import make_workload
from .plan import ReplayPlan
from .presets import PRESETS
from .replayer import run_replay

SELFTEST_HELP: Final = "check this installation: build, device, a short replay with every byte checked; some seconds"
_PACKAGES: Final = ("numpy", "cuda-bindings", "tokenizers", "zstandard", "xxhash")


def add_selftest_options(parser: argparse.ArgumentParser) -> None:
    """It has none: what it says is to be compared."""


def run_selftest_command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    begin = monotonic()
    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    sys.stdout.write(f"version   {__version__}, {'compiled' if is_compiled() else 'interpreted'}, {python}\n")
    sys.stdout.write(f"packages  {', '.join([_describe_package(name) for name in _PACKAGES])}\n")
    device = default_device()
    sys.stdout.write(f"device    {device.name}\n")
    device.close()
    model = PRESETS["gpt-oss-20b"]
    plan = ReplayPlan(make_workload("mix", 0, 8), model, memory_bytes=2 << 20, shrink=model.max_shrink, verify=True, check_invariants=True)
    report = run_replay(plan, Console())
    sys.stdout.write(f"replay    {report.requests} requests, {report.prompt_tokens:,} prompt tokens, {report.verdict}\n")
    is_right = report.requests == 8 and report.mismatches == 0 and report.failure is None and report.checked_bytes > 0
    verdict = "all is well" if is_right else f"THIS INSTALLATION IS BROKEN: {report.failure or report.verdict}"
    sys.stdout.write(f"verdict   {verdict} ({monotonic() - begin:.1f} s)\n")
    return EXIT_OK if is_right else EXIT_WRONG


def _describe_package(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"
