"""Estimated hit rates as gauges, by size of a tier and policy; a size whose hit rate is not known has no sample."""

from typing import Final

from ..stats.hit_rate_curve import HitRateCurve
from .metric_samples import GAUGE, MetricSamples

RECENCY: Final = "recency"


def sample_curves(curves: list[HitRateCurve], tiers: list[str]) -> MetricSamples:
    metric = MetricSamples(
        "estimated_hit_ratio", GAUGE, "Estimated hit rate so far at a size relative to the present one, by policy",
        ("tier", "size", "policy"),
    )  # fmt: skip
    for curve in curves:
        policy = RECENCY if curve.policy is None else curve.policy.value
        for point in curve.points:
            if point.hit_rate is not None:
                metric.add((tiers[curve.level], f"{point.size:g}", policy), point.hit_rate)
    return metric
