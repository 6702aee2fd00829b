"""When the pool groups of the levels should share their quota anew."""

from dataclasses import dataclass

from .config_value import ConfigValue, validate_int, validate_share


@dataclass(frozen=True)
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
        validate_share(self.threshold, "RebalanceConfig.threshold")
        if isinstance(self.cool_down_seconds, bool) or not isinstance(self.cool_down_seconds, (int, float)):
            raise TypeError(f"RebalanceConfig.cool_down_seconds must be a number, not {type(self.cool_down_seconds).__name__}")
        if not 0 <= self.cool_down_seconds < 1e9:
            raise ValueError(f"RebalanceConfig.cool_down_seconds is {self.cool_down_seconds}; it must be from 0 to 1e9")
        validate_int(self.min_samples, "RebalanceConfig.min_samples", 1)
        validate_share(self.smoothing, "RebalanceConfig.smoothing")
