"""The plots of a replay's report, with plotly. Importing this module needs plotly (extra ``report``).

Each plot is readable without colours: hits are filled, misses are hatched, lines have dashes and symbols of their own. Values
are shares and counts as in docs/statistics.md.
"""

from typing import Any, Final, TypeAlias

import plotly.graph_objects as graphs  # type: ignore[import-untyped]
import plotly.subplots  # type: ignore[import-untyped]

from .. import DropReason
from .other_sizes import MeasuredCurve
from .prompt_misses import FORGOTTEN, NEW, SAME_TIME
from .report import ReplayReport
from .timeline import TimelinePoint

Stretch: TypeAlias = tuple[TimelinePoint, TimelinePoint]
"""From one moment to another."""

NUM_BARS: Final = 48

# From dark to light, so that neighbours differ in grey as well.
_HIT_COLOURS: Final = ("#08306b", "#2171b5", "#6baed6", "#b8d4ea")
_MISS_STYLES: Final = {
    "evicted": ("#a50f15", "/"),
    "unreachable": ("#cb181d", "\\"),
    "shrunk": ("#ef3b2c", "x"),
    "dropped": ("#fc9272", "-"),
    "window broken": ("#e6550d", "|"),
    "no snapshot": ("#fd8d3c", "+"),
    "partial block": ("#fdae6b", "."),
    "other scope": ("#756bb1", "/"),
    "load failed": ("#000000", "x"),
    "backoff": ("#dadaeb", "-"),
    FORGOTTEN: ("#d9d9d9", "\\"),
    SAME_TIME: ("#f0f0f0", "."),
    NEW: ("#ffffff", ""),
}
_DROP_PATTERNS: Final = ("", "/", "\\", "x", "-", "|", "+", ".")
_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")
_SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down", "cross")
"""Beside five dashes: no two lines of 35 have both."""


def choose_bars(points: list[TimelinePoint]) -> list[Stretch]:
    """At most `NUM_BARS` consecutive stretches between two moments, in each of which there were prompts."""
    stretches: list[Stretch] = []
    if len(points) < 2:
        return stretches
    tokens_per_bar = max((points[-1].prompt_tokens - points[0].prompt_tokens) / NUM_BARS, 1.0)
    begin = points[0]
    for point in points[1:]:
        if point.prompt_tokens - begin.prompt_tokens >= tokens_per_bar or point is points[-1]:
            if point.prompt_tokens > begin.prompt_tokens:
                stretches.append((begin, point))
            begin = point
    return stretches


def _middles(stretches: list[Stretch]) -> list[float]:
    return [(begin.prompt_tokens + end.prompt_tokens) / 2 for begin, end in stretches]


def _widths(stretches: list[Stretch]) -> list[int]:
    return [end.prompt_tokens - begin.prompt_tokens for begin, end in stretches]


def plot_hits(points: list[TimelinePoint], tiers: list[str]) -> Any:
    """The sources of the prompts' tokens, stretch by stretch."""
    figure = graphs.Figure()
    stretches = choose_bars(points)
    tokens = [end.prompt_tokens - begin.prompt_tokens for begin, end in stretches]
    for level, tier in enumerate(tiers):
        shares = [
            (end.hit_tokens[level] - begin.hit_tokens[level]) / count
            for (begin, end), count in zip(stretches, tokens, strict=True)
        ]
        _add_bars(figure, f"hit, {tier}", stretches, shares, _HIT_COLOURS[level % len(_HIT_COLOURS)], "")
    for cause, (colour, pattern) in _MISS_STYLES.items():
        if len(points) > 0 and points[-1].missed_tokens.get(cause, 0) > 0:
            shares = [
                (end.missed_tokens.get(cause, 0) - begin.missed_tokens.get(cause, 0)) / count
                for (begin, end), count in zip(stretches, tokens, strict=True)
            ]
            _add_bars(figure, f"missed, {cause}", stretches, shares, colour, pattern)
    so_far = [sum(end.hit_tokens) / max(end.prompt_tokens, 1) for _, end in stretches]
    figure.add_trace(
        graphs.Scatter(
            x=[end.prompt_tokens for _, end in stretches], y=so_far, name="hit rate so far", mode="lines",
            line={"color": "black", "width": 3}, hovertemplate="%{y:.1%}",
        )
    )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_yaxes(title="share of prompt tokens", tickformat=".0%", range=[0, 1])
    figure.update_xaxes(title="prompt tokens so far", range=_token_range(points))
    return _finished(figure)


def _token_range(points: list[TimelinePoint]) -> list[int]:
    """From the first to the last prompt token, as many as the table says."""
    return [0, max(points[-1].prompt_tokens, 1) if len(points) > 0 else 1]


def _add_bars(figure: Any, name: str, stretches: list[Stretch], y: list[float], colour: str, pattern: str) -> None:
    figure.add_trace(
        graphs.Bar(
            x=_middles(stretches), width=_widths(stretches), y=y, name=name, hovertemplate="%{y:.1%}",
            marker={
                "color": colour, "line": {"color": "black", "width": 0.5},
                "pattern": {"shape": pattern, "fgcolor": "black", "bgcolor": colour, "size": 6, "solidity": 0.3},
            },
        )
    )  # fmt: skip


def plot_memory(points: list[TimelinePoint]) -> Any:
    """Slots of every pool group at every level: needed by sequences, kept for reuse, free."""
    uses = points[-1].slots if len(points) > 0 else ()
    titles = [f"{use.tier}, pool group {use.pool_group}: {use.total:,} slots" for use in uses]
    num_rows = max(len(uses), 1)
    height = _MARGIN_TOP + _MARGIN_BOTTOM + _LEGEND_HEIGHT + num_rows * _ROW_HEIGHT + (num_rows - 1) * _ROW_GAP
    figure = plotly.subplots.make_subplots(
        rows=num_rows, cols=1, shared_xaxes=True, subplot_titles=titles,
        vertical_spacing=_ROW_GAP / (num_rows * _ROW_HEIGHT + (num_rows - 1) * _ROW_GAP),
    )  # fmt: skip
    steps = [point.step for point in points]
    for position in range(len(uses)):
        row = position + 1
        needed = [point.slots[position].needed / max(point.slots[position].total, 1) for point in points]
        kept = [point.slots[position].kept / max(point.slots[position].total, 1) for point in points]
        _add_area(figure, row, "needed by sequences", steps, needed, "#08306b", "/")
        _add_area(figure, row, "kept for reuse", steps, kept, "#9ecae1", "")
    figure.update_yaxes(tickformat=".0%", range=[0, 1])
    figure.update_xaxes(title="step", row=num_rows, col=1)
    return _finished(figure, height)


def _add_area(figure: Any, row: int, name: str, x: list[int], y: list[float], colour: str, pattern: str) -> None:
    figure.add_trace(
        graphs.Scatter(
            x=x, y=y, name=name, stackgroup="slots", showlegend=row == 1, legendgroup=name, mode="lines",
            line={"color": "black", "width": 1}, fillcolor=colour, hovertemplate="%{y:.1%}",
            fillpattern={"shape": pattern, "fgcolor": "white", "bgcolor": colour, "size": 8, "solidity": 0.2},
        ),
        row=row, col=1,
    )  # fmt: skip


def plot_drops(points: list[TimelinePoint]) -> Any:
    """Pages dropped for 1,000 prompt tokens, stretch by stretch, by reason: stretches are not equally long."""
    figure = graphs.Figure()
    stretches = choose_bars(points)
    for reason in DropReason:
        if len(points) > 0 and points[-1].dropped_pages.get(reason, 0) > 0:
            rates = [
                1000 * (end.dropped_pages.get(reason, 0) - begin.dropped_pages.get(reason, 0)) / (end.prompt_tokens - begin.prompt_tokens)
                for begin, end in stretches
            ]
            figure.add_trace(
                graphs.Bar(
                    x=_middles(stretches), width=_widths(stretches), y=rates, name=reason.name.lower().replace("_", " "),
                    hovertemplate="%{y:,.1f}",
                    marker={
                        "color": "#bdbdbd", "line": {"color": "black", "width": 0.5},
                        "pattern": {"shape": _DROP_PATTERNS[reason], "fgcolor": "black", "bgcolor": "#bdbdbd", "size": 6},
                    },
                )
            )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_yaxes(title="pages per 1,000 prompt tokens", rangemode="tozero")
    figure.update_xaxes(title="prompt tokens so far", range=_token_range(points))
    return _finished(figure)


def plot_latencies(report: ReplayReport) -> Any:
    """Mean, median, p99 and maximum of each kind of call."""
    figure = graphs.Figure()
    names = [f"{call.name} ({call.count:,})" for call in reversed(report.calls)]
    series = {
        "p50": [call.p50_us for call in reversed(report.calls)],
        "mean": [call.mean_us for call in reversed(report.calls)],
        "p99": [call.p99_us for call in reversed(report.calls)],
        "maximum": [call.max_us for call in reversed(report.calls)],
    }
    for position, (name, values) in enumerate(series.items()):
        marker = {"symbol": _SYMBOLS[position], "size": 12, "color": _HIT_COLOURS[position], "line": {"color": "black", "width": 1}}
        figure.add_trace(
            graphs.Scatter(x=values, y=names, name=name, mode="markers", marker=marker, hovertemplate="%{x:,.1f} us")
        )
    figure.update_xaxes(title="microseconds a call", type="log")
    figure.update_yaxes(automargin=True)
    return _finished(figure, 260 + 40 * len(names))


def plot_hit_rates(curves: list[MeasuredCurve], tiers: list[str]) -> Any:
    """Hit rate against the relative size of each tier; under other eviction policies at the present size."""
    figure = graphs.Figure()
    highest = 0.0
    for position, curve in enumerate(curves):
        rates = [rate for rate in curve.rates if rate.hit_rate is not None]
        highest = max([highest, *[rate.hit_rate for rate in rates if rate.hit_rate is not None]])
        is_other = curve.policy is not None
        figure.add_trace(
            graphs.Scatter(
                x=[rate.size for rate in rates], y=[rate.hit_rate for rate in rates],
                name=f"eviction by {curve.policy.value}" if curve.policy is not None else f"size of {tiers[curve.level]}",
                mode="markers" if is_other else "lines+markers", hovertemplate="%{y:.1%} at %{x}x",
                line={"color": _HIT_COLOURS[position % 3], "dash": _DASHES[position % len(_DASHES)], "width": 3},
                marker={
                    "symbol": _SYMBOLS[position % len(_SYMBOLS)], "size": 10,
                    "color": "#999999" if is_other else _HIT_COLOURS[position % 3], "line": {"color": "black", "width": 1},
                },
            )
        )  # fmt: skip
    measured = max([rate.hit_rate or 0.0 for rate in curves[0].rates if rate.size == 1.0], default=0.0)
    figure.add_trace(
        graphs.Scatter(
            x=[1.0], y=[measured], name="this run", mode="markers", hovertemplate="%{y:.1%}",
            marker={"symbol": "star", "size": 18, "color": "white", "line": {"color": "black", "width": 2}},
        )
    )  # fmt: skip
    figure.add_vline(x=1.0, line={"color": "black", "dash": "dash", "width": 1})
    sizes = sorted(set([rate.size for curve in curves for rate in curve.rates]))
    figure.update_xaxes(title="size of the tier, in present sizes", type="log", tickvals=sizes, ticktext=[f"{size:g}" for size in sizes])
    figure.update_yaxes(title="hit rate", tickformat=".0%", range=[0, max(min(highest * 1.2, 1.0), 0.05)])
    return _finished(figure)


_MARGIN_TOP: Final = 40
_MARGIN_BOTTOM: Final = 60
_LEGEND_HEIGHT: Final = 110
_ROW_HEIGHT: Final = 150
_ROW_GAP: Final = 50
"""In pixels."""


def _finished(figure: Any, height: int = 460) -> Any:
    """The common layout: the legend below the axis, whatever the height; large type, no empty margins on a phone."""
    plot_height = max(height - _MARGIN_TOP - _MARGIN_BOTTOM - _LEGEND_HEIGHT, 1)
    figure.update_layout(
        template="plotly_white", height=height, font={"size": 14},
        margin={"l": 60, "r": 10, "t": _MARGIN_TOP, "b": _MARGIN_BOTTOM + _LEGEND_HEIGHT, "autoexpand": True},
        legend={"orientation": "h", "yanchor": "top", "y": -_MARGIN_BOTTOM / plot_height, "x": 0}, hovermode="x unified",
    )  # fmt: skip
    return figure
