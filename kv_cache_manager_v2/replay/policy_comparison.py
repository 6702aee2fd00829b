"""Hit rates of eviction policies side by side: the same prompts, the same numbers of blocks, and the possible maximum."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from .. import __version__, is_compiled
from ..base.value import Value
from .block_cache import BlockCache
from .block_requests import BlockRequests
from .level_cache import LevelCache
from .offline_caches import count_hits_of_reused, count_optimal_hits, count_reusable, next_uses
from .policies.own_policy import ComparedPolicy
from .read_progress import ReadProgress

SCHEMA_VERSION: Final = 1
REUSED_ONLY: Final = "lru-of-reused"
OPTIMUM: Final = "optimum"
INFINITE: Final = "infinite"


@dataclass(frozen=True)
class ComparisonRow(Value):
    """One size of the cache. ``hit_rates``: per policy and yardstick, hit blocks over all blocks of all prompts."""

    num_slots: int
    hit_rates: dict[str, float]


@dataclass(frozen=True)
class LevelRow(Value):
    """One policy on several levels. ``hit_rates``: hit blocks of each level over all blocks of all prompts. ``written``: blocks that were
    copied from each level to the next one, over the same."""

    policy: str
    hit_rates: tuple[float, ...]
    written: tuple[float, ...]


@dataclass(frozen=True)
class SourceComparison(Value):
    """One trace or workload; ``num_blocks`` different blocks are its working set. ``level_rows``: where levels were asked for.
    ``hints``: what LEARNED was told, in words; empty without. ``block_tokens``: of a whole block."""

    name: str
    requests: int
    accesses: int
    num_blocks: int
    rows: tuple[ComparisonRow, ...]
    level_rows: tuple[LevelRow, ...] = ()
    hints: str = ""
    block_tokens: int = 0


@dataclass(frozen=True)
class Comparison(Value):
    sources: tuple[SourceComparison, ...]

    def to_json(self) -> str:
        values: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "version": __version__, "compiled": is_compiled()}
        values.update(asdict(self))
        return json.dumps(values, indent=2) + "\n"


def compare_source(
    blocks: BlockRequests, sizes: list[int], policies: list[ComparedPolicy], hints: list[int], hints_name: str,
    prior: list[float] | None, progress: ReadProgress,
) -> SourceComparison:  # fmt: skip
    """``hints``: of each request, for LEARNED (`made_hints`). ``prior``: what it knows at first."""
    uses = next_uses(blocks)
    total = max(blocks.num_accesses, 1)
    rows: list[ComparisonRow] = []
    for num_slots in sizes:
        rates: dict[str, float] = {}
        for policy in policies:
            progress.begin(f"{blocks.name}, {num_slots:,} blocks, {policy.value}")
            cache = BlockCache(policy, num_slots, blocks, prior)
            for request, num_generated, hint in zip(blocks.requests, blocks.num_generated, hints, strict=True):
                cache.serve(request, num_generated, hint)
            rates[policy.value] = int(cache.num_hits) / total
        progress.begin(f"{blocks.name}, {num_slots:,} blocks, {OPTIMUM}")
        rates[REUSED_ONLY] = count_hits_of_reused(blocks, uses, num_slots) / total
        rates[OPTIMUM] = count_optimal_hits(blocks, uses, num_slots) / total
        rates[INFINITE] = count_reusable(blocks) / total
        rows.append(ComparisonRow(num_slots, rates))
    return _source(blocks, tuple(rows), (), hints_name)


def compare_levels(
    blocks: BlockRequests, sizes: list[int], policies: list[ComparedPolicy], least_chance: float, hints: list[int], hints_name: str,
    prior: list[float] | None, progress: ReadProgress,
) -> SourceComparison:  # fmt: skip
    """``sizes``: slots of each level. ``least_chance``: the `min_reuse_probability` of all below level 0, for LEARNED."""
    total = max(blocks.num_accesses, 1)
    rows: list[LevelRow] = []
    for policy in policies:
        progress.begin(f"{blocks.name}, {sum(sizes):,} blocks, {policy.value}")
        cache = LevelCache(policy, sizes, blocks, least_chance, prior)
        for request, num_generated, hint in zip(blocks.requests, blocks.num_generated, hints, strict=True):
            cache.serve(request, num_generated, hint)
        hit_rates = tuple([hits / total for hits in cache.num_hits])
        rows.append(LevelRow(policy.value, hit_rates, tuple([written / total for written in cache.num_written])))
    return _source(blocks, (), tuple(rows), hints_name)


def _source(blocks: BlockRequests, rows: tuple[ComparisonRow, ...], level_rows: tuple[LevelRow, ...], hints: str) -> SourceComparison:
    num_requests = len(blocks.requests)
    return SourceComparison(blocks.name, num_requests, blocks.num_accesses, blocks.num_blocks, rows, level_rows, hints, blocks.block_tokens)


def comparison_header(source: SourceComparison) -> tuple[str, ...]:
    if len(source.level_rows) > 0:
        row = source.level_rows[0]
        hits = [f"hits on {level}" for level in range(len(row.hit_rates))]
        return ("policy", "hits", *hits, *[f"written {level} to {level + 1}" for level in range(len(row.written))])
    names = list(source.rows[0].hit_rates) if len(source.rows) > 0 else []
    return ("blocks", "of all", *names)


def comparison_rows(source: SourceComparison) -> list[tuple[str, ...]]:
    """Percentages; the best policy of a row is for the reader to see."""
    if len(source.level_rows) > 0:
        return [
            (row.policy, *[f"{100.0 * rate:.1f}" for rate in (sum(row.hit_rates), *row.hit_rates, *row.written)])
            for row in source.level_rows
        ]
    return [
        (
            f"{row.num_slots:,}", f"{row.num_slots / max(source.num_blocks, 1):.1%}",
            *[f"{100.0 * rate:.1f}" for rate in row.hit_rates.values()],
        )
        for row in source.rows
    ]  # fmt: skip


def source_title(source: SourceComparison) -> str:
    told = f", LEARNED told {source.hints}" if source.hints != "" else ""
    return (
        f"{source.name}: {source.requests:,} prompts of {source.accesses:,} blocks of {source.block_tokens:,} tokens, "
        f"{source.num_blocks:,} different ones; "
        f"{'hits in percent' if len(source.level_rows) == 0 else 'hits and written blocks in percent of them'}{told}"
    )
