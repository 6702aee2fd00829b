"""The course of a replay as at most `MAX_POINTS` moments: hits and misses. The source of the plots.

Moments are steps of the engine at equal distances; when there are too many, every second one is forgotten and the distance
doubles. All counts are since the start, so that what happened between two moments is a difference, and forgetting one loses
nothing.
"""

from dataclasses import dataclass
from typing import Final, final


from .. import KVCacheManager
from ..base.value import Value
from .tally import Tally

MAX_POINTS: Final = 512


@dataclass(frozen=True)
class TimelinePoint(Value):
    """One moment. Prompts count when their requests are first admitted; ``missed_tokens`` by the words of `prompt_misses`."""

    step: int
    prompt_tokens: int
    hit_tokens: tuple[int, ...]
    missed_tokens: dict[str, int]


@final
class Timeline:
    """``points`` in order; the first is the beginning and, after `finish`, the last is the end."""

    __slots__ = ("points", "tiers", "_distance", "_next_step")

    def __init__(self) -> None:
        self.points: list[TimelinePoint] = []
        self.tiers: list[str] = []
        """Names of the cache levels, warmest first."""
        self._distance = 1
        self._next_step = 0

    def begin(self, manager: KVCacheManager) -> None:
        self.points = []
        self.tiers = tier_names(manager)
        self._distance = 1
        self._next_step = 0
        self.look(Tally(len(self.tiers)))

    def look(self, tally: Tally) -> None:
        """Called after every step; does nothing in most of them."""
        if tally.num_steps < self._next_step:
            return
        if len(self.points) >= MAX_POINTS:
            self.points = self.points[::2]
            self._distance *= 2
        self._next_step = tally.num_steps + self._distance
        self.points.append(_take_point(tally))

    def finish(self, tally: Tally) -> None:
        """The last moment, before the sequences are closed."""
        if len(self.points) > 0 and self.points[-1].step == tally.num_steps:
            self.points.pop()
        self.points.append(_take_point(tally))


def _take_point(tally: Tally) -> TimelinePoint:
    return TimelinePoint(tally.num_steps, tally.num_prompt_tokens, tuple(tally.hit_tokens), dict(tally.missed_tokens))


def tier_names(manager: KVCacheManager) -> list[str]:
    """Of the cache levels, numbered where there are two of a kind."""
    names = [TIER_NAMES[tier.name] for tier in manager.cache_tier_list]
    return [f"{name} {names[:level].count(name) + 1}" if names.count(name) > 1 else name for level, name in enumerate(names)]


TIER_NAMES: Final = {"GPU_MEM": "gpu", "HOST_MEM": "host", "DISK": "disk"}
