"""The same calls decide alike: interpreted, compiled, run again from the journal, for any hash seed, whenever copies finish.

    python -P tests/simulation/digests.py --compiled build/compiled --interpreted build/interpreted:. [--calls 1000000]

Each run is a process of its own with a hash seed of its own: half of the calls on a model with windows and scratch slots, half on
one with recurrent layers, both with three levels. Those on a simulated device, and on a `CudaDevice` over the strict fake driver,
finish their copies in an order of their own. Histories of several processes with a durable level (`restarts`) are run in both builds.
Prints a digest of all answers and decisions for each; the exit status is 1 unless all are equal.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]
from cuda_over_fake import make_cuda_device, require_clean
from every_call import EveryCall, config_of_every_kind
from restarts import Restarts

from kv_cache_manager_v2 import Device, HostDevice, KVCacheManager, is_compiled
from kv_cache_manager_v2.replay.rerun import rerun
from kv_cache_manager_v2.testing import SimulatedDevice

SEED = 0
CUDA = "cuda-"
"""And the seed of the driver."""
RESTARTS = "restarts"
NUM_LIVES = 5
"""Processes one after the other; a tenth of the calls in all."""
MODELS = (False, True)
"""Whether it has recurrent layers."""


def drive(device: Device, folder: Path, has_state: bool, num_calls: int, journal: Path | None) -> str:
    """The answers' digest and the manager's own, after so many calls."""
    config = config_of_every_kind(has_state, str(folder))
    with KVCacheManager(config, device=device, journal=journal) as manager:
        calls = EveryCall(manager, SEED)
        calls.run(num_calls)
        decisions = manager.state_digest().hex()
        answers = calls.finish()
        manager.check_invariants()
    return f"{answers} {decisions}"


def drive_cuda(seed: int, folder: Path, has_state: bool, num_calls: int) -> str:
    device, driver = make_cuda_device(seed)
    digests = drive(device, folder, has_state, num_calls, None)
    device.close()
    require_clean(driver)
    return digests


def journal_of(folder: Path, has_state: bool) -> Path:
    return folder / f"{'hybrid' if has_state else 'windows'}.journal"


def run_here(what: str, folder: Path, num_calls: int) -> None:
    """In a process of its own: print one line per model."""
    for has_state in MODELS:
        if what == RESTARTS:
            run = Restarts(has_state, SEED, str(folder))
            line = f"{run.run(NUM_LIVES, num_calls // 10 // NUM_LIVES // len(MODELS))} {run.found}"
        elif what == "rerun":
            result = rerun(journal_of(folder, has_state), HostDevice())
            line = f"{result.num_calls} calls compared at {result.num_digests} points"
        else:
            journal = journal_of(folder, has_state) if what == "record" else None
            if what.startswith(CUDA):
                line = drive_cuda(int(what.removeprefix(CUDA)), folder, has_state, num_calls // len(MODELS))
            else:
                device = SimulatedDevice(int(what)) if what.isdigit() else HostDevice()
                line = drive(device, folder, has_state, num_calls // len(MODELS), journal)
        print(line, flush=True)


def run_apart(build: str, what: str, hash_seed: str, folder: Path, num_calls: int) -> tuple[list[str], float]:
    environment = {**os.environ, "PYTHONPATH": build, "PYTHONHASHSEED": hash_seed}
    started = time.monotonic()
    command = [sys.executable, "-P", __file__, "--run", what, "--folder", str(folder), "--calls", str(num_calls)]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout.splitlines(), time.monotonic() - started


def describe_device(what: str) -> str:
    if what.isdigit():
        return f"simulated device {what}"
    if what.startswith(CUDA):
        return f"CUDA over fake {what.removeprefix(CUDA)}"
    if what == RESTARTS:
        return f"{NUM_LIVES} processes"
    return "journal run again" if what == "rerun" else "host device"


def compare(interpreted: str, compiled: str, num_calls: int, device_seeds: Sequence[int], cuda_seeds: Sequence[int]) -> int:
    runs = [("interpreted", interpreted, "record", "0"), ("compiled", compiled, "host", "1")]
    runs += [("compiled", compiled, str(seed), str(4242 + seed)) for seed in device_seeds]
    runs += [("compiled", compiled, f"{CUDA}{seed}", str(777 + seed)) for seed in cuda_seeds]
    # The journal of the interpreted run; each point of comparison is a digest that this run wrote.
    runs += [("compiled", compiled, "rerun", "7")]
    runs += [("interpreted", interpreted, RESTARTS, "11"), ("compiled", compiled, RESTARTS, "12")]
    found: set[str] = set()
    found_after_restarts: set[str] = set()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, build, what, hash_seed in runs:
            lines, seconds = run_apart(build, what, hash_seed, folder, num_calls)
            print(f"{title:11s}  {describe_device(what):18s}  hash seed {hash_seed:4s}  {seconds:7.1f} s  {'; '.join(lines)}", flush=True)
            if what == RESTARTS:
                found_after_restarts.add("; ".join(lines))
            elif what != "rerun":
                found.add("; ".join(lines))
    if len(found) > 1 or len(found_after_restarts) > 1:
        print("the same calls were decided differently")
        return 1
    print(f"{num_calls} calls: all decided alike")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Equal calls make equal decisions.")
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--device-seeds", default="1,2", help="simulated devices, one run each (default 1,2)")
    parser.add_argument("--cuda-seeds", default="1", help="CudaDevice over the fake driver, one run each (default 1)")
    parser.add_argument("--interpreted", help="PYTHONPATH of the interpreted build")
    parser.add_argument("--compiled", help="PYTHONPATH of the compiled build")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run is not None:
        print(f"compiled: {is_compiled()}", file=sys.stderr)
        run_here(options.run, Path(options.folder), options.calls)
        return 0
    if options.interpreted is None or options.compiled is None:
        parser.error("--interpreted and --compiled are needed; `make digests` gives them")
    seeds = [[int(seed) for seed in text.split(",") if seed] for text in (options.device_seeds, options.cuda_seeds)]
    return compare(options.interpreted, options.compiled, options.calls, *seeds)


if __name__ == "__main__":
    sys.exit(main())
