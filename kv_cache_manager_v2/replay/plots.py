"""The two plots of a replay's report, as SVG: where prompt tokens came from, and hit rates at other sizes.

Each is readable without colours: misses are hatched, lines have dashes, points have shapes. Lines, text and what is empty have the
page's own colours, light or dark. Lengths are in units of an SVG that is `_WIDTH` wide, whatever the width of the screen.
"""

import html
import math
from dataclasses import dataclass
from typing import Final, TypeAlias, final


from .other_sizes import MeasuredCurve
from .prompt_misses import FORGOTTEN, NEW, SAME_TIME
from .timeline import TimelinePoint

Stretch: TypeAlias = tuple[TimelinePoint, TimelinePoint]
"""From one moment to another."""

NUM_BARS: Final = 48

_WIDTH: Final = 720
_HEIGHT: Final = 320
_LEFT: Final = 84
_RIGHT: Final = 44
_TOP: Final = 16
_BOTTOM: Final = 36

PAPER: Final = "var(--paper)"

_HATCHES: Final = {
    "": "", "/": "M-2,2l4,-4M0,8l8,-8M6,10l4,-4", "\\": "M-2,6l4,4M0,0l8,8M6,-2l4,4", "x": "M0,8l8,-8M0,0l8,8", "-": "M0,4h8",
    "|": "M4,0v8", "+": "M0,4h8M4,0v8", ".": "M3,4h2",
}  # fmt: skip
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
    "load failed": ("#333333", "x"),
    "backoff": ("#dadaeb", "-"),
    FORGOTTEN: ("#d9d9d9", "\\"),
    SAME_TIME: ("#f0f0f0", "."),
    NEW: (PAPER, ""),
}
_DASHES: Final = ("", "8 4", "2 4", "8 4 2 4")
_SHAPES: Final = ("M-6,0a6,6 0 1 0 12,0a6,6 0 1 0 -12,0", "M-5,-5h10v10h-10z", "M0,-7l7,7l-7,7l-7,-7z", "M0,-7l7,12h-14z")
_COINCIDES: Final = 0.005
_STAR: Final = "M0,-11l3,8h8l-6,5l2,8l-7,-5l-7,5l2,-8l-6,-5h8z"


@dataclass(frozen=True)
class Series:
    """One entry of a legend. ``look`` is what is left of it without colours, ``drawing`` its SVG, ``sample`` that of its entry."""

    name: str
    colour: str
    look: str
    drawing: str
    sample: str


@dataclass(frozen=True)
class Plot:
    """One plot: its series, and what is around them."""

    name: str
    says: str
    """What a screen reader says of it."""
    axes: str
    series: tuple[Series, ...]

    def to_html(self) -> str:
        entries = "".join([
            f'<li><svg viewBox="-12 -12 24 24" aria-hidden="true">{one.sample}</svg>{html.escape(one.name)}</li>' for one in self.series
        ])  # fmt: skip
        drawings = "".join([one.drawing for one in self.series])
        return (
            f'<svg id="plot-{self.name}" class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{html.escape(self.says)}</title>'
            f'{self.axes}{drawings}</svg><ul class="legend">{entries}</ul>'
        )


@final
class _Frame:
    """The axes: values to places."""

    __slots__ = ("_x_low", "_x_scale", "_y_scale")

    def __init__(self, x_low: float, x_high: float, y_high: float) -> None:
        self._x_low: Final = x_low
        self._x_scale: Final = (_WIDTH - _LEFT - _RIGHT) / (x_high - x_low)
        self._y_scale: Final = (_HEIGHT - _TOP - _BOTTOM) / y_high

    def x(self, value: float) -> float:
        return round(_LEFT + (value - self._x_low) * self._x_scale, 1)

    def y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - value * self._y_scale, 1)

    def draw_axes(self, x_ticks: list[tuple[float, str]], y_ticks: list[float]) -> str:
        lines: list[str] = []
        for value in y_ticks:
            y = self.y(value)
            lines.append(f'<path class="grid" d="M{_LEFT},{y}H{_WIDTH - _RIGHT}"/>')
            lines.append(f'<text x="{_LEFT - 6}" y="{y + 5}" text-anchor="end">{value:.0%}</text>')
        for value, text in x_ticks:
            lines.append(f'<path class="grid" d="M{self.x(value)},{_TOP}V{_HEIGHT - _BOTTOM + 5}"/>')
            lines.append(f'<text x="{self.x(value)}" y="{_HEIGHT - 6}" text-anchor="middle">{text}</text>')
        return "".join(lines)


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


def plot_hits(points: list[TimelinePoint], tiers: list[str]) -> Plot:
    """The sources of the prompts' tokens, stretch by stretch, upon each other; the hit rate so far as a line."""
    stretches = choose_bars(points)
    num_tokens = max(points[-1].prompt_tokens, 1) if len(points) > 0 else 1
    frame = _Frame(0, num_tokens, 1.0)
    heights = [0.0] * len(stretches)
    series: list[Series] = []
    for level, tier in enumerate(tiers):
        shares = [(end.hit_tokens[level] - begin.hit_tokens[level]) / _length(begin, end) for begin, end in stretches]
        colour = _HIT_COLOURS[level % len(_HIT_COLOURS)]
        series.append(_bars(frame, f"hit, {tier}", f"hit-{level}", colour, "", stretches, shares, heights))
    for position, (cause, (colour, hatch)) in enumerate(_MISS_STYLES.items()):
        if len(points) > 0 and points[-1].missed_tokens.get(cause, 0) > 0:
            shares = [
                (end.missed_tokens.get(cause, 0) - begin.missed_tokens.get(cause, 0)) / _length(begin, end) for begin, end in stretches
            ]
            series.append(_bars(frame, f"missed, {cause}", f"miss-{position}", colour, hatch, stretches, shares, heights))
    so_far = [(end.prompt_tokens, sum(end.hit_tokens) / max(end.prompt_tokens, 1)) for _, end in stretches]
    path = _path([(frame.x(tokens), frame.y(rate)) for tokens, rate in so_far])
    series.append(
        Series(
            "hit rate so far", "currentColor", "line", f'<path class="halo" d="{path}"/><path class="line" d="{path}"/>',
            '<path class="line" d="M-10,0h20"/>',
        )
    )  # fmt: skip
    step = _nice_step(num_tokens)
    ticks = [(float(tokens), _short(tokens)) for tokens in range(0, num_tokens + 1, step)]
    return Plot(
        "hits", "Share of prompt tokens by source, over the prompt tokens so far",
        frame.draw_axes(ticks, [0.0, 0.25, 0.5, 0.75, 1.0]), tuple(series),
    )  # fmt: skip


def _length(begin: TimelinePoint, end: TimelinePoint) -> int:
    return end.prompt_tokens - begin.prompt_tokens


def _bars(
    frame: _Frame, name: str, pattern: str, colour: str, hatch: str, stretches: list[Stretch], shares: list[float], heights: list[float]
) -> Series:
    """A series upon those before it, up to ``heights``, which grow by it."""
    parts = [
        f'<pattern id="{pattern}" patternUnits="userSpaceOnUse" width="8" height="8"><path style="fill:{colour}" d="M0,0h8v8h-8z"/>'
        f'<path class="hatch" d="{_HATCHES[hatch]}"/></pattern>'
    ]
    for position, ((begin, end), share) in enumerate(zip(stretches, shares, strict=True)):
        if share > 0.0:
            left, right = frame.x(begin.prompt_tokens), frame.x(end.prompt_tokens)
            low, high = frame.y(heights[position]), frame.y(heights[position] + share)
            parts.append(
                f'<rect fill="url(#{pattern})" x="{left}" y="{high}" width="{right - left:.1f}" height="{low - high:.1f}">'
                f"<title>{html.escape(name)}: {share:.1%}</title></rect>"
            )
            heights[position] += share
    sample = f'<rect fill="url(#{pattern})" x="-10" y="-10" width="20" height="20"/>'
    return Series(name, colour, f"bar {hatch}", "".join(parts), sample)


def plot_hit_rates(curves: list[MeasuredCurve], tiers: list[str], tier_bytes: list[int]) -> Plot:
    """Hit rate against the size of each tier; other eviction policies at the present size. What coincides is one mark."""
    rates = [rate.hit_rate for curve in curves for rate in curve.rates if rate.hit_rate is not None]
    sizes = [math.log2(_to_gib(tier_bytes[curve.level]) * rate.size) for curve in curves for rate in curve.rates]
    y_high = max(min(max([0.0, *rates]) * 1.2, 1.0), 0.05)
    frame = _Frame(min(sizes) - 0.3, max(sizes) + 0.3, y_high)
    series: list[Series] = []
    marks: list[tuple[float, list[str]]] = []
    for position, curve in enumerate(curves):
        if position == 0 or curve.policy is not None:
            _add_mark(marks, curve, f"eviction by {curve.policy.value}" if curve.policy is not None else "this run")
        if curve.policy is not None:
            continue
        gib = _to_gib(tier_bytes[curve.level])
        places = [
            (frame.x(math.log2(gib * rate.size)), frame.y(rate.hit_rate), f"{rate.hit_rate:.1%} at {gib * rate.size:.3g} GiB")
            for rate in curve.rates if rate.hit_rate is not None
        ]  # fmt: skip
        name = f"size of {tiers[curve.level]}"
        look = f"{_DASHES[position % 4]} {_SHAPES[position % 4]}"
        line = f'class="line" stroke-dasharray="{_DASHES[position % 4]}"'
        drawing = f'<path {line} d="{_path([(x, y) for x, y, _ in places])}"/>' + "".join([
            _mark(_SHAPES[position % 4], _HIT_COLOURS[position % 4], x, y, f"{name}: {text}") for x, y, text in places
        ])  # fmt: skip
        sample = f'<path {line} d="M-12,0h24"/>' + _mark(_SHAPES[position % 4], _HIT_COLOURS[position % 4], 0, 0, "")
        series.append(Series(name, _HIT_COLOURS[position % 4], look, drawing, sample))
    for position, (rate, names) in enumerate(marks):
        shape = _STAR if names[0] == "this run" else _SHAPES[-position % 4]
        text = f"{', '.join(names)}: {rate:.1%}"
        drawing = _mark(shape, PAPER, frame.x(math.log2(_to_gib(tier_bytes[0]))), frame.y(rate), text)
        series.append(Series(text, PAPER, shape, drawing, _mark(shape, PAPER, 0, 0, "")))
    first, last = math.ceil(min(sizes) - 0.3), math.floor(max(sizes) + 0.3)
    ticks = [(float(power), f"{2.0**power:.3g}") for power in range(first, last + 1, max((last - first) // 6, 1))]
    step = min([step for step in (0.01, 0.02, 0.05, 0.1, 0.2) if y_high <= 6 * step])
    y_ticks = [step * number for number in range(int(y_high / step) + 1)]
    return Plot("curve", "Hit rate over the size of a tier in GiB", frame.draw_axes(ticks, y_ticks), tuple(series))


def _add_mark(marks: list[tuple[float, list[str]]], curve: MeasuredCurve, name: str) -> None:
    """At the present size: a mark of its own, or one more name for a mark that it would lie on."""
    for measured in curve.rates:
        if measured.size == 1.0 and measured.hit_rate is not None:
            for rate, names in marks:
                if abs(rate - measured.hit_rate) < _COINCIDES:
                    names.append(name)
                    return
            marks.append((measured.hit_rate, [name]))


def _mark(shape: str, colour: str, x: float, y: float, says: str) -> str:
    return f'<path class="mark" style="fill:{colour}" transform="translate({x},{y})" d="{shape}"><title>{html.escape(says)}</title></path>'


def _path(places: list[tuple[float, float]]) -> str:
    return "M" + "L".join([f"{x},{y}" for x, y in places]) if len(places) > 0 else ""


def _to_gib(num_bytes: int) -> float:
    return max(num_bytes, 1) / (1 << 30)


def _nice_step(count: int) -> int:
    """1, 2 or 5 times a power of ten, at most six of which are in ``count``."""
    magnitude = 1
    while count > 60 * magnitude:
        magnitude *= 10
    return magnitude * min([factor for factor in (1, 2, 5, 10) if count <= 6 * factor * magnitude])


def _short(count: int) -> str:
    for size, unit in ((1_000_000, " M"), (1_000, " k")):
        if count >= size:
            return f"{count / size:g}{unit}"
    return str(count)
