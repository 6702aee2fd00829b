"""The sizes of the cache levels while they are in use, and how pool groups share them."""

from typing import Final, SupportsIndex, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..base.checks import to_int
from ..base.package_log import PackageLog
from ..config.cache_tier_config import compute_max_quota
from ..config.config_value import MAX_CONFIG_INT
from ..config.manager_config import KVCacheManagerConfig
from ..layout.sizing import compute_min_slot_counts, compute_slots_bytes, describe_slots, plan_new_slot_counts
from ..layout.slot_layout import SlotLayout
from ..reuse.room_losses import RoomLosses
from ..sequence.beams import list_beams
from ..sequence.level_resizing import find_leased_beyond, resize_level
from ..sequence.sequence_state import SequenceState
from ..sequence.shared_state import SharedState
from ..stats.demand import Demand
from ..storage.decision_digest import NUM_SLOTS
from ..storage.pool_resizer import PoolResizer
from ..storage.refusal import Refusal
from .open_sequences import OpenSequences
from .room_moves import RoomMove, RoomMoves

_logger: Final = PackageLog("kv_cache_manager_v2")
_MICROSECONDS: Final = 1_000_000
_TRIES: Final = 12
"""How often `best_efforts` halves what it asks the device for."""


@final
@mypyc_attr(native_class=True)
class LevelSizes:
    __slots__ = (
        "_shared", "_open_sequences", "_config", "_layout", "_quotas", "_demand", "_losses", "_moves", "_last_adjustment_us",
        "_last_refusals",
    )  # fmt: skip

    _shared: Final[SharedState]
    _open_sequences: Final[OpenSequences]
    _config: Final[KVCacheManagerConfig]
    _layout: Final[SlotLayout]
    _quotas: Final[list[int]]
    """Bytes of each level."""
    _demand: Final[Demand]
    _losses: Final[RoomLosses | None]
    """None where need alone counts."""
    _moves: Final[RoomMoves]
    _last_adjustment_us: i64
    _last_refusals: list[int]
    """As `_count_refusals` then said."""

    def __init__(
        self, shared: SharedState, open_sequences: OpenSequences, config: KVCacheManagerConfig, losses: RoomLosses | None
    ) -> None:
        self._shared = shared
        self._open_sequences = open_sequences
        self._config = config
        self._layout = shared.storage.layout
        self._quotas = [tier.quota for tier in config.cache_tiers]
        self._demand = Demand(self._layout.num_pool_groups, config.rebalance.smoothing)
        self._losses = losses
        self._moves = RoomMoves(self._slot_bytes())
        self._last_adjustment_us = 0
        self._last_refusals = self._count_refusals()

    def require(self, level: SupportsIndex, name: str) -> int:
        """The number of a level that exists; `ValueError` if none has it."""
        number = to_int(level, name)
        if not 0 <= number < len(self._quotas):
            raise ValueError(f"{name} is {number}; there are {len(self._quotas)} cache levels")
        return number

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
        if self._demand.num_samples < settings.min_samples:
            return False
        if self._shared.retention.now_us - self._last_adjustment_us < int(settings.cool_down_seconds * _MICROSECONDS):
            return False
        if self._losses is not None:
            room = self._count_room()
            least = self._count_needed(room)
            if least is not None:
                for present, needed, is_refused in zip(room, least, self._list_refused()):
                    if needed - present > (0 if is_refused else settings.threshold * present):
                        return True
                return self._find_move(self._losses, room, least) is not None
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
        has_changed = False
        if self._demand.num_samples > 0:
            room = self._count_room()
            wanted, move = self._plan_room(room)
            weights = self._demand.weights(self._slot_bytes())
            for level in range(len(self._quotas)):
                if self._is_durable(level) or wanted == room:
                    continue
                if wanted is not None:
                    weights = self._weigh_level(level, room, wanted)
                if self._try_share_anew(level, weights, has_changed):
                    has_changed = True
            if move is not None and has_changed:
                self._moves.record(move)
        if self._losses is not None:
            self._losses.fade()
        self._last_adjustment_us = self._shared.retention.now_us
        self._last_refusals = self._count_refusals()
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

    def sample_demand(self) -> None:
        """Record the slots that counted sequences need now: all that are neither free, nor droppable, nor used by others alone."""
        storage = self._shared.storage
        not_counted = self._open_sequences.not_counted()
        others = _count_slots_of(self._shared, not_counted) if len(not_counted) > 0 else None
        for pool_group in range(storage.num_pool_groups):
            needed: i64 = 0
            index = pool_group
            while index < len(storage.allocators):
                needed += storage.allocators[index].num_used - storage.queues[index].num_pages
                index += storage.num_pool_groups
            if others is not None:
                needed -= others[pool_group]
            self._demand.add(pool_group, needed)
        self._demand.end_sample()

    def _plan_room(self, room: list[int]) -> tuple[list[int] | None, RoomMove | None]:
        """The bytes that each pool group should have instead of ``room``, by need and by reuse, and the move for reuse; None: by need
        alone."""
        losses = self._losses
        least = None if losses is None else self._count_needed(room)
        if losses is None or least is None:
            return None, None
        wanted = _cover(room, least)
        move = self._find_move(losses, wanted, least)
        if move is not None:
            wanted[move.giver] -= move.num_bytes
            wanted[move.taker] += move.num_bytes
        return wanted, move

    def _find_move(self, losses: RoomLosses, room: list[int], least: list[int]) -> RoomMove | None:
        return self._moves.find(room, least, [int(count) for count in losses.tokens], int(losses.num_tokens))

    def _count_room(self) -> list[int]:
        """Bytes of each pool group on all levels."""
        storage = self._shared.storage
        num_groups = int(storage.num_pool_groups)
        slot_bytes = self._slot_bytes()
        room = [0] * num_groups
        for index, allocator in enumerate(storage.allocators):
            room[index % num_groups] += int(allocator.num_slots) * slot_bytes[index % num_groups]
        return room

    def _count_needed(self, room: list[int]) -> list[int] | None:
        """Bytes that open sequences may need at once: an eighth more than they lately did, and of a pool group for whose slots a call was
        refused at least an eighth (a slot) more than there is, up to what need alone would give it. None if all together have no more."""
        slot_bytes = self._slot_bytes()
        needed = [int(self._demand.peak(group)) * 9 // 8 * size for group, size in enumerate(slot_bytes)]
        weights = self._demand.weights(slot_bytes)
        for group, is_refused in enumerate(self._list_refused()):
            if is_refused:
                more = max(room[group] // 8, slot_bytes[group] * len(self._quotas))
                needed[group] = max(needed[group], min(room[group] + more, sum(room) * weights[group] // sum(weights)))
        return None if sum(needed) >= sum(room) else needed

    def _list_refused(self) -> list[bool]:
        """By pool group, whether a call was refused for its slots since the last `adjust`."""
        return [count > last for count, last in zip(self._count_refusals(), self._last_refusals)]

    def _count_refusals(self) -> list[int]:
        """Refusals of each pool group on all levels, so far."""
        storage = self._shared.storage
        num_groups = int(storage.num_pool_groups)
        counts = [0] * num_groups
        for index, count in enumerate(storage.num_refusals):
            counts[index % num_groups] += int(count)
        return counts

    def _weigh_level(self, level: int, room: list[int], wanted: list[int]) -> list[int]:
        """Shares of what is left of a level beside what must stay, so that its pool groups change as all levels together should."""
        least = self._must_stay(level)
        fewest = compute_min_slot_counts(self._layout, self._config, level)
        storage = self._shared.storage
        first = level * int(storage.num_pool_groups)
        weights: list[int] = []
        for group, size in enumerate(self._slot_bytes()):
            num_bytes = int(storage.allocators[first + group].num_slots) * size * wanted[group] // max(room[group], 1)
            weights.append(max(num_bytes - max(least[group], fewest[group]) * size, 1))
        return weights

    def _slot_bytes(self) -> list[int]:
        return [self._layout.slot_bytes_total(index) for index in range(self._layout.num_pool_groups)]

    def _plan_adjustment(self, level: int) -> tuple[int, ...] | None:
        weights = self._demand.weights(self._slot_bytes())
        least = self._must_stay(level)
        return plan_new_slot_counts(self._layout, self._config, self._quotas[level], level, least, weights)

    def _must_stay(self, level: int) -> list[int]:
        shared = self._shared
        if shared.storage.closed.has_disks:
            shared.storage.closed.look()
        resizer = PoolResizer(shared.storage, shared.room_count, shared.room, shared.mover)
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
        needed = compute_slots_bytes(self._layout, least)
        text = (
            f"level {level}: a quota of {quota} bytes is asked for, but pages that must stay take "
            f"{describe_slots(self._layout, least)}, {needed} bytes. Suspend or close sequences, or enlarge a lower tier"
        )
        storage.refuse(Refusal(level, 0, needed, quota, 0, text), needed)

    def _refuse_leased(self, pool_group: int, lease: int) -> None:
        storage = self._shared.storage
        text = (
            f"level 0, pool group {pool_group}: lease {lease} has slots behind the new end of its pool, which must not move. "
            f"Settle it first"
        )
        storage.refuse(Refusal(0, pool_group, 0, 0, 0, text), lease)


def _cover(room: list[int], least: list[int]) -> list[int]:
    """``room`` with what some pool groups lack of ``least`` taken from what the others have beyond; there is enough in all."""
    missing = sum([max(needed - present, 0) for present, needed in zip(room, least)])
    beyond = sum([max(present - needed, 0) for present, needed in zip(room, least)])
    wanted: list[int] = []
    for present, needed in zip(room, least):
        wanted.append(needed if present <= needed else present - (present - needed) * missing // beyond)
    return wanted


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
                    if state.holds_page(life_cycle, ordinal):
                        page = int(state.page_of(life_cycle, ordinal))
                        holds[page] = holds.get(page, 0) + 1
            blocks = list(state.state_blocks)
            if state.matched_snapshot is not None:
                blocks.append(state.matched_snapshot)
            for block in blocks:
                page = int(block.first_page + shared.state_life_cycle)
                holds[page] = holds.get(page, 0) + 1
    for page, num_holds in holds.items():
        if storage.rows.num_holds(page) == num_holds:
            counts[storage.pool_group_of_page(page)] += 1
    return counts
