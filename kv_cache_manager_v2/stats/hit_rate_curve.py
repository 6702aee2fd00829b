"""What hit rate the cache would have had with more or less memory, or another policy: a value, made when somebody asks."""

from dataclasses import dataclass

from ..base.value import Value
from ..config.eviction_policy import EvictionPolicy


@dataclass(frozen=True)
class HitRatePoint(Value):
    """``size``: of the tier, in present sizes. ``hit_rate`` None: not known, see `HitRateCurve`."""

    size: float
    hit_rate: float | None


@dataclass(frozen=True)
class HitRateCurve(Value):
    """The miss-ratio curve of one tier, the other way up. Under the present policy it is at size 1 what was measured.

    Estimated from sampled blocks. Misses that are not for capacity stay misses at every size. In a model with sliding windows or
    recurrent states, a cached prefix is no hit where its window or state is gone. How many are gone at another size or under another
    policy cannot be known from blocks: there, ``hit_rate`` is None but at size 1. `kvcm replay --report` measures instead.
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
    """Measured share of the prompt tokens that are cached, but whose window or recurrent state is gone (`WINDOW_BROKEN`, `NO_SNAPSHOT`)."""
