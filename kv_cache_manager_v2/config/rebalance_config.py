"""When the pool groups of the levels should share their quota anew."""

from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from .config_value import ConfigValue, take_float, take_int, take_share


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class RebalanceConfig(ConfigValue):
    """What `KVCacheManager.need_adjustment` goes by.

    - ``threshold``: the share of a pool group's slots that it must have too few of.
    - ``cool_down_seconds``: of `advance_clock` between two adjustments.
    - ``min_samples``: how often the mix must have been looked at before; every `create_kv_cache` looks.
    - ``smoothing``: the weight of one look at the mix in the running mean, more than 0 and at most 1.
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
