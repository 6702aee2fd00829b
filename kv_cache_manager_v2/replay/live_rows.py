"""The table of a running replay: the numbers of the page's plots, so far."""

from .tally import Tally
from .timeline import TimelinePoint

_BAR_CHARACTERS = 24


def live_rows(point: TimelinePoint, tally: Tally, tiers: list[str], num_requests: int, seconds: float) -> list[tuple[str, str, str]]:
    """Name, value and a bar where the value is a share."""
    done = tally.num_requests_done + tally.num_requests_refused
    rate = tally.num_computed_tokens / seconds if seconds > 0.0 else 0.0
    rows = [
        ("requests", f"{done:,} of {num_requests:,}, {tally.num_requests_running} running", _bar(done / max(num_requests, 1))),
        ("steps", f"{point.step:,}, {rate:,.0f} computed tokens/s", ""),
    ]
    num_tokens = max(point.prompt_tokens, 1)
    for level, tier in enumerate(tiers):
        share = point.hit_tokens[level] / num_tokens
        rows.append((f"hit, {tier}", f"{share:.1%}", _bar(share)))
    for cause, missed in sorted(point.missed_tokens.items(), key=_negative_tokens):
        share = missed / num_tokens
        rows.append((f"missed, {cause}", f"{share:.1%}", _bar(share)))
    for use in point.slots:
        total = max(use.total, 1)
        text = f"{use.needed / total:.0%} needed, {use.kept / total:.0%} kept of {use.total:,}"
        rows.append((f"{use.tier}, pool group {use.pool_group}", text, _bar(use.needed / total, use.kept / total)))
    for reason, pages in point.dropped_pages.items():
        rows.append((f"dropped, {reason.name.lower().replace('_', ' ')}", f"{pages:,} pages", ""))
    rows.append(("preempted", f"{tally.num_preemptions:,} suspended, {tally.num_restarts:,} restarted", ""))
    return rows


def _negative_tokens(item: tuple[object, int]) -> int:
    return -item[1]


def _bar(share: float, further: float = 0.0) -> str:
    """A bar: filled for the first share, hatched for the second."""
    filled = round(share * _BAR_CHARACTERS)
    hatched = round((share + further) * _BAR_CHARACTERS) - filled
    return "#" * filled + "/" * hatched + "." * (_BAR_CHARACTERS - filled - hatched)
