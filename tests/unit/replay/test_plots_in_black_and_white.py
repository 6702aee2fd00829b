"""Whatever a figure tells by colour it tells by a hatch, a dash, a shape or a clearly other grey as well: it can be printed."""

from itertools import combinations

from kv_cache_manager_v2 import EvictionPolicy
from kv_cache_manager_v2.replay.other_sizes import MeasuredCurve, MeasuredRate
from kv_cache_manager_v2.replay.plots import PAPER, Plot, plot_hit_rates, plot_hits
from kv_cache_manager_v2.replay.prompt_misses import MISS_MEANINGS
from kv_cache_manager_v2.replay.timeline import TimelinePoint

CLEARLY = 35
"""Of 255 steps of grey."""
TIERS = ["gpu", "host", "disk", "disk2"]


def grey_of(colour: str) -> float:
    """As a printer does it, by how bright the eye finds each part."""
    if not colour.startswith("#"):
        return 255.0 if colour == PAPER else 0.0
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue


def require_distinct(figure: Plot) -> int:
    for one, other in combinations(figure.series, 2):
        if one.look == other.look:
            assert abs(grey_of(one.colour) - grey_of(other.colour)) >= CLEARLY, f"{one.name!r} and {other.name!r} look alike"
    return len(figure.series)


def points_with_everything(num_tiers: int) -> list[TimelinePoint]:
    return [
        TimelinePoint(step, 1000 * step, (10 * step,) * num_tiers, {cause: 10 * step for cause in MISS_MEANINGS}) for step in range(1, 9)
    ]


def test_every_cause_and_every_tier() -> None:
    # One series for each tier and cause, and the line.
    assert require_distinct(plot_hits(points_with_everything(4), TIERS)) == 4 + len(MISS_MEANINGS) + 1


def test_every_policy_and_tier() -> None:
    curves = [MeasuredCurve(level, None, tuple(MeasuredRate(size, 0.1 * size) for size in (0.5, 1.0, 2.0))) for level in range(4)]
    for number, policy in enumerate(EvictionPolicy):
        curves.append(MeasuredCurve(0, policy, (MeasuredRate(1.0, 0.15 + 0.05 * number),)))
    assert require_distinct(plot_hit_rates(curves, TIERS, [1 << 30] * 4)) == len(curves) + 1
