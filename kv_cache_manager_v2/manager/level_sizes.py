"""The sizes of the cache levels while they are in use, and how pool groups share them."""

from typing import Final, SupportsIndex, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.checks import to_index, to_int
from ..base.package_log import PackageLog
from ..config.cache_tier_config import compute_max_quota
from ..config.config_value import MAX_CONFIG_INT
from ..config.manager_config import KVCacheManagerConfig
from ..layout.sizing import compute_slots_bytes, describe_slots, plan_new_slot_counts
from ..layout.slot_layout import SlotLayout
from ..sequence.beams import list_beams
from ..sequence.level_resizing import find_leased_beyond, resize_level
from ..sequence.sequence_state import SequenceState
from ..sequence.shared_state import DemandSampler, SharedState
from ..stats.demand import Demand
from ..storage.decision_digest import NUM_SLOTS
from ..storage.pool_resizer import PoolResizer
from ..storage.refusal import Refusal
from .open_sequences import OpenSequences

_logger: Final = PackageLog("kv_cache_manager_v2")
_FIXED: Final = "its slots are those of the configuration; make the manager anew with other slot_counts"
_MICROSECONDS: Final = 1_000_000
_TRIES: Final = 12
"""How often `best_efforts` halves what it asks the device for."""


@final
class LevelSizes(DemandSampler):
    __slots__ = ("_shared", "_open_sequences", "_config", "_layout", "_quotas", "_demand", "_last_adjustment_us")

    def __init__(self, shared: SharedState, open_sequences: OpenSequences, config: KVCacheManagerConfig) -> None:
        self._shared: Final = shared
        shared.traffic.demand = self
        self._open_sequences: Final = open_sequences
        self._config: Final = config
        self._layout: Final[SlotLayout] = shared.storage.layout
        self._quotas: Final[list[int]] = [tier.quota for tier in config.cache_tiers]
        """Bytes of each level."""
        self._demand: Final = Demand(self._layout.num_pool_groups, config.rebalance.smoothing)
        self._last_adjustment_us: i64 = 0

    def require(self, level: SupportsIndex, name: str) -> int:
        """The number of a level that exists; `ValueError` if none has it."""
        return to_index(level, name, len(self._quotas), "cache levels")

    def require_quota(self, level: int, quota: SupportsIndex) -> int:
        """A number of bytes that the configuration of a tier may have as well; `ValueError` for another one."""
        num_bytes = to_int(quota, "quota")
        if not 0 <= num_bytes <= MAX_CONFIG_INT:
            tier = type(self._config.cache_tiers[level]).__name__
            raise ValueError(
                f"quota is {num_bytes}; that of level {level}, a {tier}, must be from 0 to {MAX_CONFIG_INT} bytes: give what its device "
                "has, or less"
            )
        return num_bytes

    def quota(self, level: int) -> int:
        return self._quotas[level]

    def resize(self, level: int, quota: int, best_efforts: bool) -> bool:
        """False, and nothing has changed, if what must stay does not fit."""
        self._shared.traffic.require_own_memory("resize()", _FIXED)
        if self._is_durable(level):
            raise ValueError(
                f"cache_level is {level}, which is durable: what is in its slots outlives the process, so they stay where they are. Shut "
                "the manager down, and make it anew with another quota"
            )
        tier = self._config.cache_tiers[level]
        most = compute_max_quota(tier, self._shared.device.total_bytes(tier.tier))
        if quota > most:
            if not best_efforts:
                raise ValueError(
                    f"quota is {quota}; level {level} was made with {tier.quota} bytes and can grow to {most}, for which it has addresses: "
                    f"set max_quota in its {type(tier).__name__}, or give best_efforts=True"
                )
            quota = most
        return self._resize(level, quota, best_efforts, None)

    def _is_durable(self, level: int) -> bool:
        durable = self._shared.storage.durable
        return durable is not None and durable.index == level

    @property
    def need_adjustment(self) -> bool:
        settings = self._config.rebalance
        if self._shared.traffic.is_external:
            return False
        if self._demand.num_samples < settings.min_samples:
            return False
        if self._shared.claims.retention.now_us - self._last_adjustment_us < int(settings.cool_down_seconds * _MICROSECONDS):
            return False
        wanted = self._plan_adjustment(0)
        if wanted is None:
            return False
        for pool_group, count in enumerate(wanted):
            present = int(self._shared.storage.allocators[pool_group].num_slots)
            if count - present > settings.threshold * present:
                return True
        return False

    def adjust(self) -> bool:
        """Share the quota of every level anew; whether a level has changed."""
        self._shared.traffic.require_own_memory("adjust()", _FIXED)
        has_changed = False
        if self._demand.num_samples > 0:
            for level in range(len(self._quotas)):
                weights = self._demand.weights(self._slot_bytes(level))
                if not self._is_durable(level) and self._try_share_anew(level, weights, has_changed):
                    has_changed = True
        self._last_adjustment_us = self._shared.claims.retention.now_us
        self._demand.restart()
        return has_changed

    def _try_share_anew(self, level: int, weights: list[int], has_changed: bool) -> bool:
        """Share one level anew. ``has_changed``: another level has changed, so a refusal here does not undo the call."""
        num_begun = self._shared.storage.changes.num_begun
        try:
            return self._resize(level, self._quotas[level], False, weights)
        except AssertionError:
            raise
        except Exception as refused:
            if not has_changed or self._shared.storage.changes.num_begun > num_begun:
                raise
            _logger.warning("level %d keeps the shares of its pool groups: %s", level, str(refused))
            return False

    def sample(self) -> None:
        """Record the slots that counted sequences need now: all that are neither free, nor droppable, nor used by others alone."""
        storage = self._shared.storage
        not_counted = self._open_sequences.not_counted()
        others = _count_slots_of(self._shared, not_counted) if len(not_counted) > 0 else None
        for pool_group in range(storage.num_pool_groups):
            needed: i64 = 0
            for level in range(storage.num_levels):
                index = level * storage.num_pool_groups + pool_group
                needed += storage.allocators[index].num_used - storage.queues[index].num_pages
            if others is not None:
                needed -= others[pool_group]
            self._demand.add(pool_group, needed)
        self._demand.end_sample()

    def _slot_bytes(self, level: int) -> list[int]:
        return [self._layout.slot_bytes_total(index, level) for index in range(self._layout.num_pool_groups)]

    def _plan_adjustment(self, level: int) -> tuple[int, ...] | None:
        weights = self._demand.weights(self._slot_bytes(level))
        least = self._must_stay(level)
        return plan_new_slot_counts(self._layout, self._config, self._quotas[level], level, least, weights)

    def _must_stay(self, level: int) -> list[int]:
        shared = self._shared
        if shared.storage.closed.has_disks:
            shared.storage.closed.look()
        resizer = PoolResizer(shared.storage, shared.traffic.room_count, shared.traffic.reclaimer, shared.traffic.mover)
        return [int(resizer.count_must_stay(level, group)) for group in range(self._layout.num_pool_groups)]

    def _resize(self, level: int, quota: int, best_efforts: bool, weights: list[int] | None) -> bool:
        """With ``weights``: whether any pool group has changed."""
        least = self._must_stay(level)
        counts = plan_new_slot_counts(self._layout, self._config, quota, level, least, weights)
        if counts is None:
            self._refuse(level, quota, least)
            return False
        storage = self._shared.storage
        first = level * int(storage.num_pool_groups)
        old = tuple([int(storage.allocators[first + group].num_slots) for group in range(len(counts))])
        if counts == old:
            self._quotas[level] = quota
            return weights is None
        if level == 0:
            for group, count in enumerate(counts):
                lease = find_leased_beyond(self._shared, group, count)
                if lease is not None:
                    self._refuse_leased(group, lease)
                    return False
        tries = _TRIES if best_efforts else 0
        old_quota = self._quotas[level]
        while True:
            try:
                resize_level(self._shared, self._open_sequences.states(), level, counts)
                self._quotas[level] = quota
                for count in counts:
                    self._shared.storage.digest.record(NUM_SLOTS, count)
                return True
            except MemoryError:
                if tries == 0 or quota <= old_quota:
                    if best_efforts:
                        return False
                    raise
                tries -= 1
                quota = old_quota + (quota - old_quota) // 2
                smaller = plan_new_slot_counts(self._layout, self._config, quota, level, least, weights)
                if smaller is None or smaller == old:
                    return False
                counts = smaller

    def _refuse(self, level: int, quota: int, least: list[int]) -> None:
        storage = self._shared.storage
        needed = compute_slots_bytes(self._layout, least, level)
        text = (
            f"level {level}: a quota of {quota} bytes is asked for, but pages that must stay take "
            f"{describe_slots(self._layout, least, level)}, {needed} bytes. Suspend or close sequences, or enlarge a lower tier"
        )
        storage.refuse(Refusal(level, 0, needed, quota, 0, text), needed)

    def _refuse_leased(self, pool_group: int, lease: int) -> None:
        storage = self._shared.storage
        text = (
            f"level 0, pool group {pool_group}: lease {lease} has slots behind the new end of its pool, which must not move. "
            f"Settle it first"
        )
        storage.refuse(Refusal(0, pool_group, 0, 0, 0, text), lease)


def _count_slots_of(shared: SharedState, states: list[SequenceState]) -> vec[i64]:
    """Per pool group, on all levels: scratch slots, and pages that only these sequences hold."""
    storage = shared.storage
    counts = vec[i64]([0] * storage.num_pool_groups)
    holds: dict[int, int] = {}
    for owner in states:
        for state in list_beams(owner):
            for life_cycle in range(shared.num_life_cycles):
                counts[storage.pool_group_of[life_cycle]] += len(state.scratch.slots[life_cycle])
                for ordinal in range(state.num_blocks):
                    if state.has_page(life_cycle, ordinal):
                        page = int(state.page_of(life_cycle, ordinal))
                        holds[page] = holds.get(page, 0) + 1
            blocks = list(state.recurrent.state_blocks)
            if state.recurrent.matched_snapshot is not None:
                blocks.append(state.recurrent.matched_snapshot)
            for block in blocks:
                page = int(block.first_page + shared.state_life_cycle)
                holds[page] = holds.get(page, 0) + 1
    for page, num_holds in holds.items():
        if storage.rows.num_holds(page) == num_holds:
            counts[storage.pool_group_of_page(page)] += 1
    return counts
