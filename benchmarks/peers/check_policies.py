"""Eviction policies on traces without prefixes, here and in libCacheSim: `make check-policies` runs this in both environments.

    python check_policies.py ours ACCESSES TRACE...     hits in percent; writes the accesses, blocks in order, for the other one
    python check_policies.py libcachesim ACCESSES       the same policies of libCacheSim

Each block is cached by itself, so that what is compared is the policy: with prefixes, a block goes after those behind it.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

SIZES = (1_000, 5_000, 20_000)
POLICIES = {"lru": "LRU", "lfu": "LFU", "arc": "ARC", "s3-fifo": "S3FIFO", "optimum": "Belady"}


def show(name: str, num_slots: int, hits: dict[str, float]) -> None:
    print(f"{name:40} {num_slots:7,}  " + "  ".join(f"{policy} {rate:5.2f}" for policy, rate in hits.items()), flush=True)


def run_ours(accesses_file: Path, traces: list[str]) -> None:
    from kv_cache_manager_v2 import EvictionPolicy
    from kv_cache_manager_v2.replay.block_cache import BlockCache
    from kv_cache_manager_v2.replay.block_requests import BlockRequests, read_blocks
    from kv_cache_manager_v2.replay.offline_caches import count_optimal_hits, next_uses
    from kv_cache_manager_v2.replay.trace import TraceWorkload

    accesses_of: dict[str, list[int]] = {}
    for path in traces:
        trace = TraceWorkload(path)
        blocks = read_blocks(trace, trace.tokens_per_hash_id)
        accesses = [block for request in blocks.requests for block in request]
        name = Path(path).stem
        accesses_of[name] = accesses
        flat = BlockRequests(name, [[block] for block in accesses], [-1] * blocks.num_blocks)
        uses = next_uses(flat)
        for num_slots in SIZES:
            hits: dict[str, float] = {}
            for policy in POLICIES:
                if policy == "optimum":
                    num_hits = count_optimal_hits(flat, uses, num_slots)
                else:
                    cache = BlockCache(EvictionPolicy(policy), num_slots, flat)
                    for request in flat.requests:
                        cache.serve(request)
                    num_hits = int(cache.num_hits)
                hits[policy] = 100 * num_hits / len(accesses)
            show(name, num_slots, hits)
    accesses_file.write_text(json.dumps(accesses_of), encoding="utf-8")


def run_libcachesim(accesses_file: Path) -> None:
    library: Any = importlib.import_module("libcachesim")
    accesses_of: dict[str, list[int]] = json.loads(accesses_file.read_text(encoding="utf-8"))
    for name, accesses in accesses_of.items():
        next_use = [2**62] * len(accesses)
        latest: dict[int, int] = {}
        for position in range(len(accesses) - 1, -1, -1):
            next_use[position] = latest.get(accesses[position], 2**62)
            latest[accesses[position]] = position
        for num_slots in SIZES:
            hits: dict[str, float] = {}
            for policy, class_name in POLICIES.items():
                cache = getattr(library, class_name)(cache_size=num_slots)
                num_hits = 0
                for position, block in enumerate(accesses):
                    request = library.Request()
                    request.obj_id = block
                    request.obj_size = 1
                    request.next_access_vtime = next_use[position]
                    request.clock_time = position
                    num_hits += bool(cache.get(request))
                hits[policy] = 100 * num_hits / len(accesses)
            show(name, num_slots, hits)


if __name__ == "__main__":
    if sys.argv[1] == "ours":
        run_ours(Path(sys.argv[2]), sys.argv[3:])
    else:
        run_libcachesim(Path(sys.argv[2]))
