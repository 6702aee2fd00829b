"""A report in words: the rows of its tables."""

from typing import TypeAlias

from .prompt_misses import MISS_MEANINGS
from .report import PoolGroupFigures, ReplayReport
from .tier_figures import TIER_HEADER, TRANSFER_HEADER, tier_rows, transfer_rows

Row: TypeAlias = tuple[str, str]

CALL_HEADER = ("call", "count", "total s", "mean us", "p50 us", "p99 us", "max us")
POOL_GROUP_HEADER = ("pool group", "slot bytes", "slots", "peak slots", "peak", "evicted pages")
LAYER_GROUP_HEADER = ("layer group", "window", "layers", "peak slots in use")


def figure_rows(report: ReplayReport) -> list[Row]:
    """Everything that is one number."""
    done = f"{report.requests:,}"
    if report.interrupted:
        done += " (interrupted)"
    rows: list[Row] = [
        ("workload", report.workload),
        *[("note", note) for note in report.notes],
        ("model", f"{report.model}, 1/{report.shrink} of its bytes" if report.shrink > 1 else report.model),
        ("memory", f"{format_bytes(report.memory_bytes)}, {report.tokens_per_block} tokens per block"),
        ("pool groups", _describe_split(report)),
        ("scratch slots", "on" if report.scratch else "off"),
        (
            "served with",
            f"{report.max_running:,} running at most, {report.token_budget:,} inputs a step, chunks of {report.chunk_tokens:,}",
        ),
        ("device", f"{report.device}, {'compiled' if report.compiled else 'interpreted'}, version {report.version}"),
        ("requests", done),
        ("prompt tokens", f"{report.prompt_tokens:,}"),
        ("hit tokens", f"{report.hit_tokens:,}"),
        ("hit rate", _describe_hits(report)),
        ("missed tokens", f"{sum(list(report.missed_tokens.values())):,}"),
        *_miss_rows(report.missed_tokens),
        ("generated tokens", f"{report.generated_tokens:,}"),
        ("computed tokens", f"{report.computed_tokens:,} in {report.steps:,} steps"),
        ("bytes", report.verdict),
        ("preemptions", f"{report.preemptions:,} suspended, {report.restarts:,} restarted"),
        ("refusals", f"{report.refusals:,} calls, {report.requests_refused:,} requests"),
        ("evicted pages", f"{report.evicted_pages:,}"),
        ("wall time", f"{report.wall_seconds:.2f} s: {report.tokens_per_second:,.0f} tokens/s computed, {_reused_per_second(report)}"),
        ("in manager calls", f"{report.manager_seconds:.2f} s"),
    ]
    if report.forced_preemptions > 0:
        rows.append(("forced", f"{report.forced_preemptions:,} suspended by --preempt"))
    if report.skipped_lines > 0:
        rows.append(("skipped lines", f"{report.skipped_lines:,}"))
    if report.invariants_checked:
        rows.append(("invariants", "hold after every step" if report.failure is None else report.failure))
    rows += _service_rows(report)
    for text in report.first_mismatches[:3]:
        rows.append(("mismatch", text))
    return rows


def _describe_hits(report: ReplayReport) -> str:
    text = f"{report.hit_rate:.2%} of {report.reusable_rate:.2%} possible"
    if report.restored_pages == 0:
        return text
    return f"{text} within this run, and more with the {report.restored_pages:,} pages that were restored"


def _service_rows(report: ReplayReport) -> list[Row]:
    """How long requests waited in simulated time."""
    service = report.service
    if service is None:
        return []
    rows = [("arrivals", f"recorded: {service['simulated_seconds']:,.1f} s of simulated time, a step takes {service['step_time']}")]
    for name, key in (("waiting", "waiting_ms"), ("first token", "first_token_ms"), ("between tokens", "between_tokens_ms")):
        if len(service[key]) > 0:
            rows.append((name, ", ".join([f"{what} {milliseconds:,.1f} ms" for what, milliseconds in service[key].items()])))
    return rows


def _describe_split(report: ReplayReport) -> str:
    """How the pool groups share the memory."""
    if len(report.pool_groups) == 1:
        return "one, which has all the memory"
    begin = "the manager's default split"
    if report.pool_ratio is not None:
        begin = f"split {':'.join([f'{share:g}' for share in report.pool_ratio])}"
    if report.adjustments is None:
        return f"{begin}, kept"
    return f"{begin}, adjusted {report.adjustments:,} times while serving"


def _miss_rows(missed_tokens: dict[str, int]) -> list[Row]:
    """Each cause with its share of all missed tokens and what it means, the largest first."""
    total = sum(list(missed_tokens.values()))
    largest_first = sorted([(-tokens, cause) for cause, tokens in missed_tokens.items() if tokens > 0])
    return [(f"  {cause}", f"{-tokens / total:.1%}, {-tokens:,}: {MISS_MEANINGS[cause]}") for tokens, cause in largest_first]


def _reused_per_second(report: ReplayReport) -> str:
    rate = report.hit_tokens / report.wall_seconds if report.wall_seconds > 0.0 else 0.0
    return f"{rate:,.0f} reused"


def call_rows(report: ReplayReport) -> list[tuple[str, ...]]:
    """They add up to the wall time."""
    rows: list[tuple[str, ...]] = [
        (
            figures.name, f"{figures.count:,}", f"{figures.total_seconds:.3f}", f"{figures.mean_us:.2f}",
            f"{figures.p50_us:.2f}", f"{figures.p99_us:.2f}", f"{figures.max_us:.2f}",
        )
        for figures in report.calls
    ]  # fmt: skip
    rows.append(("the replay itself", "", f"{report.wall_seconds - report.manager_seconds:.3f}", "", "", "", ""))
    return rows


def pool_group_rows(report: ReplayReport) -> list[tuple[str, ...]]:
    return [
        (
            str(index), " + ".join([str(size) for size in group.slot_bytes]), f"{group.total_slots:,}",
            f"{group.peak_slots:,}", _peak_share(group), f"{group.evicted_pages:,}",
        )
        for index, group in enumerate(report.pool_groups)
    ]  # fmt: skip


def _peak_share(group: PoolGroupFigures) -> str:
    """Of the slots at the end; a dash where there were more slots before an adjustment."""
    return f"{group.peak_slots / max(group.total_slots, 1):.0%}" if group.peak_slots <= group.total_slots else "-"


def layer_group_rows(report: ReplayReport) -> list[tuple[str, ...]]:
    return [
        (
            str(index), "-" if group.window_size is None else f"{group.window_size:,}", f"{group.num_layers:,}",
            f"{group.peak_slots:,}",
        )
        for index, group in enumerate(report.layer_groups)
    ]  # fmt: skip


def tier_tables(report: ReplayReport) -> list[list[tuple[str, ...]]]:
    """Tables with their headers: the levels, and what went from one to another. None where there is one level only."""
    if len(report.tiers) == 1:
        return []
    return [[TIER_HEADER, *tier_rows(report.tiers)], [TRANSFER_HEADER, *transfer_rows(report.tiers, report.transfers)]]


def format_bytes(num_bytes: int) -> str:
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024.0:
            return f"{num_bytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024.0
    return f"{value:.1f} PiB"


def plain_report(report: ReplayReport) -> str:
    """Aligned columns without any library."""
    lines = aligned([list(row) for row in figure_rows(report)])
    lines.append("")
    lines.extend(aligned([list(POOL_GROUP_HEADER), *[list(row) for row in pool_group_rows(report)]]))
    for table in tier_tables(report):
        lines.append("")
        lines.extend(aligned([list(row) for row in table]))
    lines.append("")
    lines.extend(aligned([list(LAYER_GROUP_HEADER), *[list(row) for row in layer_group_rows(report)]]))
    lines.append("")
    lines.extend(aligned([list(CALL_HEADER), *[list(row) for row in call_rows(report)]]))
    return "\n".join(lines) + "\n"


def aligned(rows: list[list[str]]) -> list[str]:
    """The rows as lines, each column as wide as its widest cell."""
    widths = [max([len(row[column]) for row in rows]) for column in range(len(rows[0]))]
    lines: list[str] = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        # Words on the left, numbers on the right: a table of two columns has words in both.
        for column in range(1, len(row)):
            cells.append(row[column] if len(row) == 2 else row[column].rjust(widths[column]))
        lines.append("  ".join(cells).rstrip())
    return lines
