"""A long run of random calls on the host device; the memory of the process must stay flat.

    python -P tests/simulation/soak.py [--calls 1000000] [--seed 0]

Prints the resident memory after each twentieth of the calls; the exit status is 1 if it grew by 1 % or more over the last half.
"""

import argparse
import gc
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from random_calls import drive
from small_models import config_of

from kv_cache_manager_v2 import HostDevice, KVCacheManager, is_compiled

NUM_PARTS = 20
ALLOWED_GROWTH = 0.01


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    parser = argparse.ArgumentParser(description="Random calls for long; memory must stay flat.")
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{options.calls} calls, seed {options.seed}, {'compiled' if is_compiled() else 'interpreted'}", flush=True)
    sizes: list[int] = []
    with KVCacheManager(config_of([None, 8, 40], num_slots=400), device=HostDevice()) as manager:
        for part in range(NUM_PARTS):
            drive(manager, options.seed + part, options.calls // NUM_PARTS)
            manager.check_invariants()
            gc.collect()
            sizes.append(resident_bytes())
            print(f"{part + 1:3d}/{NUM_PARTS}  {sizes[-1] / 2**20:8.2f} MiB", flush=True)
        manager.clear_reusable_blocks()
        manager.check_invariants()
        free = manager.get_storage_statistics()[0]
        if free.free != free.total:
            print(f"{free.total - free.free} slots are not free at the end")
            return 1
    growth = sizes[-1] / sizes[NUM_PARTS // 2 - 1] - 1
    print(f"growth over the last half: {growth:+.2%} (allowed: under {ALLOWED_GROWTH:.0%})")
    return 0 if growth < ALLOWED_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
