"""From reuse distances to hit rates: which of the sampled queries a cache of another size would have answered.

The estimate is anchored at what was measured. A smaller cache would have kept that share of the present hits which the sample
has at smaller distances; a larger one would also have had that share of what is gone by now which the sample has between the two
sizes. So what the model of a cache leaves out (pages that nobody may evict, blocks found in part) cancels out, and so does most of
the luck of the draw.
"""

from ..base.errors import LogicError
from ..reuse.radix_tree import RadixTree
from ..stats.hit_rate_curve import HitRateCurve, HitRatePoint
from ..stats.miss_cause import DROPPED, EVICTED, LOAD_FAILED, SHRUNK, UNREACHABLE
from ..stats.usage_counters import PROMPT_TOKENS, UsageCounters


def estimate_hit_rates(tree: RadixTree, total: UsageCounters, level: int, sizes: list[float]) -> HitRateCurve:
    """`LogicError` without a sample."""
    history = tree.history
    sampler = None if history is None else history.sampler
    if history is None or sampler is None:
        raise LogicError("nothing was sampled; make the manager with miss_ratio_sampling over 0, 0.01 say")
    num_tokens = int(total.counts[total.calls_at + PROMPT_TOKENS])
    num_hit = 0
    for at in range(total.hits_at, total.misses_at):
        num_hit += int(total.counts[at])
    present = history.compute_full_size()
    slots = _count_slots(tree)
    if present == 0.0:
        # It was never full: what it could hold, as one page of each block takes a slot.
        present = float(sum(slots))
    share = slots[level] / max(sum(slots), 1)
    num_gone = 0
    for cause in (EVICTED, UNREACHABLE, SHRUNK, DROPPED, LOAD_FAILED):
        num_gone += int(total.counts[total.misses_at + cause])
    now = int(sampler.count_queries_within(present * sampler.rate))
    points: list[HitRatePoint] = []
    for size in sizes:
        other = present * (1.0 + (size - 1.0) * share)
        more = int(sampler.count_queries_within(other * sampler.rate)) - now
        if more < 0:
            tokens = num_hit * (now + more) / now
        elif more > 0:
            tokens = num_hit + num_gone * more / (int(sampler.num_queries) - now)
        else:
            tokens = float(num_hit)
        points.append(HitRatePoint(size, tokens / num_tokens if num_tokens > 0 else 0.0))
    return HitRateCurve(level, tuple(points), float(sampler.rate), int(sampler.num_queries), int(present))


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
