"""The statistics of one manager: its usage recorder, and where the present iteration began."""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64


from ..base.errors import LogicError
from ..sequence.call_guard import SnapshotPublisher
from ..sequence.sequence_state import ACTIVE
from ..sequence.shared_state import SharedState
from ..sequence.usage_recorder import UsageRecorder
from ..stats.block_times import BlockTimes
from ..stats.guarded_clock import GuardedClock
from ..stats.manager_snapshot import ManagerSnapshot
from ..stats.statistics_clock import StatisticsClock
from ..stats.storage_statistics import StorageStatistics
from ..stats.usage_counters import UsageCounters
from ..stats.usage_snapshot import UsageSnapshot, compute_usage
from ..stats.usage_statistics import UsageStatistics
from .open_sequences import OpenSequences


@final
class UsageReports(SnapshotPublisher):
    __slots__ = ("recorder", "published", "_shared", "_open_sequences", "_iteration")

    def __init__(self, shared: SharedState, open_sequences: OpenSequences, recorder: UsageRecorder | None) -> None:
        self.recorder: Final = recorder
        """None with ``enable_stats=False``."""
        self._shared: Final = shared
        self._open_sequences: Final = open_sequences
        self._iteration: UsageSnapshot | None = None
        """The counters when `take_iteration` was last called."""
        self.published: ManagerSnapshot = self.take_snapshot()
        """The latest snapshot, for threads that find the manager busy."""

    def publish(self) -> None:
        self.published = self.take_snapshot()

    def take_snapshot(self) -> ManagerSnapshot:
        usage = None if self.recorder is None else self.total()
        levels = [self.slots(level) for level in range(int(self._shared.storage.num_levels))]
        states = self._open_sequences.states()
        num_active = sum([int(state.status == ACTIVE) for state in states])
        return ManagerSnapshot(usage, levels, num_active, len(states) - num_active)

    def require(self) -> UsageRecorder:
        """`LogicError` with ``enable_stats=False``."""
        if self.recorder is None:
            raise LogicError("this manager keeps no statistics; make it with enable_stats=True")
        return self.recorder

    def total(self) -> UsageStatistics:
        total = self.require().total
        return self._compute(total, None, total.peak_pages, [allocator.total_peak for allocator in self._shared.storage.allocators])

    def take_iteration(self) -> UsageStatistics:
        """Since the last time; the next iteration begins here."""
        total = self.require().total
        peak_slots = [allocator.take_peak() for allocator in self._shared.storage.allocators]
        found = self._compute(total, self._iteration, total.take_recent_peaks(), peak_slots)
        self._iteration = UsageSnapshot(total)
        return found

    def record_block_times(self, clock: object) -> BlockTimes | None:
        """None if no block is sampled; called again, what is there."""
        self.require()
        if not isinstance(clock, StatisticsClock):
            raise TypeError(f"clock must be a StatisticsClock, not {type(clock).__name__}")
        history = self._shared.tree.history
        if history is not None and history.times is None and history.sampling > 0.0:
            history.times = BlockTimes(GuardedClock(clock))
        return None if history is None else history.times

    def slots(self, level: int) -> list[StorageStatistics]:
        """How many slots of the level are free, could be freed, and must stay: one entry per pool group."""
        storage = self._shared.storage
        num_pool_groups = int(storage.num_pool_groups)
        found: list[StorageStatistics] = []
        durable = storage.durable if storage.durable is not None and storage.durable.index == level else None
        for pool_group in range(num_pool_groups):
            index = level * num_pool_groups + pool_group
            group = None if durable is None else durable.groups[pool_group]
            allocator = storage.allocators[index]
            free = int(allocator.num_free)
            evictable = int(storage.queues[index].num_pages + storage.held_queues[index].num_pages)
            total = int(allocator.num_slots)
            found.append(
                StorageStatistics(
                    slot_sizes=storage.layout.slot_bytes(pool_group, level),
                    total=total,
                    free=free,
                    evictable=evictable,
                    available=free + evictable,
                    unavailable=total - free - evictable,
                    peak_used=int(allocator.total_peak),
                    evicted=int(storage.num_evicted[index]),
                    clean_copies=int(allocator.num_aside),
                    refusals=int(storage.num_refusals[index]),
                    is_closed=storage.closed.has_failed(level),
                    restored_pages=0 if group is None else int(group.num_restored),
                    damaged_pages=0 if group is None else int(group.num_damaged),
                    has_durable_failure=durable is not None and durable.writer.failure != "",
                    dropped_handles=self._shared.guard.num_abandoned,
                )
            )
        return found

    def _compute(self, total: UsageCounters, since: UsageSnapshot | None, peak_pages: vec[i64], peak_slots: list[i64]) -> UsageStatistics:
        """``peak_slots``: by level and pool group."""
        storage = self._shared.storage
        figures = [int(peak) for peak in peak_slots]
        width = int(storage.num_pool_groups)
        by_level = tuple([tuple(figures[begin : begin + width]) for begin in range(0, len(figures), width)])
        return compute_usage(total, since, storage.pool_group_of, peak_pages, by_level)
