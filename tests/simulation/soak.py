"""Long runs on the host device; the memory of the process must stay flat.

    python -P tests/simulation/soak.py [--calls 1000000] [--streams 1000000] [--seed 0]

First random calls of every kind on managers with three levels, which are full, so that sequences are preempted: one with windows
and scratch slots, one with recurrent layers. Then streams that serve one request each, on a device that costs nothing. Prints the
resident memory after each twentieth; the exit status is 1 if it grew by 1 % or more over the last half of any part.
"""

import argparse
import gc
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from every_call import EveryCall, config_of_every_kind
from small_models import config_of

from kv_cache_manager_v2 import HostDevice, KVCacheManager, is_compiled
from kv_cache_manager_v2.device.external_device import ExternalDevice

NUM_PARTS: Final = 20
ALLOWED_GROWTH: Final = 0.01


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class FlatMemory:
    """What the process has after each part."""

    def __init__(self, title: str) -> None:
        self.sizes: list[int] = []
        print(title, flush=True)

    def record(self, what: str) -> None:
        self.sizes.append(resident_bytes())
        print(f"{len(self.sizes):3d}/{NUM_PARTS}  {self.sizes[-1] / 2**20:8.2f} MiB  {what}", flush=True)

    def is_flat(self) -> bool:
        growth = self.sizes[-1] / self.sizes[NUM_PARTS // 2 - 1] - 1
        print(f"growth over the last half: {growth:+.2%} (allowed: under {ALLOWED_GROWTH:.0%})", flush=True)
        return growth < ALLOWED_GROWTH


def soak_calls(has_state: bool, num_calls: int, seed: int) -> bool:
    memory = FlatMemory(f"{num_calls} calls, {'recurrent layers' if has_state else 'windows and scratch slots'}, three levels")
    with tempfile.TemporaryDirectory() as folder:
        with KVCacheManager(config_of_every_kind(has_state, folder), device=HostDevice()) as manager:
            quotas = [manager.get_quota(level) for level in range(len(manager.cache_tier_list))]
            for part in range(NUM_PARTS):
                # The second half is the first one's again: what it needs at most is known, and whatever the process grows by is lost.
                calls = EveryCall(manager, seed + part % (NUM_PARTS // 2))
                calls.run(num_calls // NUM_PARTS)
                calls.finish()
                # As at the beginning: levels of the first sizes, nothing kept. What is left must be no more than before.
                for level in [*range(len(quotas))] * 2:
                    manager.resize(level, quotas[level])
                manager.clear_reusable_blocks()
                manager.check_invariants()
                memory.record(f"{calls.num_preempted} preempted, {calls.num_refused} refused by an error")
            manager.clear_reusable_blocks()
            manager.check_invariants()
            for level in range(len(manager.cache_tier_list)):
                for counts in manager.get_storage_statistics(level):
                    if counts.free != counts.total:
                        print(f"{counts.total - counts.free} slots of level {level} are not free at the end")
                        return False
    return memory.is_flat()


def soak_streams(num_streams: int) -> bool:
    memory = FlatMemory(f"{num_streams} streams that serve one request each")
    with KVCacheManager(config_of(), device=ExternalDevice()) as manager:
        for part in range(NUM_PARTS):
            for number in range(num_streams // NUM_PARTS):
                stream = manager.device.create_stream()
                with manager.create_kv_cache() as kv_cache:
                    if not kv_cache.resume(stream) or not kv_cache.resize(5):
                        return False
                    kv_cache.commit([part, number, 3, 4, 5])
                manager.device.destroy_stream(stream)
            memory.record("")
    return memory.is_flat()


def main() -> int:
    parser = argparse.ArgumentParser(description="Random calls for long; memory must stay flat.")
    parser.add_argument("--calls", type=int, default=1_000_000, help="half on each model")
    parser.add_argument("--streams", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"seed {options.seed}, {'compiled' if is_compiled() else 'interpreted'}", flush=True)
    flat = [soak_calls(has_state, options.calls // 2, options.seed) for has_state in (False, True)]
    flat.append(soak_streams(options.streams))
    return 0 if all(flat) else 1


if __name__ == "__main__":
    sys.exit(main())
