"""A first look: a small workload in the interpreted build while the compiled one is being made, then in that one, side by side.

    python -P benchmarks/demo.py --interpreted PATHS --compiled PATH --build COMMAND [OPTION OF kvcm replay ...]

Every byte that a step reads is checked. Both builds must decide alike: all that they report but times and the build's name is compared.
The last run, compiled, serves the whole workload and shows its table. Exit code 1: a wrong byte, or decisions that differ.
"""

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from typing import Any, Final

SMALL: Final = ("--limit", "20")
MODULE: Final = "kv_cache_manager_v2.replay"
_DIFFERS: Final = {"compiled", "wall_seconds", "manager_seconds", "calls", "tokens_per_second"}
_BAR_WIDTH: Final = 30


def run_replay(path: str, options: list[str], is_shown: bool) -> dict[str, Any]:
    """What a replay on the build at that path reports; with ``is_shown`` its table is printed instead, and {} returned."""
    command = [sys.executable, "-P", "-m", MODULE, "--verify", *options, *([] if is_shown else ["--json", "-", "--quiet"])]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stdout=None if is_shown else subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    report: dict[str, Any] = {} if is_shown else json.loads(done.stdout)
    return report


def digest_of(report: dict[str, Any]) -> str:
    """Eight bytes of SHA-256 over what was decided: the report without times and the build's name."""
    decided = {key: value for key, value in report.items() if key not in _DIFFERS}
    return hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()[:16]


def show(name: str, report: dict[str, Any]) -> None:
    verdict = "all right" if report["mismatches"] == 0 else f"{report['mismatches']} WRONG"
    print(
        f"{name:12} {report['requests']} requests, {report['prompt_tokens']:,} prompt tokens, {report['hit_rate']:.1%} of them hits; "
        f"{report['checked_bytes']:,} bytes read back, {verdict}; decisions {digest_of(report)}; "
        f"{report['manager_seconds']:.3f} s in the manager",
        flush=True,
    )


class Build:
    """The compiled build, made by a command meanwhile; ``last_line`` is what that last said of its progress."""

    def __init__(self, command: str) -> None:
        self.last_line = ""
        self._process: Final = subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader: Final = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.last_line = line.strip() or self.last_line

    def wait(self) -> None:
        """Until it is made, with a bar on a terminal and a line every five seconds elsewhere; ends the program where it fails."""
        is_terminal = sys.stdout.isatty()
        shown_at = 0.0
        while self._reader.is_alive():
            self._reader.join(0.5)
            if is_terminal or time.monotonic() - shown_at > 5:
                shown_at = time.monotonic()
                percent = next((int(word) for word, sign in zip(self._words(), self._words()[1:], strict=False) if sign == "%,"), 0)
                bar = "#" * (percent * _BAR_WIDTH // 100)
                text = f"compiling [{bar:{_BAR_WIDTH}}] {self.last_line}"
                print(f"\r{text:100.100}" if is_terminal else text, end="" if is_terminal else "\n", flush=True)
        if is_terminal:
            print()
        if self._process.wait() != 0:
            raise SystemExit(f"compiling failed: {self.last_line}")

    def _words(self) -> list[str]:
        return self.last_line.split()

    def stop(self) -> None:
        self._process.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--interpreted", required=True, help="PYTHONPATH of the interpreted build")
    parser.add_argument("--compiled", required=True, help="PYTHONPATH of the compiled build")
    parser.add_argument("--build", required=True, help="the command that makes the compiled build")
    arguments, options = parser.parse_known_args()
    build = Build(arguments.build)
    try:
        print("The interpreted build serves 20 requests; a fake engine checks each byte that it reads. The compiled build is being made.")
        interpreted = run_replay(arguments.interpreted, [*SMALL], is_shown=False)
        show("interpreted", interpreted)
        build.wait()
    except BaseException:
        build.stop()
        raise
    compiled = run_replay(arguments.compiled, [*SMALL], is_shown=False)
    show("compiled", compiled)
    if digest_of(compiled) != digest_of(interpreted):
        print("The builds decided differently: that is a defect; please report it.")
        return 1
    times = interpreted["manager_seconds"] / compiled["manager_seconds"]
    print(f"Same decisions, {times:.1f} times as fast in the manager. Now the whole workload, compiled:", flush=True)
    run_replay(arguments.compiled, options, is_shown=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
