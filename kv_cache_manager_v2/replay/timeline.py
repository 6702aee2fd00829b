"""The course of a replay as at most `MAX_POINTS` moments: hits and misses, memory, drops. The source of the plots.

Moments are steps of the engine at equal distances; when there are too many, every second one is forgotten and the distance
doubles. All counts are since the start, so that what happened between two moments is a difference, and forgetting one loses
nothing.
"""

from dataclasses import dataclass
from typing import Final, final

from mypy_extensions import mypyc_attr

from .. import DropReason, KVCacheManager
from ..base.value import Value
from .tally import Tally

MAX_POINTS: Final = 512


@dataclass(frozen=True)
class SlotUse(Value):
    """The slots of one pool group at one level."""

    level: int
    tier: str
    pool_group: int
    total: int
    needed: int
    """Locked, held or scratch."""
    kept: int
    """Droppable: kept for reuse."""


@dataclass(frozen=True)
class TimelinePoint(Value):
    """One moment. Prompts count when their requests are first admitted; ``missed_tokens`` by the words of `prompt_misses`."""

    step: int
    prompt_tokens: int
    hit_tokens: tuple[int, ...]
    missed_tokens: dict[str, int]
    dropped_pages: dict[DropReason, int]
    slots: tuple[SlotUse, ...]


@final
@mypyc_attr(native_class=True)
class Timeline:
    """``points`` in order; the first is the beginning and, after `finish`, the last is the end."""

    __slots__ = ("points", "tiers", "_manager", "_distance", "_next_step")

    points: list[TimelinePoint]
    tiers: list[str]
    """Names of the cache levels, warmest first."""

    def __init__(self) -> None:
        self.points = []
        self.tiers = []
        self._manager: KVCacheManager | None = None
        self._distance = 1
        self._next_step = 0

    def begin(self, manager: KVCacheManager) -> None:
        self.points = []
        self._manager = manager
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
        self.points.append(self._take(tally))

    def finish(self, tally: Tally) -> None:
        """The last moment, before the sequences are closed."""
        if len(self.points) > 0 and self.points[-1].step == tally.num_steps:
            self.points.pop()
        self.points.append(self._take(tally))

    def _take(self, tally: Tally) -> TimelinePoint:
        manager = self._manager
        assert manager is not None, "a timeline looks before it begins"
        return take_point(manager, tally)


def take_point(manager: KVCacheManager, tally: Tally) -> TimelinePoint:
    """This moment."""
    usage = manager.get_statistics()
    dropped: dict[DropReason, int] = {}
    for drop in usage.drops:
        dropped[drop.reason] = dropped.get(drop.reason, 0) + drop.blocks
    return TimelinePoint(
        step=tally.num_steps,
        prompt_tokens=tally.num_prompt_tokens,
        hit_tokens=tuple(tally.hit_tokens),
        missed_tokens=dict(tally.missed_tokens),
        dropped_pages=dropped,
        slots=look_at_slots(manager),
    )


def tier_names(manager: KVCacheManager) -> list[str]:
    """Of the cache levels, numbered where there are two of a kind."""
    names = [TIER_NAMES[tier.name] for tier in manager.cache_tier_list]
    return [
        f"{name} {names[:level].count(name) + 1}" if names.count(name) > 1 else name for level, name in enumerate(names)
    ]


def look_at_slots(manager: KVCacheManager) -> tuple[SlotUse, ...]:
    """Every pool group at every level, now."""
    uses: list[SlotUse] = []
    for level, tier in enumerate(manager.cache_tier_list):
        for index, group in enumerate(manager.get_storage_statistics(level)):
            uses.append(SlotUse(level, TIER_NAMES[tier.name], index, group.total, group.unavailable, group.evictable))
    return tuple(uses)


TIER_NAMES: Final = {"GPU_MEM": "gpu", "HOST_MEM": "host", "DISK": "disk"}
