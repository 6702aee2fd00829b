"""A search for workloads where another policy hits more than LEARNED: the figures of docs/notes/eviction.md.

    make compiled
    PYTHONPATH=build/compiled:tests .venv/bin/python -P -m unit.replay.search_policy_cases made phases
    PYTHONPATH=build/compiled:tests .venv/bin/python -P -m unit.replay.search_policy_cases a.jsonl b.jsonl c.jsonl

``made``: the workloads of `test_learned_is_no_worse`; ``phases``: those of `test_learned_over_phases`. Of traces *pieces* are made: halves,
quarters, every other request, shuffles, two mixed or one after the other. A row is all cases of a source; with ``--worst 10`` its worst.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import permutations
from multiprocessing import get_context
from random import Random
from typing import Final, TypeAlias

from unit.replay.test_learned_is_no_worse import WORKLOADS, Prompts, hit_rate
from unit.replay.test_learned_over_phases import make_blocks

from kv_cache_manager_v2 import EvictionPolicy
from kv_cache_manager_v2.replay.block_requests import BlockRequests, read_blocks
from kv_cache_manager_v2.replay.policies.published import ARC, S3_FIFO
from kv_cache_manager_v2.replay.trace import TraceWorkload

SHARES_OF_PIECES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
SHARES_OF_MADE = (0.03, 0.1, 0.25)
SHARES_OF_PHASES = (0.05, 0.2)
OTHERS = (EvictionPolicy.LRU, ARC, S3_FIFO)
_BLOCK_TOKENS = 512

Case: TypeAlias = tuple[str, BlockRequests, float]
CASES: Final[list[Case]] = []


def choose(name: str, blocks: BlockRequests, numbers: Sequence[int]) -> BlockRequests:
    """Only the requests of those numbers, in that order."""
    return join(name, [blocks.requests[number] for number in numbers], blocks.parents)


def join(name: str, requests: Sequence[Sequence[int]], parents: Sequence[int]) -> BlockRequests:
    """Blocks are numbered anew, so that only those that are used count."""
    ids: dict[int, int] = {-1: -1}
    new_parents: list[int] = []
    for request in requests:
        for block in request:
            if block not in ids:
                ids[block] = len(new_parents)
                new_parents.append(ids[parents[block]])
    return BlockRequests(name, [[ids[block] for block in request] for request in requests], new_parents)


def read_trace(path: str) -> BlockRequests:
    return read_blocks(TraceWorkload(path), _BLOCK_TOKENS)


def make_pieces(traces: Sequence[BlockRequests]) -> Iterator[BlockRequests]:
    for blocks in traces:
        count = len(blocks.requests)
        for parts in (2, 4):
            for part in range(parts):
                numbers = range(part * count // parts, (part + 1) * count // parts)
                yield choose(f"{blocks.name} part {part + 1} of {parts}", blocks, numbers)
        for first in (0, 1):
            yield choose(f"{blocks.name} every other from {first}", blocks, range(first, count, 2))
        numbers_shuffled = list(range(count))
        Random(1).shuffle(numbers_shuffled)
        yield choose(f"{blocks.name} shuffled", blocks, numbers_shuffled)
    for one, other in permutations(traces, 2):
        shift = len(one.parents)
        parents = one.parents + [parent + shift if parent >= 0 else -1 for parent in other.parents]
        others = [[block + shift for block in request] for request in other.requests]
        yield join(f"{one.name} then {other.name}", one.requests + others, parents)
        if one.name < other.name:
            random = Random(1)
            queues = [list(reversed(one.requests)), list(reversed(others))]
            mixed: list[list[int]] = []
            while queues[0] or queues[1]:
                at = int(random.randrange(len(queues[0]) + len(queues[1])) >= len(queues[0]))
                mixed.append(queues[at].pop())
            yield join(f"{one.name} mixed with {other.name}", mixed, parents)


def make_cases(sources: Sequence[str], num_seeds: int) -> Iterator[Case]:
    if "made" in sources:
        for workload in WORKLOADS:
            for seed in range(7, 7 + num_seeds):
                prompts = Prompts(seed)
                workload(prompts)
                blocks = BlockRequests(f"{workload.__name__} {seed}", prompts.requests, prompts.parents)
                for share in SHARES_OF_MADE:
                    yield "made", blocks, share
    if "phases" in sources:
        for seed in range(20 * num_seeds):
            for share in SHARES_OF_PHASES:
                yield "phases", make_blocks(seed), share
    paths = [source for source in sources if source not in ("made", "phases")]
    for piece in make_pieces([read_trace(path) for path in paths]):
        for share in SHARES_OF_PIECES:
            yield "pieces", piece, share


def measure(number: int) -> tuple[str, str, float, float]:
    """A case's source and name, and how many points LEARNED is above the best of the others, and above LRU."""
    source, blocks, share = CASES[number]
    num_slots = max(int(blocks.num_blocks * share), 30)
    learned = hit_rate(EvictionPolicy.LEARNED, num_slots, blocks)
    others = [hit_rate(policy, num_slots, blocks) for policy in OTHERS]
    return source, f"{blocks.name}, {100 * share:g} %", learned - max(others), learned - others[0]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Search for workloads where another policy hits more than LEARNED.")
    parser.add_argument("sources", nargs="+", help="made, phases, or traces in the Mooncake format")
    parser.add_argument("--seeds", type=int, default=3, help="of each made workload, and 20 times as many of phases")
    parser.add_argument("--worst", type=int, default=0, help="print so many of each source")
    options = parser.parse_args(arguments)
    found: dict[str, list[tuple[float, float, str]]] = {}
    CASES.extend(make_cases(options.sources, options.seeds))
    # Forked, as compiled cases cannot be sent to another process.
    with get_context("fork").Pool() as pool:
        for source, name, above, above_lru in pool.imap(measure, range(len(CASES))):
            found.setdefault(source, []).append((above, above_lru, name))
    print("source   cases  > 0.3 under  > 1  > 2  worst  mean above | of LRU: > 0.3 under  > 0.5  worst  mean above")
    for source, cases in found.items():
        best = [above for above, _, _ in cases]
        lru = [above for _, above, _ in cases]
        under = [sum(above < -limit for above in best) for limit in (0.3, 1.0, 2.0)]
        under_lru = [sum(above < -limit for above in lru) for limit in (0.3, 0.5)]
        print(
            f"{source:8} {len(cases):5}  {under[0]:11}  {under[1]:3}  {under[2]:3}  {min(best):5.1f}  {sum(best) / len(best):10.2f} |"
            f"         {under_lru[0]:11}  {under_lru[1]:5}  {min(lru):5.1f}  {sum(lru) / len(lru):10.2f}"
        )
        for above, above_lru, name in sorted(cases)[: options.worst]:
            print(f"    {above:6.2f} (LRU {above_lru:6.2f})  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
