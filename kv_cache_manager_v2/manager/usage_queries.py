"""What the cache has done so far, in numbers: the part of `KVCacheManager` that statistics are asked of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, SupportsIndex

from mypy_extensions import mypyc_attr

from ..base.checks import to_int
from ..base.errors import LogicError
from ..sequence.hit_rate_estimate import estimate_hit_rates
from ..sequence.usage_books import UsageBooks
from ..stats.hit_rate_curve import HitRateCurve
from ..stats.usage_snapshot import UsageSnapshot, compute_usage
from ..stats.usage_statistics import UsageStatistics
from ..storage.page_storage import PageStorage
from .model_queries import ModelQueries

DEFAULT_SIZES: Final = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
MAX_SIZE: Final = 1024


@mypyc_attr(native_class=True)
class UsageQueries(ModelQueries):
    """Base of `KVCacheManager`, which sets the attributes."""

    __slots__ = ("_usage", "_iteration")

    _usage: UsageBooks | None
    """None with ``enable_stats=False``."""
    _iteration: UsageSnapshot | None
    """The counters when `get_iteration_statistics` was last asked."""

    def get_statistics(self) -> UsageStatistics:
        """Everything since the manager was made. `LogicError` with ``enable_stats=False``.

        Cheap enough for every step, but a value of its own each time. Sequences that were made with
        ``count_in_statistics=False`` are left out of all but transfers, drops and slots.
        """
        guard = self._shared.guard
        guard.enter()
        try:
            usage = self._require_usage()
            storage = self._shared.storage
            peaks = _by_level(storage, [int(allocator.total_peak) for allocator in storage.allocators])
            return compute_usage(usage.total, None, storage.pool_group_of, usage.total.peak_pages, peaks)
        finally:
            guard.leave()

    def get_iteration_statistics(self) -> UsageStatistics:
        """Everything since this was last called, or since the manager was made; the next iteration begins here.

        Peaks are those of the iteration. `LogicError` with ``enable_stats=False``.
        """
        guard = self._shared.guard
        guard.enter()
        try:
            usage = self._require_usage()
            storage = self._shared.storage
            peaks = _by_level(storage, [int(allocator.take_peak()) for allocator in storage.allocators])
            found = compute_usage(usage.total, self._iteration, storage.pool_group_of, usage.take_peak_pages(), peaks)
            self._iteration = UsageSnapshot(usage.total)
            return found
        finally:
            guard.leave()

    def get_hit_rate_curve(self, level: SupportsIndex = 0, sizes: Sequence[float] = DEFAULT_SIZES) -> HitRateCurve:
        """What the hit rate would have been so far, had that tier been another size; ``sizes`` in present ones.

        `LogicError` with ``enable_stats=False`` or ``miss_ratio_sampling=0``.
        """
        guard = self._shared.guard
        guard.enter()
        try:
            usage = self._require_usage()
            number = to_int(level, "level")
            if not 0 <= number < len(self._config.cache_tiers):
                raise ValueError(f"level is {number}; there are {len(self._config.cache_tiers)} cache levels")
            for size in sizes:
                if not 0 < size <= MAX_SIZE:
                    raise ValueError(f"a size is {size}; sizes are over 0 and at most {MAX_SIZE} times the present one")
            return estimate_hit_rates(self._shared.tree, usage.total, number, [float(size) for size in sizes])
        finally:
            guard.leave()

    def _require_usage(self) -> UsageBooks:
        self._require_open()
        usage = self._usage
        if usage is None:
            raise LogicError("this manager keeps no statistics; make it with enable_stats=True")
        return usage


def _by_level(storage: PageStorage, figures: list[int]) -> tuple[tuple[int, ...], ...]:
    """Of each level, a figure for each pool group."""
    width = int(storage.num_pool_groups)
    return tuple([tuple(figures[begin : begin + width]) for begin in range(0, len(figures), width)])
