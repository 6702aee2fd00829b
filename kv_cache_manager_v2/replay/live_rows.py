"""The table of a running replay: the numbers of the page's plots, so far."""

from .tally import Tally
from .timeline import TimelinePoint

_BAR_CHARACTERS = 24


def live_rows(
    rows: dict[str, tuple[str, str]], point: TimelinePoint, tally: Tally, tiers: list[str], num_requests: int, seconds: float
) -> None:
    """Sets, by name, the value and a bar where it is a share. Rows keep their places: ``rows`` are those of the last table."""
    done = tally.num_requests_done + tally.num_requests_refused
    rate = tally.num_computed_tokens / seconds if seconds > 0.0 else 0.0
    rows["requests"] = (f"{done:,} of {num_requests:,}, {tally.num_requests_running} running", _bar(done / max(num_requests, 1)))
    rows["steps"] = (f"{point.step:,}, {rate:,.0f} computed tokens/s", "")
    rows["preempted"] = (f"{tally.num_preemptions:,} suspended, {tally.num_restarts:,} restarted", "")
    num_tokens = max(point.prompt_tokens, 1)
    for level, tier in enumerate(tiers):
        share = point.hit_tokens[level] / num_tokens
        rows[f"hit, {tier}"] = (f"{share:.1%}", _bar(share))
    for use in point.slots:
        total = max(use.total, 1)
        text = f"{use.needed / total:.0%} needed, {use.kept / total:.0%} kept of {use.total:,}"
        rows[f"{use.tier}, pool group {use.pool_group}"] = (text, _bar(use.needed / total, use.kept / total))
    for cause, missed in point.missed_tokens.items():
        rows[f"missed, {cause}"] = (f"{missed / num_tokens:.1%}", _bar(missed / num_tokens))
    for reason, pages in point.dropped_pages.items():
        rows[f"dropped, {reason.name.lower().replace('_', ' ')}"] = (f"{pages:,} pages", "")


def _bar(share: float, further: float = 0.0) -> str:
    """A bar: filled for the first share, hatched for the second."""
    filled = round(share * _BAR_CHARACTERS)
    hatched = round((share + further) * _BAR_CHARACTERS) - filled
    return "#" * filled + "/" * hatched + "." * (_BAR_CHARACTERS - filled - hatched)
