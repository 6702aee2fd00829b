"""What hit rate the cache would have had with more or less memory: a value, made when somebody asks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HitRatePoint:
    """``size``: of the tier, in present sizes."""

    size: float
    hit_rate: float


@dataclass(frozen=True)
class HitRateCurve:
    """The miss-ratio curve of one tier, the other way up. At size 1 it is what was measured.

    Estimated from the reuse distances of sampled blocks, for eviction by recency. Misses that are not for capacity stay misses at
    every size, those by a broken window too.
    """

    level: int
    points: tuple[HitRatePoint, ...]
    sampling: float
    """The share of the blocks that were looked at."""
    num_sampled_queries: int
    """Under a few hundred the curve is a guess."""
    cached_blocks: int
    """Published blocks that all tiers together had when they were full."""
