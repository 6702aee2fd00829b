"""Whatever a plot tells by colour it tells by a pattern, a dash, a symbol or a clearly other grey as well: it can be printed."""

from itertools import combinations
from typing import Any

import pytest

pytest.importorskip("plotly", reason="the extra report is not installed")

from kv_cache_manager_v2 import DropReason, EvictionPolicy  # noqa: E402
from kv_cache_manager_v2.replay.other_sizes import MeasuredCurve, MeasuredRate  # noqa: E402
from kv_cache_manager_v2.replay.plots import plot_drops, plot_hit_rates, plot_hits, plot_memory  # noqa: E402
from kv_cache_manager_v2.replay.prompt_misses import MISS_MEANINGS  # noqa: E402
from kv_cache_manager_v2.replay.timeline import SlotUse, TimelinePoint  # noqa: E402

CLEARLY = 35
"""Of 255 steps of grey."""


def grey_of(colour: str | None) -> float:
    """As a printer does it, by how bright the eye finds each part."""
    if colour is None or colour == "black":
        return 0.0
    if colour == "white":
        return 255.0
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue


def looks_of(trace: Any) -> tuple[tuple[object, ...], float]:
    """What is left without colours: shapes, and how light it is."""
    if trace.type == "bar":
        return (trace.marker.pattern.shape,), grey_of(trace.marker.color)
    if trace.stackgroup is not None:
        return (trace.fillpattern.shape,), grey_of(trace.fillcolor)
    return (trace.mode, trace.line.dash, trace.marker.symbol), grey_of(trace.line.color)


def require_distinct(figure: Any) -> int:
    traces = [trace for trace in figure.data if trace.showlegend is not False]
    for one, other in combinations(traces, 2):
        shapes, grey = looks_of(one)
        other_shapes, other_grey = looks_of(other)
        if one.type == other.type:
            assert shapes != other_shapes or abs(grey - other_grey) >= CLEARLY, f"{one.name!r} and {other.name!r} look alike"
    return len(traces)


def points_with_everything(num_tiers: int) -> list[TimelinePoint]:
    slots = tuple(SlotUse(level, f"tier {level}", group, 100, 40, 30) for level in range(num_tiers) for group in range(2))
    return [
        TimelinePoint(
            step, 1000 * step, (10 * step,) * num_tiers, {cause: 10 * step for cause in MISS_MEANINGS},
            {reason: step for reason in DropReason}, slots,
        )
        for step in range(1, 9)
    ]  # fmt: skip


def test_every_cause_every_tier_every_reason() -> None:
    points = points_with_everything(4)
    # One trace for each tier and cause, and the line.
    assert require_distinct(plot_hits(points, ["gpu", "host", "disk", "disk2"])) == 4 + len(MISS_MEANINGS) + 1
    assert require_distinct(plot_drops(points)) == len(DropReason)
    assert require_distinct(plot_memory(points)) == 2


def test_every_policy_and_tier() -> None:
    rates = tuple(MeasuredRate(size, 0.1 * size) for size in (0.5, 1.0, 2.0))
    curves = [MeasuredCurve(level, None, rates) for level in range(4)]
    curves += [MeasuredCurve(0, policy, rates[:1]) for policy in EvictionPolicy]
    assert require_distinct(plot_hit_rates(curves, ["gpu", "host", "disk", "disk2"])) == len(curves) + 1
