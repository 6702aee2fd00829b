"""The drills of durable levels, one after the other, and one table: `make drill-disk`.

    kill       a replay is ended by SIGKILL at some request; the next 500 hit at least 80 % of what they would have, every byte checked
    crash      the durable level over a disk that loses, tears and reorders what was not synced, killed at any write
    load       the constructor on an index of a million blocks
    cost       the same requests with and without durability: host time of the calls, bytes written

Exit code 1 if a drill fails. ``--small`` is for a look at the drills themselves.
"""

import argparse
import contextlib
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from made_index import TOKENS_PER_BLOCK, make_index  # noqa: E402

from kv_cache_manager_v2 import HostDevice, KVCacheManager, __version__, is_compiled  # noqa: E402
from kv_cache_manager_v2.replay.cli import main as kvcm  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
KILLS = (("shared-prompt", 1), ("shared-prompt", 60), ("chat", 60), ("chat", 200), ("agents", 100))
TIERS = "gpu=2MiB,host=4MiB,disk=128MiB"
COST_TIERS = "gpu=2MiB,disk=128MiB"

Row = tuple[str, str, str, str]


def run_kvcm(folder: Path, *arguments: str) -> tuple[int, dict[str, object]]:
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    with contextlib.redirect_stdout(io.StringIO()):
        code = kvcm(["replay", "--quiet", "--json", str(result), *arguments])
    figures: dict[str, object] = json.loads(result.read_text()) if result.exists() else {}
    return code, figures


def drill_kills(folder: Path, is_small: bool) -> list[Row]:
    rows: list[Row] = []
    for workload, kill_at in KILLS[1:2] if is_small else KILLS:
        limit = str(kill_at + (30 if is_small else 500))
        begin = time.monotonic()
        code, figures = run_kvcm(
            folder, "--workload", workload, "--durable", "--verify", "--device", "host", "--tiers", TIERS, "--kill-at", str(kill_at),
            "--limit", limit,
        )  # fmt: skip
        share = figures.get("share")
        said = "no figures; what it says is above"
        if isinstance(share, float):
            said = f"{share:.1%} of {figures['hit_tokens_unkilled']:,} hit tokens, {figures['mismatches']} wrong bytes"
        took = f"{time.monotonic() - begin:.0f} s"
        rows.append((f"kill at request {kill_at} of {workload}", said, took, "ok" if code == 0 else "FAILED"))
    return rows


def drill_crashes(is_small: bool) -> list[Row]:
    begin = time.monotonic()
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/property/test_durable_crashes.py"]
    environment = {**os.environ, "DURABLE_CRASH_SEEDS": "6" if is_small else "200"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "no output"
    if done.returncode != 0:
        sys.stdout.write(done.stdout)
    row = ("killed at any write, lossy disk", said, f"{time.monotonic() - begin:.0f} s", "ok" if done.returncode == 0 else "FAILED")
    return [row]


def drill_load(folder: Path, num_blocks: int) -> list[Row]:
    place = folder / "index"
    place.mkdir()
    config = make_index(place, num_blocks)
    begin = time.perf_counter()
    manager = KVCacheManager(config, device=HostDevice())
    seconds = time.perf_counter() - begin
    used = manager.get_storage_statistics(1)[0]
    found = manager.probe_reuse(None, list(range(TOKENS_PER_BLOCK)))
    is_right = used.total - used.free == num_blocks and found == TOKENS_PER_BLOCK
    manager.shutdown(0)
    return [(f"load of {num_blocks:,} blocks", f"{seconds:.2f} s", f"{seconds:.0f} s", "ok" if is_right else "FAILED")]


def drill_cost(folder: Path, num_requests: int) -> list[Row]:
    """Interleaved, and the faster of two runs each: neighbours on the machine only ever add time."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    written: dict[bool, int] = {}
    hits: dict[bool, object] = {}
    begin = time.monotonic()
    for _run in range(2):
        for is_durable in (False, True):
            place = folder / f"cost-{is_durable}-{_run}"
            place.mkdir()
            tiers = f"{COST_TIERS}:{place}"
            arguments = ["--workload", "chat", "--limit", str(num_requests), "--tiers", tiers, "--shrink", "max", "--device", "host"]
            _code, figures = run_kvcm(folder, *arguments, *(["--durable"] if is_durable else []))
            host_seconds, transfers = figures["manager_seconds"], figures["transfers"]
            assert isinstance(host_seconds, float) and isinstance(transfers, list)
            seconds[is_durable].append(host_seconds)
            written[is_durable] = sum(one["bytes"] for one in transfers if one["target_level"] == 1)
            hits[is_durable] = figures["hit_tokens"]
    plain, durable = min(seconds[False]), min(seconds[True])
    said = (
        f"host time {durable / plain - 1:+.1%} ({plain:.2f} s, durable {durable:.2f} s), written {written[False] >> 20} MiB, durable "
        f"{written[True] >> 20} MiB, hit tokens {hits[False]:,}, durable {hits[True]:,}"
    )
    return [(f"cost of durability, {num_requests} requests of chat", said, f"{time.monotonic() - begin:.0f} s", "said")]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The drills of durable levels, in one table.")
    parser.add_argument("--small", action="store_true", help="seconds instead of minutes: a look at the drills themselves")
    parser.add_argument("--only", choices=("kill", "crash", "load", "cost"), help="one kind of drill")
    options = parser.parse_args(argv)
    is_small: bool = options.small
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="kvcm-drills-") as name:
        folder = Path(name)
        if options.only in (None, "kill"):
            rows += drill_kills(folder, is_small)
        if options.only in (None, "crash"):
            rows += drill_crashes(is_small)
        if options.only in (None, "load"):
            rows += drill_load(folder, 2_000 if is_small else 1_000_000)
        if options.only in (None, "cost"):
            rows += drill_cost(folder, 20 if is_small else 300)
    build = "compiled" if is_compiled() else "interpreted"
    sys.stdout.write(f"\n{time.strftime('%Y-%m-%d', time.gmtime())}, {__version__} {build}, Python {platform.python_version()}\n\n")
    sys.stdout.write("| drill | result | took | |\n| --- | --- | --- | --- |\n")
    for row in rows:
        sys.stdout.write("| " + " | ".join(row) + " |\n")
    return 1 if any(row[3] == "FAILED" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
