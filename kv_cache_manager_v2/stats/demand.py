"""The running mean of slots that sequences need of each pool group: the mix by which a quota should be divided."""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

_SCALE_BITS: Final = 16


@final
class Demand:
    """Running means in fixed point, so that equal calls make equal decisions everywhere."""

    __slots__ = ("num_samples", "_means", "_weight")

    def __init__(self, num_pool_groups: int, smoothing: float) -> None:
        """``smoothing``: the weight of one sample, above 0 and at most 1."""
        self.num_samples: i64 = 0
        """Samples since the start, or since `restart`."""
        self._means = vec[i64]([0] * num_pool_groups)
        weight = int(smoothing * (1 << _SCALE_BITS))
        self._weight: Final[i64] = weight if weight > 0 else 1

    def add(self, pool_group: i64, num_slots: i64) -> None:
        """Add to the present sample's need of a pool group; `end_sample` follows the last one."""
        value = num_slots << _SCALE_BITS
        mean = self._means[pool_group]
        if self.num_samples == 0:
            self._means[pool_group] = value
        else:
            self._means[pool_group] = mean + (((value - mean) * self._weight) >> _SCALE_BITS)

    def end_sample(self) -> None:
        self.num_samples += 1

    def restart(self) -> None:
        """Count samples from 0 again, for the next adjustment; the means stay."""
        self.num_samples = 1 if self.num_samples > 0 else 0

    def weights(self, slot_bytes: list[int]) -> list[int]:
        """Shares of the bytes by pool group; none is 0."""
        return [max(1, int(mean) * num_bytes >> _SCALE_BITS) for mean, num_bytes in zip(self._means, slot_bytes)]
