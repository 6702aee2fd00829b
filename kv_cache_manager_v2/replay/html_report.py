"""A replay's report as one self-contained page: three sentences, two plots, tables. It needs no script and no network."""

import html
import os
from datetime import datetime
from typing import Final

from .other_sizes import MeasuredCurve
from .plots import Plot, plot_hit_rates, plot_hits
from .report import ReplayReport
from .report_rows import (
    CALL_HEADER,
    LAYER_GROUP_HEADER,
    POOL_GROUP_HEADER,
    call_rows,
    figure_rows,
    layer_group_rows,
    pool_group_rows,
    tier_tables,
)
from .report_summary import summarise
from .timeline import TimelinePoint

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #111; --paper: #fff; --faint: #ccc }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #16181c; --faint: #444 } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 0 1rem 3rem; color: var(--ink);
  background: var(--paper) }
h1, p { overflow-wrap: anywhere } h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2.5rem }
table { border-collapse: collapse; width: 100% } td { border-bottom: 1px solid var(--faint); padding: .2rem .5rem; vertical-align: top }
td { overflow-wrap: anywhere } td:first-child { font-weight: 600; overflow-wrap: normal }
.scroll { overflow-x: auto } .numbers td { white-space: nowrap }
.plot { width: 100%; height: auto; display: block } .plot text { font-size: 14px; fill: var(--ink) }
.grid { stroke: var(--faint) } .hatch { stroke: #000; stroke-width: 1.2 } rect { stroke: var(--ink); stroke-width: .5 }
.line, .halo { fill: none; stroke: var(--ink); stroke-width: 3 } .halo { stroke: var(--paper); stroke-width: 7 }
.mark { stroke: var(--ink); stroke-width: 1.5 }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem }
.legend svg { width: 1.3em; height: 1.3em; vertical-align: -.25em; margin-right: .4em }
@media (max-width: 560px) { .plot text { font-size: 26px } }
"""


def make_html(report: ReplayReport, points: list[TimelinePoint], tiers: list[str], curves: list[MeasuredCurve], command: str) -> str:
    """``curves``: of each tier, then of other policies; empty: the page says that nothing was served again."""
    name = os.path.basename(report.workload)  # of a trace, its path
    title = html.escape(f"Replay of {name}: {report.hit_rate:.1%} of the prompt tokens were reused")
    parts = [
        "<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">', '<link rel="icon" href="data:,">',
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>",
        *[f"<p>{html.escape(sentence)}</p>" for sentence in summarise(report, curves)],
    ]  # fmt: skip
    parts += _section(
        "Hits and misses",
        "Each bar is a stretch of the run, as wide as the prompts in it; each request counts once, when it is first admitted. From "
        "the bottom: tokens found in the cache, by tier; above, tokens that were not, by cause. The table below says what each cause "
        "means and what helps. Across: prompt tokens so far; up: their share.",
        plot_hits(points, tiers),
    )  # fmt: skip
    if len(curves) > 0:
        parts += _section(
            "What more or less memory would bring",
            "The same requests, served again with another size of one tier, and under other eviction policies; nothing is estimated. "
            f"{_describe_gaps(curves, tiers)}Across: GiB of the tier; up: hit rate. Where the line is steep to the right of the star, "
            "memory pays.",
            plot_hit_rates(curves, tiers, [tier.quota_bytes for tier in report.tiers]),
        )  # fmt: skip
    else:
        parts.append(
            "<h2>What more or less memory would bring</h2><p>Not known: the run was cut short, or nothing was served, and one size says "
            "nothing of others.</p>"
        )
    parts.append("<h2>All figures</h2>")
    parts.append(f"<p>{html.escape(datetime.now().astimezone().strftime('%Y-%m-%d %H:%M %z'))}: <code>{html.escape(command)}</code></p>")
    parts.append(_table([tuple(row) for row in figure_rows(report)], ""))
    tables = [[POOL_GROUP_HEADER, *pool_group_rows(report)], *tier_tables(report), [LAYER_GROUP_HEADER, *layer_group_rows(report)]]
    for table in [*tables, [CALL_HEADER, *call_rows(report)]]:
        parts.append(f'<div class="scroll">{_table(table, "numbers")}</div>')
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


def _table(rows: list[tuple[str, ...]], style: str) -> str:
    lines: list[str] = []
    for row in rows:
        cells = "".join([f"<td>{html.escape(cell)}</td>" for cell in row])
        lines.append(f"<tr>{cells}</tr>")
    return f'<table class="{style}">{"".join(lines)}</table>'


def _section(heading: str, text: str, plot: Plot) -> list[str]:
    return [f"<h2>{heading}</h2>", plot.to_html(), f"<p>{text}</p>"]
