"""What a replay's report says first: what was hit, what that saved, and what would help most."""

from typing import Final

from .other_sizes import MeasuredCurve
from .prompt_misses import FORGOTTEN
from .report import ReplayReport
from .report_rows import format_bytes

_WORTH_SAYING: Final = 0.01
"""Of all prompt tokens."""
_SPLIT_CAUSES: Final = ("window broken", "no snapshot", "shrunk")
_MEMORY_CAUSES: Final = ("evicted", "unreachable", FORGOTTEN)


def summarise(report: ReplayReport, curves: list[MeasuredCurve]) -> list[str]:
    """Three sentences. ``curves``: what was measured at other sizes and under other policies; may be empty."""
    num_missed = report.prompt_tokens - report.hit_tokens
    saved = f"{report.prompt_tokens / num_missed:.1f} times fewer" if num_missed > 0 else "none were left"
    return [
        f"{report.hit_rate:.1%} of {report.prompt_tokens:,} prompt tokens were found in the cache, of {report.reusable_rate:.1%} that "
        "repeat an earlier prompt or answer.",
        f"That saved the model {report.hit_tokens:,} prompt tokens: it computed {num_missed:,} in place of {report.prompt_tokens:,} "
        f"({saved}).",
        f"What would help most: {_advise(report, curves)}",
    ]  # fmt: skip


def _advise(report: ReplayReport, curves: list[MeasuredCurve]) -> str:
    """The largest of what was measured and of what the causes of misses leave open; nothing, if that is under a hundredth."""
    tokens = max(report.prompt_tokens, 1)
    split = sum([report.missed_tokens.get(cause, 0) for cause in _SPLIT_CAUSES]) / tokens
    memory = sum([report.missed_tokens.get(cause, 0) for cause in _MEMORY_CAUSES]) / tokens
    offers: list[tuple[float, str]] = []
    if len(report.pool_groups) > 1:
        offers.append((
            split, f"another split of the memory between the pool groups (--pool-ratio): {split:.1%} of the prompt tokens were cached, "
            "and missed for pages of one group alone.",
        ))  # fmt: skip
    is_measured = False
    for curve in curves:
        for rate in curve.rates:
            gain = (rate.hit_rate or 0.0) - report.hit_rate
            if curve.policy is not None:
                offers.append((gain, f"eviction by {curve.policy.value}: {rate.hit_rate or 0.0:.1%} would be found."))
            elif rate.size > 1.0 and rate.hit_rate is not None:
                is_measured = True
                tier = report.tiers[curve.level]
                size = format_bytes(int(tier.quota_bytes * rate.size))
                # Among sizes that bring nearly the same the smallest: each doubling must bring a hundredth for itself.
                net_gain = gain - _WORTH_SAYING * (rate.size - 1.0) / 2
                offers.append((net_gain, f"more memory: {rate.hit_rate:.1%} would be found with {size} of {tier.tier} memory."))
    if not is_measured:
        offers.append((memory, f"more memory, perhaps: {memory:.1%} of the prompt tokens were evicted before they were asked for again."))
    gain, advice = max(offers, key=_gain_of)
    if gain >= _WORTH_SAYING:
        return advice
    return f"nothing that was {'measured' if is_measured else 'seen'} here brings one prompt token in a hundred."


def _gain_of(offer: tuple[float, str]) -> float:
    return offer[0]
