"""The effect of more or less memory, or of another eviction policy: measured by serving the same requests again.

Nothing is estimated. Windows, recurrent states, several tiers, the shares of the pool groups and requests that restart for lack of
slots all change with the size in ways that an estimate from one run cannot know. Serving again checks no bytes, so it takes
only the time of the manager's calls and the scheduler, also if the first run verified every byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from .. import EvictionPolicy
from .console import Console
from .plan import ReplayPlan
from .replayer import PlanError, run_replay
from .report import ReplayReport

DEFAULT_SIZES: Final[Sequence[float]] = (0.25, 0.5, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class MeasuredRate:
    """A measured rate. ``hit_rate`` is that of a report; None: that size cannot be served, or Ctrl-C came before."""

    size: float
    """Of the tier, relative to the present one."""
    hit_rate: float | None
    note: str = ""
    """Why there is no hit rate, or what is odd about it."""


@dataclass(frozen=True)
class MeasuredCurve:
    """One tier at several sizes; or, with ``policy``, all tiers under it at their present sizes."""

    level: int
    policy: EvictionPolicy | None
    rates: tuple[MeasuredRate, ...]


def with_size(plan: ReplayPlan, gpu_bytes: int, level: int, size: float) -> ReplayPlan:
    """The plan with that tier ``size`` times as large. ``gpu_bytes``: the quota of level 0, which the plan may leave open."""
    tiers = plan.lower_tiers
    if level == 0:
        gpu_bytes = int(gpu_bytes * size)
    else:
        tier = tiers[level - 1]
        tiers = (*tiers[: level - 1], replace(tier, num_bytes=int(tier.num_bytes * size)), *tiers[level:])
    return replace(plan, memory_bytes=gpu_bytes, lower_tiers=tiers, verify=False, check_invariants=False, device="none")


def serve_other_sizes(
    plan: ReplayPlan, report: ReplayReport, console: Console, sizes: Sequence[float] = DEFAULT_SIZES
) -> list[MeasuredCurve]:
    """Serve each tier at each of ``sizes``, and every other eviction policy; ``report`` is the plan's own. Ctrl-C ends it early."""
    gpu_bytes = report.memory_bytes
    present = MeasuredRate(1.0, report.hit_rate)
    policies = [policy for policy in EvictionPolicy if policy is not plan.eviction_policy]
    others = sorted(set([size for size in sizes if size != 1.0]))
    num_runs = len(report.tiers) * len(others) + len(policies)
    num_done = 0
    is_interrupted = False
    curves: list[MeasuredCurve] = []
    for level, tier in enumerate(report.tiers):
        rates = [present]
        for size in others:
            num_done += 1
            text = f"serving again, {num_done} of {num_runs}: {size:g} times the {tier.tier} tier"
            other = with_size(plan, gpu_bytes, level, size)
            rate = _measure(other, report, size, console, text, is_interrupted)
            is_interrupted = is_interrupted or rate.note == _INTERRUPTED
            rates.append(rate)
        rates.sort(key=_size_of)
        curves.append(MeasuredCurve(level, None, tuple(rates)))
    for policy in policies:
        num_done += 1
        text = f"serving again, {num_done} of {num_runs}: eviction by {policy.value}"
        other = replace(with_size(plan, gpu_bytes, 0, 1.0), eviction_policy=policy)
        rate = _measure(other, report, 1.0, console, text, is_interrupted)
        is_interrupted = is_interrupted or rate.note == _INTERRUPTED
        curves.append(MeasuredCurve(0, policy, (rate,)))
    return curves


def was_interrupted(curves: Sequence[MeasuredCurve]) -> bool:
    """Whether Ctrl-C came before all sizes were served."""
    return any([rate.note == _INTERRUPTED for curve in curves for rate in curve.rates])


_INTERRUPTED: Final = "not served: Ctrl-C came before"


def _measure(plan: ReplayPlan, present: ReplayReport, size: float, console: Console, text: str, is_interrupted: bool) -> MeasuredRate:
    if is_interrupted:
        return MeasuredRate(size, None, _INTERRUPTED)
    try:
        console.say(text)
        report = run_replay(plan, Console())
    except PlanError as error:
        return MeasuredRate(size, None, str(error))
    except KeyboardInterrupt:
        return MeasuredRate(size, None, _INTERRUPTED)
    if report.interrupted:
        return MeasuredRate(size, None, _INTERRUPTED)
    note = ""
    if report.requests_refused != present.requests_refused:
        note = (
            f"{report.requests_refused:,} requests do not fit even alone and are not counted, beside {present.requests_refused:,} "
            f"at the present size"
        )
    return MeasuredRate(size, report.hit_rate if report.requests > 0 else None, note)


def _size_of(rate: MeasuredRate) -> float:
    return rate.size
