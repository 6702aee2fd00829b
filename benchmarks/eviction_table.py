"""`make eviction-table`: the measurements of docs/eviction.md anew, from traces at hand; with `--write` into that page.

    python -P benchmarks/eviction_table.py chat=a.jsonl agents=b.jsonl [--blocks 1000] [--pieces 240] [--made 99] [--write]

Rows of the page whose trace is not named stay as they are. A *piece* is 200 to 3,000 requests of the traces, with room for 2 to 40 % of its
blocks: a window, two windows one after the other, or two mixed. The second table says how LEARNED does there beside the best of LRU, ARC
and S3-FIFO, and what it would do without its account against recency.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Final

from kv_cache_manager_v2 import EvictionPolicy
from kv_cache_manager_v2.replay.block_cache import BlockCache
from kv_cache_manager_v2.replay.block_requests import BlockRequests, read_blocks
from kv_cache_manager_v2.replay.generators import make_workload
from kv_cache_manager_v2.replay.level_cache import LevelCache
from kv_cache_manager_v2.replay.made_hints import make_hints
from kv_cache_manager_v2.replay.offline_caches import count_hits_of_reused, count_optimal_hits, next_uses
from kv_cache_manager_v2.replay.policies.own_policy import ComparedPolicy
from kv_cache_manager_v2.replay.policies.published import ARC, LFU, S3_FIFO
from kv_cache_manager_v2.replay.trace import TraceWorkload
from kv_cache_manager_v2.storage.eviction.learned import LearnedQueue

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "eviction.md"
POLICIES: Final[tuple[ComparedPolicy, ...]] = (EvictionPolicy.LRU, LFU, ARC, S3_FIFO, EvictionPolicy.LEARNED)
SIMPLE: Final[tuple[ComparedPolicy, ...]] = (EvictionPolicy.LRU, ARC, S3_FIFO)
BLOCKS: Final = (1000, 2000, 5000, 10000, 20000)
LEVELS: Final = {"chat": (1000, 4000), "agents": (500, 2000)}
MADE: Final = ("chat", "agents")
MADE_SHARES: Final = (2, 10)
MADE_REQUESTS: Final = 3000
MADE_BLOCK: Final = 64
TRACE_BLOCK: Final = 512
TOLD: Final = 0.8
SHARES: Final = (0.02, 0.05, 0.1, 0.2, 0.4)
LEAST_SLOTS: Final = 30
NO_LIMIT: Final = 1 << 40

Row = tuple[str, ...]
Piece = tuple[BlockRequests, int]
SOURCES: dict[str, BlockRequests] = {}
PIECES: list[Piece] = []


def count_hits(policy: ComparedPolicy, num_slots: int, blocks: BlockRequests, hints: list[int], is_free: bool = False) -> int:
    """``is_free``: LEARNED without its account, as who is allowed any debt before each request owes nothing."""
    cache = BlockCache(policy, num_slots, blocks)
    for request, num_generated, hint in zip(blocks.requests, blocks.num_generated, hints, strict=True):
        if is_free and isinstance(cache.queue, LearnedQueue):
            cache.queue.records.shadow.load_account(NO_LIMIT, NO_LIMIT)
        cache.serve(request, num_generated, hint)
    return int(cache.num_hits)


def percent(hits: float, blocks: BlockRequests) -> str:
    return f"{100 * hits / max(blocks.num_accesses, 1):.1f}"


def measure_row(job: tuple[str, str]) -> Row:
    """``job``: a source, and its size in words: blocks, a share of them, or levels."""
    name, size = job
    blocks = SOURCES[name]
    untold = make_hints(blocks, None, 0)
    told = make_hints(blocks, TOLD, 0)
    if "+" in size:
        sizes = [int(level.replace(",", "")) for level in size.split(" + ")]
        cells: list[str] = []
        for policy, hints in [*((policy, untold) for policy in POLICIES), (EvictionPolicy.LEARNED, told)]:
            levels = LevelCache(policy, sizes, blocks, 0.0)
            for request, num_generated, hint in zip(blocks.requests, blocks.num_generated, hints, strict=True):
                levels.serve(request, num_generated, hint)
            cells.append(percent(sum(levels.num_hits), blocks))
        return (name, size, *cells, "", "")
    num_slots = int(size[:-1]) * blocks.num_blocks // 100 if size.endswith("%") else int(size.replace(",", ""))
    uses = next_uses(blocks)
    hits = [count_hits(policy, num_slots, blocks, untold) for policy in POLICIES]
    hits.append(count_hits(EvictionPolicy.LEARNED, num_slots, blocks, told))
    hits.extend([count_hits_of_reused(blocks, uses, num_slots), count_optimal_hits(blocks, uses, num_slots)])
    return (name, size, *[percent(number, blocks) for number in hits])


def measure_piece(number: int) -> tuple[float, float, float]:
    """Hits in percent: the best of the simple policies, LEARNED, and LEARNED without its account."""
    blocks, num_slots = PIECES[number]
    hints = make_hints(blocks, None, 0)
    best = max(count_hits(policy, num_slots, blocks, hints) for policy in SIMPLE)
    found = [best, *[count_hits(EvictionPolicy.LEARNED, num_slots, blocks, hints, is_free) for is_free in (False, True)]]
    first, second, third = [100 * hits / max(blocks.num_accesses, 1) for hits in found]
    return first, second, third


def join_parts(parts: Sequence[tuple[str, BlockRequests, int]]) -> BlockRequests:
    """Requests of several sources, each with the name by which its content is told from that of others."""
    ids: dict[tuple[str, int], int] = {}
    parents: list[int] = []
    requests: list[list[int]] = []
    for name, blocks, number in parts:
        for block in blocks.requests[number]:
            if (name, block) not in ids:
                ids[name, block] = len(parents)
                parent = blocks.parents[block]
                parents.append(ids[name, parent] if parent >= 0 else -1)
        requests.append([ids[name, block] for block in blocks.requests[number]])
    return BlockRequests("piece", requests, parents, [blocks.num_generated[number] for _, blocks, number in parts])


def make_pieces(traces: dict[str, BlockRequests], count: int) -> Iterator[Piece]:
    random = Random(1)

    def window(length: int, copy: str) -> list[tuple[str, BlockRequests, int]]:
        name = random.choice(sorted(traces))
        length = min(length, len(traces[name].requests))
        first = random.randrange(len(traces[name].requests) - length + 1)
        return [(copy + name, traces[name], number) for number in range(first, first + length)]

    for _ in range(count):
        kind = random.choice(("window", "join", "mix"))
        length = int(200 * 15 ** random.random())
        parts = window(length if kind == "window" else length // 2, "")
        if kind != "window":
            others = window(length // 2, "other ")
            queues = [parts[::-1], others[::-1]]
            parts = parts + others
            if kind == "mix":
                parts = []
                while queues[0] or queues[1]:
                    parts.append(queues[random.randrange(len(queues[0]) + len(queues[1])) >= len(queues[0])].pop())
        blocks = join_parts(parts)
        yield blocks, max(int(blocks.num_blocks * random.choice(SHARES)), LEAST_SLOTS)


def describe_pieces(found: Sequence[tuple[float, float, float]]) -> list[Row]:
    rows: list[Row] = []
    for title, column in (("as it is", 1), ("without the account", 2)):
        above = [hits[column] - hits[0] for hits in found]
        mean = sum(hits[column] for hits in found) / len(found)
        under = [str(sum(points < -limit for points in above)) for limit in (1, 2)]
        rows.append((title, f"{len(found)}", f"{mean:.2f}", f"{sum(above) / len(above):+.2f}", *under, f"{min(above):.1f}"))
    return rows


def write_rows(page: str, rows: Sequence[Row], num_keys: int) -> str:
    """The page with these rows in place of those with the same first cells. A row that it does not have is an error."""
    lines = page.splitlines()
    places = {tuple(cell.strip() for cell in line.split("|")[1 : 1 + num_keys]): at for at, line in enumerate(lines) if line[:1] == "|"}
    for row in rows:
        lines[places[row[:num_keys]]] = f"| {' | '.join(row)} |".replace("|  |", "| |").replace("|  |", "| |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Measure the tables of docs/eviction.md anew.")
    parser.add_argument("traces", nargs="+", metavar="NAME=TRACE", help="as the page names them, in the Mooncake format")
    parser.add_argument("--blocks", default=",".join(map(str, BLOCKS)), help="sizes of one level (default: %(default)s)")
    parser.add_argument("--pieces", type=int, default=240, help="how many (default: %(default)s)")
    parser.add_argument("--made", type=int, default=MADE_REQUESTS, help="requests of each made workload; 0: none (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="into docs/eviction.md")
    options = parser.parse_args(arguments)
    for name, equals, path in [trace.partition("=") for trace in options.traces]:
        if not equals:
            parser.error(f"{name}: give NAME=TRACE, as in chat=conversation.jsonl")
        SOURCES[name] = read_blocks(TraceWorkload(path), TRACE_BLOCK)
    PIECES.extend(make_pieces(dict(SOURCES), options.pieces))
    jobs = [(name, f"{int(size):,}") for name in SOURCES for size in options.blocks.split(",")]
    jobs += [(name, " + ".join(f"{size:,}" for size in LEVELS[name])) for name in SOURCES if name in LEVELS]
    for name in MADE if options.made > 0 else ():
        SOURCES[f"made {name}"] = read_blocks(make_workload(name, 0, options.made), MADE_BLOCK)
        jobs += [(f"made {name}", f"{share}%") for share in MADE_SHARES]
    # Forked, as compiled objects cannot be sent to another process.
    with get_context("fork").Pool() as pool:
        rows: list[Row] = []
        for row in pool.imap(measure_row, jobs):
            rows.append(row)
            print(f"| {' | '.join(row)} |", flush=True)
        pieces = describe_pieces(pool.map(measure_piece, range(len(PIECES)), 1)) if PIECES else []
    for row in pieces:
        print(f"| {' | '.join(row)} |")
    if options.write:
        page = write_rows(PAGE.read_text(encoding="utf-8"), rows, 2)
        PAGE.write_text(write_rows(page, pieces, 1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
