"""A hit rate estimate from sampled blocks: which of the sampled queries a cache of another size or policy would have answered."""

from ..base.errors import LogicError
from ..config.eviction_policy import EvictionPolicy
from ..reuse.radix_tree import RadixTree
from ..stats.hit_rate_curve import HitRateCurve, HitRatePoint
from ..stats.miss_cause import DROPPED, EVICTED, LOAD_FAILED, NO_SNAPSHOT, SHRUNK, UNREACHABLE, WINDOW_BROKEN
from ..stats.reuse_sampler import ReuseSampler
from ..stats.usage_counters import PROMPT_TOKENS, UsageCounters
from .reuse_sample import CacheFigures, ReuseSample


def estimate_hit_rates(
    tree: RadixTree, total: UsageCounters, level: int, policy: EvictionPolicy, sizes: list[float]
) -> HitRateCurve:
    """By reuse distances: for eviction by recency, and at once. `LogicError` without a sample. ``policy``: the present one."""
    sampler = _require_sampler(tree)
    figures = _take_figures(tree, sampler, total, level, policy)
    now = int(sampler.count_queries_within(figures.num_blocks * sampler.rate))
    points: list[HitRatePoint] = []
    for size in sizes:
        if not figures.is_known(size, policy):
            points.append(HitRatePoint(size, None))
            continue
        hits = int(sampler.count_queries_within(figures.compute_blocks(size) * sampler.rate))
        points.append(HitRatePoint(size, figures.compute_hit_rate(now, hits, int(sampler.num_queries))))
    return HitRateCurve(
        level, tuple(points), float(sampler.rate), int(sampler.num_queries), int(figures.num_blocks), None, figures.incomplete_share
    )  # fmt: skip


def take_reuse_sample(tree: RadixTree, total: UsageCounters, level: int, policy: EvictionPolicy) -> ReuseSample:
    """`LogicError` without a sample."""
    sampler = _require_sampler(tree)
    return ReuseSample(_take_figures(tree, sampler, total, level, policy), sampler.log.copy_words())


def _require_sampler(tree: RadixTree) -> ReuseSampler:
    sampler = None if tree.history is None else tree.history.sampler
    if sampler is None:
        raise LogicError("nothing was sampled; make the manager with miss_ratio_sampling over 0, 0.01 say")
    return sampler


def _take_figures(
    tree: RadixTree, sampler: ReuseSampler, total: UsageCounters, level: int, policy: EvictionPolicy
) -> CacheFigures:
    history = tree.history
    assert history is not None, "a sampler without a history"
    num_hit = 0
    for at in range(total.hits_at, total.misses_at):
        num_hit += int(total.counts[at])
    num_gone = 0
    for cause in (EVICTED, UNREACHABLE, SHRUNK, DROPPED, LOAD_FAILED):
        num_gone += int(total.counts[total.misses_at + cause])
    slots = _count_slots(tree)
    present = history.compute_full_size()
    if present == 0.0:
        # It was never full: what it could hold, as one page of each block takes a slot.
        present = float(sum(slots))
    return CacheFigures(
        level=level,
        policy=policy,
        num_tokens=int(total.counts[total.calls_at + PROMPT_TOKENS]),
        num_hit=num_hit,
        num_gone=num_gone,
        num_blocks=present,
        share=slots[level] / max(sum(slots), 1),
        rate=float(sampler.rate),
        has_lost=sampler.log.has_lost,
        unsampled=sampler.compute_unsampled(),
        has_partial_layers=tree.has_partial_layers,
        num_incomplete=int(total.counts[total.misses_at + WINDOW_BROKEN]) + int(total.counts[total.misses_at + NO_SNAPSHOT]),
    )


def _count_slots(tree: RadixTree) -> list[int]:
    """Of each level, in its largest pool group: the others hold windows or states, fewer pages than there are blocks."""
    storage = tree.storage
    num_levels = storage.counters.num_levels
    slots: list[int] = []
    for level in range(num_levels):
        counts: list[int] = []
        for pool_group in range(storage.num_pool_groups):
            counts.append(int(storage.allocators[level * storage.num_pool_groups + pool_group].num_slots))
        slots.append(max(counts))
    return slots
