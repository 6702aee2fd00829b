"""What the cache has done so far, in numbers: the part of `KVCacheManager` that statistics are asked of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

from mypy_extensions import mypyc_attr

from ..base.checks import to_int
from ..base.errors import LogicError
from ..base.given import Given
from ..config.eviction_policy import EvictionPolicy
from ..sequence.hit_rate_estimate import estimate_hit_rates, take_reuse_sample
from ..sequence.reuse_sample import DEFAULT_SIZES, ReuseSample, validate_sizes
from ..sequence.usage_recorder import UsageRecorder
from ..stats.block_times import BlockTimes
from ..stats.hit_rate_curve import HitRateCurve
from ..stats.statistics_clock import StatisticsClock
from ..stats.usage_snapshot import UsageSnapshot, compute_usage
from ..stats.usage_statistics import UsageStatistics
from ..storage.page_storage import PageStorage
from ..storage.transfer_times import TransferTimes
from .model_queries import ModelQueries


@mypyc_attr(native_class=True)
class UsageQueries(ModelQueries):
    """Base of `KVCacheManager`, which sets the attributes."""

    __slots__ = ("_usage", "_iteration")

    _usage: UsageRecorder | None
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

    def get_hit_rate_curve(
        self, level: SupportsIndex = 0, sizes: Sequence[float] = DEFAULT_SIZES, policy: Given[EvictionPolicy | None] = None
    ) -> HitRateCurve:
        """What the hit rate would have been so far, had that tier been another size; ``sizes`` in present ones.

        ``policy`` None is recency, and costs next to nothing; any other one is played through here and now on the sampled blocks,
        up to 30 ms for each size and 100,000 words of the sample: `get_reuse_sample` lets another thread do it. `LogicError` with
        ``enable_stats=False`` or ``miss_ratio_sampling=0``.
        """
        guard = self._shared.guard
        guard.enter()
        try:
            usage = self._require_usage()
            number = self._require_tier(level)
            wanted = validate_sizes(sizes)
            if policy is not None and not isinstance(policy, EvictionPolicy):
                raise TypeError(f"policy must be an EvictionPolicy or None, not {policy!r}")
            present = self._config.cache_tiers[number].eviction_policy
            if policy is None:
                return estimate_hit_rates(self._shared.tree, usage.total, number, present, wanted)
            return take_reuse_sample(self._shared.tree, usage.total, number, present).estimate(policy, wanted)
        finally:
            guard.leave()

    def get_reuse_sample(self, level: SupportsIndex = 0) -> ReuseSample:
        """What happened to the sampled blocks so far, copied (at most 1 MiB): any thread may play other policies through on it.

        `LogicError` with ``enable_stats=False`` or ``miss_ratio_sampling=0``.
        """
        guard = self._shared.guard
        guard.enter()
        try:
            usage = self._require_usage()
            number = self._require_tier(level)
            present = self._config.cache_tiers[number].eviction_policy
            return take_reuse_sample(self._shared.tree, usage.total, number, present)
        finally:
            guard.leave()

    def record_block_times(self, clock: Given[StatisticsClock]) -> BlockTimes | None:
        """From now on look at the clock when something happens to a sampled block. None with ``miss_ratio_sampling=0``.

        Called again it returns what is there, and the first clock stays. The result is read on the thread that calls the manager.
        `LogicError` with ``enable_stats=False``. No decision depends on it.
        """
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_usage()
            if not isinstance(clock, StatisticsClock):
                raise TypeError(f"clock must be a StatisticsClock, not {type(clock).__name__}")
            history = self._shared.tree.history
            sampler = None if history is None else history.sampler
            if sampler is None:
                return None
            if sampler.times is None:
                sampler.times = BlockTimes(clock)
            return sampler.times
        finally:
            guard.leave()

    def time_transfers(self) -> TransferTimes:
        """From now on time, on the device, what is copied from one level to another. Called again it returns what is there.

        The result is read on the thread that calls the manager. `LogicError` with ``enable_stats=False``. No decision depends on it.
        """
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_usage()
            return self._shared.mover.time_transfers()
        finally:
            guard.leave()

    def _require_tier(self, level: SupportsIndex) -> int:
        number = to_int(level, "level")
        if not 0 <= number < len(self._config.cache_tiers):
            raise ValueError(f"level is {number}; there are {len(self._config.cache_tiers)} cache levels")
        return number

    def _require_usage(self) -> UsageRecorder:
        self._require_open()
        usage = self._usage
        if usage is None:
            raise LogicError("this manager keeps no statistics; make it with enable_stats=True")
        return usage


def _by_level(storage: PageStorage, figures: list[int]) -> tuple[tuple[int, ...], ...]:
    """Of each level, a figure for each pool group."""
    width = int(storage.num_pool_groups)
    return tuple([tuple(figures[begin : begin + width]) for begin in range(0, len(figures), width)])
