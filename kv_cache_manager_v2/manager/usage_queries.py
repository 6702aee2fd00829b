"""What the cache has done so far, in numbers: the part of `KVCacheManager` that statistics are asked of."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from ..base.errors import LogicError
from ..sequence.usage_books import UsageBooks
from ..stats.usage_snapshot import UsageSnapshot, compute_usage
from ..stats.usage_statistics import UsageStatistics
from .model_queries import ModelQueries


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
            peaks = tuple([tuple([int(group.allocator.total_peak) for group in storage.pool_groups])])
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
            peaks = tuple([tuple([int(group.allocator.take_peak()) for group in storage.pool_groups])])
            found = compute_usage(usage.total, self._iteration, storage.pool_group_of, usage.take_peak_pages(), peaks)
            self._iteration = UsageSnapshot(usage.total)
            return found
        finally:
            guard.leave()

    def _require_usage(self) -> UsageBooks:
        self._require_open()
        usage = self._usage
        if usage is None:
            raise LogicError("this manager keeps no statistics; make it with enable_stats=True")
        return usage
