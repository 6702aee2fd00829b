"""When to divide a level's quota between the pool groups anew, and by what."""

from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from .config_value import ConfigValue, take_float, take_int, take_share


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class RebalanceConfig(ConfigValue):
    """The thresholds of `KVCacheManager.need_adjustment`.

    - ``threshold``: the missing share of a pool group's slots that calls for an adjustment.
    - ``cool_down_seconds``: of `advance_clock`, between two adjustments.
    - ``min_samples``: samples of the mix needed before an adjustment; every sequence takes one with its first `resize` that succeeds.
    - ``smoothing``: the weight of one sample in the running mean, above 0 and at most 1.
    """

    threshold: float = 0.1
    cool_down_seconds: float = 60.0
    min_samples: int = 64
    smoothing: float = 0.02

    def __post_init__(self) -> None:
        take_share(self, "threshold", "RebalanceConfig.threshold")
        take_float(self, "cool_down_seconds", "RebalanceConfig.cool_down_seconds", 0, 1e9)
        take_int(self, "min_samples", "RebalanceConfig.min_samples", 1)
        take_share(self, "smoothing", "RebalanceConfig.smoothing")
