"""The estimated hit rate with more or less memory, or with another policy: a value, computed on request."""

from dataclasses import dataclass

from ..base.value import Value
from ..config.eviction_policy import EvictionPolicy


@dataclass(frozen=True)
class HitRatePoint(Value):
    """``size``: of the tier, relative to its present size. ``hit_rate`` None: not known, see `HitRateCurve`."""

    size: float
    hit_rate: float | None


@dataclass(frozen=True)
class HitRateCurve(Value):
    """The hit rate over the size of one tier. Under the present policy, the value at size 1 is the measured one.

    Estimated from sampled blocks. Misses for other causes than capacity stay misses at every size. In a model with sliding windows
    or recurrent states, a cached prefix is no hit if its window or state is gone. How many are gone at another size or under another
    policy cannot be known from blocks: there, ``hit_rate`` is None but at size 1. `kvcm replay --report` measures instead.
    """

    level: int
    points: tuple[HitRatePoint, ...]
    sampling: float
    """The sampled share of blocks."""
    num_sampled_queries: int
    """Below a few hundred the curve is a guess."""
    cached_blocks: int
    """Published blocks in all tiers together when these were full."""
    policy: EvictionPolicy | None = None
    """The simulated policy; None: LRU, computed from reuse distances."""
    incomplete_share: float = 0.0
    """Measured share of the prompt tokens that are cached, but whose window or recurrent state is gone (`WINDOW_BROKEN`, `NO_SNAPSHOT`)."""
