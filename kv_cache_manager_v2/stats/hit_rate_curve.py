"""What hit rate the cache would have had with more or less memory, or another policy: a value, made when somebody asks."""

from dataclasses import dataclass

from ..base.value import Value
from ..config.eviction_policy import EvictionPolicy


@dataclass(frozen=True)
class HitRatePoint(Value):
    """``size``: of the tier, in present sizes."""

    size: float
    hit_rate: float


@dataclass(frozen=True)
class HitRateCurve(Value):
    """The miss-ratio curve of one tier, the other way up. Under the present policy it is at size 1 what was measured.

    Estimated from sampled blocks. Misses that are not for capacity stay misses at every size. Layers with windows or recurrent
    states can lose pages of cached prefixes, and how many they lose at another size cannot be known from blocks: the curve assumes the
    present share. With ``incomplete_share`` over 0 it is a guess; `kvcm replay --report` measures instead.
    """

    level: int
    points: tuple[HitRatePoint, ...]
    sampling: float
    """The share of the blocks that were looked at."""
    num_sampled_queries: int
    """Under a few hundred the curve is a guess."""
    cached_blocks: int
    """Published blocks that all tiers together had when they were full."""
    policy: EvictionPolicy | None = None
    """Which one was played through; None: recency, by reuse distances."""
    incomplete_share: float = 0.0
    """Of the prompt tokens, those cached whose window or recurrent state is gone (`WINDOW_BROKEN`, `NO_SNAPSHOT`)."""
