"""The command that runs seeds and, when one fails, prints how to repeat it.

    python -m kv_cache_manager_v2.testing.simulation --seeds 0:200
    python -m kv_cache_manager_v2.testing.simulation --seeds 17:18 --shrink
    python -m kv_cache_manager_v2.testing.simulation --seeds 17:18 --only 3,8,12 --trace
    python -m kv_cache_manager_v2.testing.simulation --seeds 0:5000 --worlds large

The exit status is 1 if any seed failed. ``--digest`` ends with one number over all decisions: runs with the same decisions
print the same number, interpreted or compiled.
"""

import argparse
import hashlib
import logging
import sys
import time
import traceback
from collections.abc import Sequence

from .history import History, run_history
from .large_worlds import is_large
from .scenario import Scenario
from .shrinking import shrink

_PROGRAM = "python -m kv_cache_manager_v2.testing.simulation"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=_PROGRAM, description="Random histories of a manager on a simulated device.")
    parser.add_argument("--seeds", default="0:100", help="FIRST:END, or one seed (default 0:100)")
    parser.add_argument("--actions", type=int, default=200, help="actions a history has (default 200)")
    parser.add_argument("--only", help="perform only the actions at these positions: 3,8,12")
    parser.add_argument("--shrink", action="store_true", help="leave out what a failing history does not need")
    parser.add_argument("--trace", action="store_true", help="print each action before it is performed")
    parser.add_argument("--digest", action="store_true", help="print a digest of all decisions")
    parser.add_argument("--worlds", choices=("all", "small", "large"), default="all", help="leave the other seeds out (default all)")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first seed that fails")
    options = parser.parse_args(list(arguments))
    first, end = _parse_seeds(options.seeds)
    logger = logging.getLogger("kv_cache_manager_v2")
    level = logger.level
    if not options.trace:
        logger.setLevel(logging.CRITICAL + 1)  # planned faults make the library warn all the time
    try:
        return _run(options, first, end)
    finally:
        logger.setLevel(level)


def _run(options: argparse.Namespace, first: int, end: int) -> int:
    positions = None if options.only is None else [int(part) for part in options.only.split(",")]
    started = time.monotonic()
    digest = hashlib.sha256()
    num_failed = 0
    num_performed = 0
    num_refused = 0
    num_run = 0
    for seed in range(first, end):
        if options.worlds != "all" and is_large(seed) != (options.worlds == "large"):
            continue
        if num_failed > 0 and not options.keep_going:
            break
        num_run += 1
        scenario = Scenario(seed, options.actions)
        history = run_history(scenario, positions, options.trace)
        num_performed += history.num_performed
        num_refused += history.num_refused
        digest.update(history.digest.encode())
        if history.error is not None:
            num_failed += 1
            _report(scenario, history, options.actions, options.shrink)
    seconds = time.monotonic() - started
    _say(
        f"{num_run} seeds, {num_failed} failed, {num_performed} actions, {num_refused} refusals, {seconds:.1f} s"
        + (f", digest {digest.hexdigest()[:16]}" if options.digest else "")
    )
    return 1 if num_failed > 0 else 0


def _parse_seeds(text: str) -> tuple[int, int]:
    if ":" not in text:
        return int(text), int(text) + 1
    first, end = text.split(":", 1)
    return int(first), int(end)


def _report(scenario: Scenario, history: History, num_actions: int, with_shrinking: bool) -> None:
    error = history.error
    if error is None:
        return
    place = "at the end" if history.position is None else f"at action {history.position}, {history.action}"
    _say(f"seed {scenario.seed} failed {place}: {type(error).__name__}")
    _say("".join(traceback.format_exception(error)).rstrip())
    command = f"{_PROGRAM} --seeds {scenario.seed} --actions {num_actions}"
    _say(f"repeat it: {command}")
    if with_shrinking:
        positions = shrink(scenario, error)
        _say(f"shorter, {len(positions)} actions: {command} --only {','.join([str(one) for one in positions])} --trace")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
