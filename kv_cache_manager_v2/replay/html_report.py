"""A replay's report as one self-contained page: figures, plots and how to read them.

Importing this module needs plotly (extra ``report``), whose script is in the page, so it opens without a network, on a phone too.
"""

import html
import os
from datetime import datetime
from typing import Any, Final

import plotly.offline  # type: ignore[import-untyped]

from .other_sizes import MeasuredCurve
from .plots import plot_drops, plot_hit_rates, plot_hits, plot_latencies, plot_memory
from .report import ReplayReport
from .report_rows import figure_rows, tier_tables
from .timeline import TimelinePoint

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 0 1rem 3rem; color: #111; background: #fff }
h1, p { overflow-wrap: anywhere } h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2.5rem }
table { border-collapse: collapse; width: 100% } td { border-bottom: 1px solid #ccc; padding: .2rem .5rem; vertical-align: top }
td:first-child { font-weight: 600; white-space: nowrap } td { overflow-wrap: anywhere }
.plot { width: 100% }
"""


def make_html(
    report: ReplayReport, points: list[TimelinePoint], tiers: list[str], curves: list[MeasuredCurve], command: str
) -> str:
    """``curves``: of each tier, then of other policies; empty: the page says that nothing was served again."""
    name = os.path.basename(report.workload)  # of a trace, its path
    title = html.escape(f"Replay of {name}: {report.hit_rate:.1%} of the prompt tokens were reused")
    parts = [
        "<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">', '<link rel="icon" href="data:,">',
        f"<title>{title}</title><style>{_STYLE}</style>",
        f"<script>{plotly.offline.get_plotlyjs()}</script></head><body><h1>{title}</h1>",
        f"<p>{html.escape(datetime.now().astimezone().strftime('%Y-%m-%d %H:%M %z'))}: <code>{html.escape(command)}</code></p>",
        _figures(report),
    ]  # fmt: skip
    parts += [_table(table) for table in tier_tables(report)]
    parts += _section(
        "Hits and misses", "hits",
        "Each bar is a stretch of the run, as wide as the prompts in it; each request counts once, when it is first admitted. From "
        "the bottom: tokens found in the cache, by tier; above, tokens that were not, by cause. <i>New</i> ones (plain, white) "
        "no cache can have; <i>forgotten</i> ones were here so long ago that the manager has no record of them. The table above "
        "says what each cause means and what helps. The line is the hit rate so far.",
        plot_hits(points, tiers),
    )  # fmt: skip
    if len(curves) > 0:
        parts += _section(
            "What more or less memory would bring", "curve",
            "The same requests, served again with another size of one tier; nothing is estimated. Grey: all tiers under another "
            f"eviction policy, at their present sizes. {_describe_gaps(curves, tiers)}Where the line is steep to the right of 1, "
            "memory pays; where it is flat, it does not, or another pool group is the narrow one: look for <i>window broken</i> "
            "and <i>no snapshot</i> above, and try <code>--pool-ratio</code>.",
            plot_hit_rates(curves, tiers),
        )  # fmt: skip
    else:
        parts.append(
            "<h2>What more or less memory would bring</h2><p>Not known: the run was cut short, or nothing was served, and one size says "
            "nothing of others.</p>"
        )
    parts += _section(
        "Memory", "memory",
        "Slots of each pool group and tier. Hatched: needed by sequences, running or suspended. Plain: kept for reuse, "
        "evicted when slots are needed. White: free.",
        plot_memory(points),
    )  # fmt: skip
    parts += _section(
        "Evictions", "drops",
        "Pages that were dropped in each stretch, for 1,000 prompt tokens. <i>Capacity</i>: evicted. "
        "<i>Unreachable</i>: the block before them was evicted. <i>Superseded</i>: a fuller block has the same tokens.",
        plot_drops(points),
    )  # fmt: skip
    parts += _section(
        "Calls", "calls", "How long the manager's calls took; the axis is logarithmic, the number of calls is in brackets.",
        plot_latencies(report),
    )  # fmt: skip
    parts.append("</body></html>")
    return "\n".join(parts)


def _describe_gaps(curves: list[MeasuredCurve], tiers: list[str]) -> str:
    """Sentences about points that could not be measured, or are odd; each ends with a blank. Empty if there are none."""
    sentences: list[str] = []
    for curve in curves:
        what = f"eviction by {curve.policy.value}" if curve.policy is not None else f"the {tiers[curve.level]} tier"
        for rate in curve.rates:
            if rate.note != "":
                sentences.append(f"{html.escape(what)} at {rate.size:g}x: {html.escape(rate.note)}. ")
    return "".join(sentences)


def _figures(report: ReplayReport) -> str:
    rows = [f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>" for name, value in figure_rows(report)]
    return f"<table>{''.join(rows)}</table>"


def _table(rows: list[tuple[str, ...]]) -> str:
    lines: list[str] = []
    for row in rows:
        cells = "".join([f"<td>{html.escape(cell)}</td>" for cell in row])
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _section(heading: str, name: str, text: str, figure: Any) -> list[str]:
    plot: str = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=f"plot-{name}", default_width="100%",
        config={"responsive": True, "displayModeBar": False},
    )  # fmt: skip
    return [f"<h2>{heading}</h2><p>{text}</p>", f'<div class="plot">{plot}</div>']
