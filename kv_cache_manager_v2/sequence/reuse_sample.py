"""What happened to the sampled blocks of a manager, as a value of its own: other policies and sizes are played through from it.

Slow, and independent of the manager: run it in another thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar, Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..base.checks import to_list, to_number
from ..base.given import Given
from ..base.handle import Handle
from ..config.eviction_policy import EvictionPolicy, to_eviction_policy
from ..stats.hit_rate_curve import HitRateCurve, HitRatePoint
from ..storage.eviction.miniature_cache import MiniatureCache, SampledBlocks

DEFAULT_SIZES: Final[Sequence[float]] = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
MAX_SIZE: Final = 1024
_WORDS_AT_ONCE: Final = 2048


@final
@mypyc_attr(native_class=True)
class CacheFigures:
    """What was measured while the sample was taken; ``share``: of the level in the slots of all levels."""

    __slots__ = (
        "level", "policy", "num_tokens", "num_hit", "num_gone", "num_blocks", "share", "rate", "has_lost", "unsampled",
        "num_incomplete", "has_partial_layers",
    )  # fmt: skip

    level: Final[int]
    policy: Final[EvictionPolicy]
    num_tokens: Final[int]
    num_hit: Final[int]
    num_gone: Final[int]
    """Tokens that were here before they were asked for, and were gone."""
    num_blocks: Final[float]
    """Published blocks that all levels had together when they were full."""
    share: Final[float]
    rate: Final[float]
    has_lost: Final[bool]
    """Whether the sample lacks the beginning."""
    unsampled: Final[float]
    """See `ReuseSampler.compute_unsampled`."""
    num_incomplete: Final[int]
    """Tokens that were here when they were asked for, without the window or recurrent state that a hit needs."""
    has_partial_layers: Final[bool]
    """Whether some layers keep a part of a prefix only: a window, or a recurrent state."""

    def __init__(
        self, level: int, policy: EvictionPolicy, num_tokens: int, num_hit: int, num_gone: int, num_blocks: float, share: float,
        rate: float, has_lost: bool, unsampled: float = 0.0, num_incomplete: int = 0, has_partial_layers: bool = False,
    ) -> None:  # fmt: skip
        self.level = level
        self.policy = policy
        self.num_tokens = num_tokens
        self.num_hit = num_hit
        self.num_gone = num_gone
        self.num_blocks = num_blocks
        self.share = share
        self.rate = rate
        self.has_lost = has_lost
        self.unsampled = unsampled
        self.num_incomplete = num_incomplete
        self.has_partial_layers = has_partial_layers

    @property
    def incomplete_share(self) -> float:
        """Of all prompt tokens."""
        return self.num_incomplete / self.num_tokens if self.num_tokens > 0 else 0.0

    def is_known(self, size: float, policy: EvictionPolicy) -> bool:
        """Whether the blocks tell the hit rate at that size: pages that partial layers lose there are not sampled."""
        return not self.has_partial_layers or (size == 1.0 and policy is self.policy)

    def compute_blocks(self, size: float) -> float:
        """Blocks that there would be with the level ``size`` times as large."""
        return self.num_blocks * (1.0 + (size - 1.0) * self.share)

    def compute_hit_rate(self, hits_now: int, hits_then: int, num_queries: int) -> float:
        """Anchored at what was measured: the sample says which share of the present hits, or of what is gone, is a hit then.

        So what the model of a cache leaves out cancels out, and so does most of the luck of the draw.
        """
        unsampled = round(self.unsampled * num_queries)
        if hits_now + unsampled > 0:
            # Of blocks that every cache has.
            hits_now += unsampled
            hits_then = max(hits_then + unsampled, 0)
            num_queries += unsampled
        more = hits_then - hits_now
        tokens = float(self.num_hit)
        if more < 0:
            tokens = self.num_hit * hits_then / hits_now
        elif more > 0 and num_queries > hits_now:
            tokens += self.num_gone * more / (num_queries - hits_now)
        return tokens / self.num_tokens if self.num_tokens > 0 else 0.0


@final
@mypyc_attr(native_class=True)
class ReuseSample(Handle):
    """Of `KVCacheManager.get_reuse_sample`. Nothing in it belongs to the manager: any thread may use it, one at a time."""

    __slots__ = ("_figures", "_blocks", "_hits")

    _NAMES: ClassVar[str] = "what one manager has sampled; send what estimate() returns"

    _figures: Final[CacheFigures]
    _blocks: Final[SampledBlocks]
    _hits: Final[dict[tuple[EvictionPolicy, int], tuple[int, int]]]
    """Hits and queries by policy and number of slots, as far as they were asked for."""

    def __init__(self, figures: CacheFigures, words: vec[i64]) -> None:
        self._figures = figures
        self._blocks = SampledBlocks(words)
        self._hits = {}

    @property
    def num_words(self) -> int:
        """How long it takes: so many times 0.08 (LRU) to 0.3 us (ARC) for each size, compiled."""
        return len(self._blocks.kinds)

    def estimate(self, policy: Given[EvictionPolicy], sizes: Sequence[float] = DEFAULT_SIZES) -> HitRateCurve:
        """The hit rates that the level would have had under ``policy``, at ``sizes`` times its present size; None: see `HitRateCurve`.

        `TypeError` for no `EvictionPolicy`, `ValueError` for a size that is not over 0 and at most 1024. Compiled code lets other
        threads run every 0.3 ms or so.
        """
        chosen = to_eviction_policy(policy, "policy")
        wanted = validate_sizes(sizes)
        figures = self._figures
        now, num_queries = self._count_hits(figures.policy, figures.num_blocks)
        points: list[HitRatePoint] = []
        for size in wanted:
            if not figures.is_known(size, chosen):
                points.append(HitRatePoint(size, None))
                continue
            hits, _ = self._count_hits(chosen, figures.compute_blocks(size))
            points.append(HitRatePoint(size, figures.compute_hit_rate(now, hits, num_queries)))
        return HitRateCurve(
            figures.level, tuple(points), figures.rate, num_queries, int(figures.num_blocks), chosen, figures.incomplete_share
        )  # fmt: skip

    def _count_hits(self, policy: EvictionPolicy, num_blocks: float) -> tuple[int, int]:
        num_slots = max(round(num_blocks * self._figures.rate), 1)
        known = self._hits.get((policy, num_slots))
        if known is not None:
            return known
        cache = MiniatureCache(self._blocks, policy, num_slots)
        end = len(self._blocks.kinds)
        # What comes first finds an empty cache that the manager's was not.
        num_first = end // 2 if self._figures.has_lost else 0
        hits_before = 0
        queries_before = 0
        position = 0
        while position < end:
            stop = min(position + _WORDS_AT_ONCE, end)
            if position < num_first:
                stop = min(stop, num_first)
            cache.play(position, stop)
            position = stop
            if position == num_first:
                hits_before = int(cache.num_hits)
                queries_before = int(cache.num_queries)
            # Compiled code keeps other threads waiting as long as it runs.
            os.sched_yield()
        counted = (int(cache.num_hits) - hits_before, int(cache.num_queries) - queries_before)
        self._hits[(policy, num_slots)] = counted
        return counted


def validate_sizes(sizes: object) -> list[float]:
    numbers = [to_number(size, "one of sizes") for size in to_list(sizes, "sizes")]
    for size in numbers:
        if not 0 < size <= MAX_SIZE:
            raise ValueError(f"one of sizes is {size:g}; they are over 0 and at most {MAX_SIZE} times the present one")
    return numbers
