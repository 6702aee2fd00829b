"""What the engine adds up in each iteration: counts of its sequences since they were last committed, and of the manager since it asked.

A sequence's counts are *pending* until `commit_pending_stats`, and can be discarded; those of excluded ids never count. All come from
the library's own counters; where these count by pool group, the first layer group of the pool group stands for all.
"""

from __future__ import annotations

from typing import Any, Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ...base.ids import CacheTier
from ...events.removal_cause import CAPACITY
from ...sequence.sequence_state import CLOSED, SequenceState
from ...sequence.usage_recorder import count_hits_by_level
from ...stats.drop_reason import NUM_DROP_REASONS
from ...stats.usage_counters import ALLOCATED, GENERATED, MISSED, NUM_BLOCK_COUNTS, REUSED_FULL, REUSED_PARTIAL, REUSED_PLANNED
from ...storage.page_storage import PageStorage
from .statistics_deltas import (
    KVCacheIterationStatsDelta,
    KVCacheStatsDelta,
    PoolGroupPeakBlockStats,
    ReusedBlocksByLevel,
    SsmSnapshotIterationStatsDelta,
)


@final
class RequestCounts:
    """Of one sequence: its block counters when they were last committed."""

    __slots__ = ("state", "id", "is_excluded", "is_reported", "committed")

    def __init__(self, state: SequenceState, sequence_id: Any, is_excluded: bool, is_reported: bool) -> None:
        self.state: Final = state
        self.id = sequence_id
        self.is_excluded: Final = is_excluded
        self.is_reported: Final = is_reported
        """Whether `commit_pending_stats` returns the sequence's own counts."""
        self.committed = vec[i64]([0] * (state.shared.num_life_cycles * NUM_BLOCK_COUNTS))

    def take_pending(self) -> vec[i64]:
        """By layer group and kind of count, what has come since the last time."""
        pending = vec[i64]([0] * len(self.committed))
        counters = self.state.request.counters
        if counters is None:
            return pending
        counts = counters.usage.counts
        for position in range(len(pending)):
            pending[position] = counts[position] - self.committed[position]
            self.committed[position] = counts[position]
        return pending

    @property
    def has_pending(self) -> bool:
        counters = self.state.request.counters
        if counters is None or self.is_excluded:
            return False
        counts = counters.usage.counts
        for position in range(len(self.committed)):
            if counts[position] != self.committed[position]:
                return True
        return False


@final
class StatisticsLedger:
    """Of one manager."""

    __slots__ = (
        "_storage", "_is_enabled", "_tiers", "_state_group", "_tokens_per_block", "_requests", "_committed", "_iteration", "_snapshots",
        "_excluded", "_dirty", "_num_suspended", "_num_resumed", "_num_prefetched", "_cached_tokens", "_reused", "_copied", "_dropped",
        "_peaks",
    )  # fmt: skip

    def __init__(
        self, storage: PageStorage, is_enabled: bool, tiers: list[CacheTier], state_group: int | None, tokens_per_block: int
    ) -> None:
        self._storage: Final = storage
        self._is_enabled: Final = is_enabled
        self._tiers: Final = tiers
        self._state_group: Final = state_group
        """The layer group of recurrent state."""
        self._tokens_per_block: Final = tokens_per_block
        self._requests: Final[dict[int, RequestCounts]] = {}
        """Of open sequences, by serial."""
        self._committed: Final = KVCacheStatsDelta()
        self._iteration: dict[int, KVCacheIterationStatsDelta] = {}
        self._snapshots: dict[int, SsmSnapshotIterationStatsDelta] = {}
        self._excluded: Final[set[Any]] = set()
        self._dirty: Final[set[Any]] = set()
        self._num_suspended = 0
        self._num_resumed = 0
        self._num_prefetched = 0
        self._cached_tokens = vec[i64]([0] * storage.num_levels)
        self._reused: dict[int, ReusedBlocksByLevel] = {}
        self._copied: vec[i64] = storage.counters.copied_pages[:]
        """Copied and dropped pages when the iteration began, as `PageCounters` has them."""
        self._dropped: vec[i64] = storage.counters.dropped_pages[:]
        self._peaks: list[list[int]] = []
        """By level and pool group (free, unavailable, evictable) at the iteration's most unavailable slots."""
        self._reset_peaks()

    # -- ids ----------------------------------------------------------------------------------------------------------

    def exclude(self, sequence_id: Any) -> None:
        self._excluded.add(sequence_id)
        self._dirty.discard(sequence_id)

    def include(self, sequence_id: Any) -> None:
        self._excluded.discard(sequence_id)

    def is_excluded(self, sequence_id: Any) -> bool:
        return sequence_id in self._excluded

    def mark_dirty(self, sequence_id: Any) -> None:
        if sequence_id is not None and sequence_id not in self._excluded:
            self._dirty.add(sequence_id)

    def clear_dirty(self, sequence_id: Any) -> None:
        self._dirty.discard(sequence_id)

    def list_dirty(self) -> set[Any]:
        found = set(self._dirty)
        for serial, request in list(self._requests.items()):
            if request.state.status == CLOSED:
                del self._requests[serial]  # its handle was dropped without close
            elif request.id is not None and request.has_pending and request.id not in self._excluded:
                found.add(request.id)
        return found

    # -- sequences ----------------------------------------------------------------------------------------------------

    def open(self, state: SequenceState, sequence_id: Any, num_lookup_tokens: int, is_reported: bool) -> RequestCounts:
        """The sequence holds what it has matched."""
        is_excluded = sequence_id is not None and sequence_id in self._excluded
        request = RequestCounts(state, sequence_id, is_excluded, is_reported)
        if self._is_enabled and not is_excluded:
            self._requests[state.request.serial] = request
            if state.num_committed > 0:
                count_hits_by_level(state, self._cached_tokens, 0)
                self._count_reused(state)
            if self._state_group is not None and num_lookup_tokens > 0:
                self._count_snapshot(num_lookup_tokens, int(state.recurrent.state_tokens))
        return request

    def close(self, request: RequestCounts) -> None:
        self._requests.pop(request.state.request.serial, None)
        if request.id is not None:
            self._dirty.discard(request.id)

    def commit(self, request: RequestCounts) -> KVCacheStatsDelta:
        """The pending counts of the sequence count from now on."""
        delta = KVCacheStatsDelta()
        pending = request.take_pending()
        if request.id is not None:
            self._dirty.discard(request.id)
        if request.is_excluded or not self._is_enabled:
            return delta
        for group in range(len(pending) // NUM_BLOCK_COUNTS):
            at = group * NUM_BLOCK_COUNTS
            if not any([pending[at + kind] != 0 for kind in range(NUM_BLOCK_COUNTS)]):
                continue
            allocated = int(pending[at + ALLOCATED])
            full = int(pending[at + REUSED_FULL] + pending[at + REUSED_PLANNED])
            partial = int(pending[at + REUSED_PARTIAL])
            missed = int(pending[at + MISSED])
            delta.add(KVCacheStatsDelta(allocated, allocated, full + partial, missed))
            found = self._of_group(group)
            found.iter_alloc_total_blocks += allocated
            found.iter_alloc_new_blocks += allocated
            found.iter_reused_blocks += full + partial
            found.iter_full_reused_blocks += full
            found.iter_partial_reused_blocks += partial
            found.iter_missed_blocks += missed
            found.iter_gen_alloc_blocks += int(pending[at + GENERATED])
        self._committed.add(delta)
        return delta if request.is_reported else KVCacheStatsDelta()

    def discard(self, request: RequestCounts) -> None:
        request.take_pending()
        if request.id is not None:
            self._dirty.discard(request.id)

    def _of_group(self, group: int) -> KVCacheIterationStatsDelta:
        found = self._iteration.get(group)
        if found is None:
            found = KVCacheIterationStatsDelta()
            self._iteration[group] = found
        return found

    def _count_reused(self, state: SequenceState) -> None:
        rows = self._storage.rows
        for group in range(state.shared.num_life_cycles):
            full = [0] * int(self._storage.num_levels)
            partial = [0] * int(self._storage.num_levels)
            for ordinal in range(state.num_blocks):
                if state.holds_page(group, ordinal):
                    level = rows.level(state.blocks[ordinal].first_page + group)
                    if ordinal < state.num_published:
                        full[level] += 1
                    else:
                        partial[level] += 1
            if any(full) or any(partial):
                self._reused.setdefault(group, ReusedBlocksByLevel()).add(ReusedBlocksByLevel(full, partial))

    def _count_snapshot(self, num_lookup_tokens: int, num_reused: int) -> None:
        assert self._state_group is not None, "there is no recurrent state"
        found = self._snapshots.setdefault(self._state_group, SsmSnapshotIterationStatsDelta())
        is_aligned = num_reused % self._tokens_per_block == 0
        found.iter_snapshot_lookups += 1
        found.iter_reused_tokens += num_reused
        found.iter_unreused_tokens += num_lookup_tokens - num_reused
        if num_reused == 0:
            found.iter_snapshot_misses += 1
            return
        found.iter_snapshot_hits += 1
        if is_aligned:
            found.iter_aligned_snapshot_hits += 1
        else:
            found.iter_unaligned_snapshot_hits += 1

    # -- requests that the engine counts ------------------------------------------------------------------------------

    def record_suspended(self) -> None:
        self._num_suspended += 1

    def record_resumed(self) -> None:
        self._num_resumed += 1

    def take_suspended_and_resumed(self) -> tuple[int, int]:
        found = (self._num_suspended, self._num_resumed)
        self._num_suspended = 0
        self._num_resumed = 0
        return found

    # -- iterations ---------------------------------------------------------------------------------------------------

    def committed(self) -> KVCacheStatsDelta:
        return self._committed.copy()

    def take_iteration(self) -> dict[int, KVCacheIterationStatsDelta]:
        if self._is_enabled:
            self._add_transfers()
        found = self._iteration
        self._iteration = {}
        return {group: found[group] for group in sorted(found)}

    def take_snapshots(self) -> dict[int, SsmSnapshotIterationStatsDelta]:
        found = self._snapshots
        self._snapshots = {}
        return found

    def take_cached_tokens(self) -> list[int]:
        found = [int(count) for count in self._cached_tokens]
        self._cached_tokens = vec[i64]([0] * self._storage.num_levels)
        return found

    def take_reused(self) -> dict[int, ReusedBlocksByLevel]:
        found = self._reused
        self._reused = {}
        return found

    def _add_transfers(self) -> None:
        pages = self._storage.counters
        num_levels = int(pages.num_levels)
        num_pool_groups = int(pages.num_pool_groups)
        position = 0
        for source in range(num_levels):
            for target in range(num_levels):
                for pool_group in range(num_pool_groups):
                    number = int(pages.copied_pages[position] - self._copied[position])
                    position += 1
                    if number == 0:
                        continue
                    num_bytes = number * int(pages.page_bytes[pool_group])
                    found = self._of_group(self._first_group_of(pool_group))
                    if source == target:
                        found.iter_intra_device_copy_blocks += number
                        found.iter_intra_device_copy_bytes += num_bytes
                    elif target < source:
                        found.iter_onboard_blocks += number
                        found.iter_onboard_bytes += num_bytes
                    else:
                        found.iter_offload_blocks += number
                        found.iter_offload_bytes += num_bytes
        if num_levels > 1:
            for pool_group in range(num_pool_groups):
                at = ((num_levels - 1) * num_pool_groups + pool_group) * NUM_DROP_REASONS + CAPACITY
                number = int(pages.dropped_pages[at] - self._dropped[at])
                if number > 0:
                    found = self._of_group(self._first_group_of(pool_group))
                    found.iter_host_dropped_blocks += number
                    found.iter_host_dropped_bytes += number * int(pages.page_bytes[pool_group])
        self._copied = pages.copied_pages[:]
        self._dropped = pages.dropped_pages[:]

    def _first_group_of(self, pool_group: int) -> int:
        for group, other in enumerate(self._storage.pool_group_of):
            if other == pool_group:
                return group
        return 0

    # -- disks --------------------------------------------------------------------------------------------------------

    def count_from_disks(self) -> int:
        """Pages onboarded from a disk so far."""
        pages = self._storage.counters
        width = int(pages.num_levels * pages.num_pool_groups)
        total = 0
        for source, tier in enumerate(self._tiers):
            if tier == CacheTier.DISK:
                for position in range(source * width, source * width + source * int(pages.num_pool_groups)):
                    total += int(pages.copied_pages[position])
        return total

    def record_prefetch(self, num_pages: int) -> None:
        self._num_prefetched += num_pages

    def take_prefetched(self) -> int:
        found = self._num_prefetched
        self._num_prefetched = 0
        return found

    # -- peaks --------------------------------------------------------------------------------------------------------

    def record_peaks(self) -> None:
        """After a call that may have taken slots."""
        storage = self._storage
        for index in range(len(storage.allocators)):
            allocator = storage.allocators[index]
            evictable = int(storage.queues[index].num_pages + storage.held_queues[index].num_pages)
            unavailable = int(allocator.num_slots - allocator.num_free) - evictable
            if unavailable > self._peaks[index][1]:
                self._peaks[index] = [int(allocator.num_free), unavailable, evictable]

    def take_peaks(self, level: int) -> list[PoolGroupPeakBlockStats]:
        width = int(self._storage.num_pool_groups)
        found: list[PoolGroupPeakBlockStats] = []
        for index in range(level * width, (level + 1) * width):
            free, unavailable, evictable = self._peaks[index]
            found.append(PoolGroupPeakBlockStats(free + evictable, unavailable, evictable))
            self._peaks[index] = [0, -1, 0]
        self.record_peaks()
        return found

    def _reset_peaks(self) -> None:
        self._peaks = [[0, -1, 0] for _allocator in self._storage.allocators]
        self.record_peaks()
