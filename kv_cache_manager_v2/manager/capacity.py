"""Capacity plan of a configuration: pure arithmetic, before any memory is allocated.

`plan_capacity` says how many slots each pool group gets at each level, and what fits into level 0: the same counts with
which a manager starts, so it is exact. Lengths are those of a sequence alone, unless others are named.

    longest sequence   grown token by token, as decoding does: the most it holds on the way must fit. Within a block
                       that is at the block's first token, so the answer is a whole number of blocks
    longest prompt     computed in one step from nothing, scratch slots counted
"""

from dataclasses import dataclass, replace
from typing import Final, SupportsIndex

from ..base.checks import to_count, to_instance, to_instance_or_none
from ..base.given import Given
from ..base.ids import CacheTier
from ..base.integer_math import ceil_div
from ..base.value import Value
from ..config.batch_desc import BatchDesc, KVCacheDesc
from ..config.manager_config import KVCacheManagerConfig
from ..device.cold_page_codec import ColdPageCodec
from ..layout.registry import LifeCycleRegistry
from ..layout.sizing import compute_min_slot_counts, compute_slots_bytes, find_last_fitting, plan_slot_counts, sequence_slots
from ..layout.slot_layout import SlotLayout, compute_slot_layout
from ..layout.step_slots import slots_of_batch, slots_of_sequence, sum_over_life_cycles
from ..storage.page_packer import lay_out_slots, to_codec


@dataclass(frozen=True)
class PoolGroupCapacity(Value):
    """One pool group at one level."""

    pool_group_index: int
    layer_groups: tuple[int, ...]
    num_slots: int
    slot_bytes: int
    """Bytes of one slot in all pools of the group."""
    min_slots: int
    """Slots that the constraints demand."""
    batch_slots: int | None
    """Slots that the asked batch takes; None if none was asked."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots."""
        return self.num_slots * self.slot_bytes

    @property
    def spare_slots(self) -> int:
        """Slots that the batch leaves, or the constraints if none was asked; negative: so many are missing."""
        return self.num_slots - (self.min_slots if self.batch_slots is None else self.batch_slots)


@dataclass(frozen=True)
class LevelCapacity(Value):
    """One cache level."""

    level: int
    tier: CacheTier
    quota: int
    pool_groups: tuple[PoolGroupCapacity, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots; at most the quota."""
        return sum([group.num_bytes for group in self.pool_groups])


@dataclass(frozen=True)
class CapacityPlan(Value):
    """The capacity of a configuration. A value; ``print(plan.table())`` shows it."""

    config: KVCacheManagerConfig
    levels: tuple[LevelCapacity, ...]
    longest_sequence: int | None
    """Tokens; None: no length is too long (windows everywhere)."""
    longest_prompt: int | None
    """Tokens of one step; None: no length is too long."""
    batch: BatchDesc | None
    batch_fits: bool | None
    """Whether the asked batch runs on level 0; None if none was asked."""
    batch_quota: int | None
    """The least quota of level 0 with which a manager runs the batch, if it is among the constraints."""
    limiting_pool_group: int
    """The pool group that the asked batch fills most; without one, the one that ends the longest sequence."""

    @property
    def missing_slots(self) -> int:
        """Slots that the limiting pool group lacks for the asked batch; 0 if it fits."""
        return max(0, -self.levels[0].pool_groups[self.limiting_pool_group].spare_slots) if self.batch is not None else 0

    @property
    def slot_padding(self) -> float:
        """The share of a slot's bytes that is unused in the layer groups that fill it least; 0 without `max_slot_padding`."""
        division = self.config.divide_into_equal_slots()
        return 0.0 if division is None else division.padding

    def max_mixes(self, batch: Given[BatchDesc]) -> int | None:
        """How many times the sequences of ``batch`` run together, none of them shared; None if any number does."""
        batch = to_instance(batch, BatchDesc, "batch")
        needed = slots_of_batch(_layout_of(self.config), self.config, BatchDesc(batch.kv_caches))
        return min([group.num_slots // count for group, count in zip(self.levels[0].pool_groups, needed) if count > 0], default=None)

    def max_batch_size(
        self, capacity: SupportsIndex, history_length: SupportsIndex | None = None, system_prompt_length: SupportsIndex = 0
    ) -> int | None:
        """How many sequences of that capacity run together; None if any number does.

        ``history_length`` None: a decode step, ``capacity - 1``. Blocks of the system prompt are counted once.
        """
        room = int(to_count(capacity, "capacity"))
        history = max(0, room - 1) if history_length is None else int(to_count(history_length, "history_length"))
        prompt_length = int(to_count(system_prompt_length, "system_prompt_length"))
        kv_cache = KVCacheDesc(room, history)
        layout = _layout_of(self.config)
        one = slots_of_batch(layout, self.config, BatchDesc([kv_cache], prompt_length))
        num_shared_blocks = prompt_length // self.config.tokens_per_block
        own = sum_over_life_cycles(layout, list(slots_of_sequence(layout, self.config, kv_cache, 0, num_shared_blocks)))
        free = [group.num_slots - (one[index] - own[index]) for index, group in enumerate(self.levels[0].pool_groups)]
        if min(free) < 0:
            return 0
        return min([count // own[index] for index, count in enumerate(free) if own[index] > 0], default=None)

    def table(self) -> str:
        """For people: a line per level and pool group, then what fits."""
        lines: list[list[str]] = []
        for level in self.levels:
            for group in level.pool_groups:
                lines.append(
                    [
                        str(level.level),
                        level.tier.name,
                        str(group.pool_group_index),
                        ",".join([str(layer_group) for layer_group in group.layer_groups]),
                        f"{group.num_slots:,}",
                        f"{group.slot_bytes:,}",
                        f"{group.num_bytes:,}",
                        f"{group.min_slots:,}",
                        "-" if group.batch_slots is None else f"{group.batch_slots:,}",
                        f"{group.spare_slots:,}",
                    ]
                )
        return _format_table(list(_COLUMNS), lines) + "\n".join(self._sentences()) + "\n"

    def _sentences(self) -> list[str]:
        sentences = [
            f"longest sequence, decoding: {_tokens(self.longest_sequence)}",
            f"longest prompt in one step: {_tokens(self.longest_prompt)}",
        ]
        group = self.levels[0].pool_groups[self.limiting_pool_group]
        if self.batch is None:
            sentences.append(f"limited by pool group {group.pool_group_index}")
        elif self.batch_fits:
            sentences.append(
                f"the batch fits; pool group {group.pool_group_index} is the fullest, {group.spare_slots:,} of "
                f"{group.num_slots:,} slots are left. Least quota for it: {self.batch_quota:,} bytes"
            )
        else:
            sentences.append(
                f"the batch does not fit: pool group {group.pool_group_index} lacks {self.missing_slots:,} slots, "
                f"{self.missing_slots * group.slot_bytes:,} bytes. Least quota for it: {self.batch_quota:,} bytes, as "
                f"one of the constraints"
            )
        return sentences


def _tokens(length: int | None) -> str:
    return "any length" if length is None else f"{length:,} tokens"


def _layout_of(config: KVCacheManagerConfig) -> SlotLayout:
    return compute_slot_layout(config, LifeCycleRegistry(config))


def plan_capacity(
    config: Given[KVCacheManagerConfig], batch: Given[BatchDesc | None] = None, *, cold_page_codec: Given[ColdPageCodec | None] = None
) -> CapacityPlan:
    """The capacity of a manager with this configuration and this codec, and whether ``batch`` runs; allocates nothing.

    `ValueError` if a quota is under the minimum that the constraints demand, as from the manager itself.
    """
    config = to_instance(config, KVCacheManagerConfig, "config")
    batch = to_instance_or_none(batch, BatchDesc, "batch")
    layout = lay_out_slots(config, LifeCycleRegistry(config), to_codec(cold_page_codec, config))
    levels = tuple([_plan_level(layout, config, batch, level) for level in range(len(config.cache_tiers))])
    slots = tuple([group.num_slots for group in levels[0].pool_groups])
    num_blocks = _last_fitting(layout, config, slots, False)
    num_prompt_blocks = _last_fitting(layout, config, slots, True)
    batch_fits: bool | None = None
    batch_quota: int | None = None
    if batch is None:
        # The pool group that has no room for one block more; the fullest if all lengths fit.
        longest = int(ceil_div(_ANY_LENGTH, config.tokens_per_block)) if num_blocks is None else num_blocks
        limiting = _find_fullest(slots, sequence_slots(layout, config, longest + 1, 1))
    else:
        needed = slots_of_batch(layout, config, batch)
        batch_fits = _have_room(slots, needed)
        demanding = replace(config, constraints=(*config.constraints, batch))
        batch_quota = compute_slots_bytes(layout, compute_min_slot_counts(layout, demanding, 0))
        limiting = _find_fullest(slots, needed)
    return CapacityPlan(
        config,
        levels,
        None if num_blocks is None else num_blocks * config.tokens_per_block,
        None if num_prompt_blocks is None else num_prompt_blocks * config.tokens_per_block,
        batch,
        batch_fits,
        batch_quota,
        limiting,
    )


def _plan_level(layout: SlotLayout, config: KVCacheManagerConfig, batch: BatchDesc | None, level: int) -> LevelCapacity:
    tier = config.cache_tiers[level]
    counts = plan_slot_counts(layout, config, tier.quota, level)
    minimum = compute_min_slot_counts(layout, config, level)
    needed = None if batch is None else slots_of_batch(layout, config, batch, level)
    groups = [
        PoolGroupCapacity(
            index,
            tuple([int(life_cycle_id) for life_cycle_id in layout.life_cycle_ids_of_pool_group(index)]),
            count,
            layout.slot_bytes_total(index, level),
            minimum[index],
            None if needed is None else needed[index],
        )
        for index, count in enumerate(counts)
    ]
    return LevelCapacity(level, tier.tier, tier.quota, tuple(groups))


def _prompt_slots(layout: SlotLayout, config: KVCacheManagerConfig, num_blocks: int) -> tuple[int, ...]:
    """The most that a prompt of that many blocks takes: at one token in its last block, where least is stale."""
    kv_cache = KVCacheDesc((num_blocks - 1) * config.tokens_per_block + 1, 0)
    return sum_over_life_cycles(layout, list(slots_of_sequence(layout, config, kv_cache)))


def _last_fitting(layout: SlotLayout, config: KVCacheManagerConfig, slots: tuple[int, ...], is_prompt: bool) -> int | None:
    """Blocks of the longest sequence that grows token by token within ``slots`` by pool group, None: any; of a prompt, such that it and
    every shorter one run in one step.

    Binary search: both needs never fall when a block is added.
    """

    def fits(num_blocks: int) -> bool:
        needed = _prompt_slots(layout, config, num_blocks) if is_prompt else sequence_slots(layout, config, num_blocks, 1)
        return _have_room(slots, needed)

    too_many = 1
    while fits(too_many):
        too_many *= 2
        if too_many * config.tokens_per_block > _ANY_LENGTH:
            return None
    return find_last_fitting(fits, too_many // 2, too_many)


def _have_room(slots: tuple[int, ...], needed: tuple[int, ...]) -> bool:
    return all([count <= slots[index] for index, count in enumerate(needed)])


def _find_fullest(slots: tuple[int, ...], needed: tuple[int, ...]) -> int:
    """The pool group of which the greatest share is needed."""
    shares = [count / slots[index] for index, count in enumerate(needed)]
    return shares.index(max(shares))


def clamp_sequence_length(
    layout: SlotLayout, config: KVCacheManagerConfig, slots: tuple[int, ...], batch_size: int, upper_bound: int
) -> int:
    """The longest decoding sequence, up to the bound, beside ``batch_size - 1`` sequences of one token; 0 if there is
    none."""
    minimal = sequence_slots(layout, config, 1, 1)
    left = tuple([count - (batch_size - 1) * minimal[index] for index, count in enumerate(slots)])
    num_blocks = _last_fitting(layout, config, left, False)
    return upper_bound if num_blocks is None else min(upper_bound, num_blocks * config.tokens_per_block)


def _format_table(header: list[str], lines: list[list[str]]) -> str:
    """Columns of equal width, numbers to the right."""
    widths = [max([len(line[column]) for line in [header, *lines]]) for column in range(len(header))]
    rows = [_format_line(header, widths), "  ".join(["-" * width for width in widths])]
    rows.extend([_format_line(line, widths) for line in lines])
    return "\n".join(rows) + "\n"


def _format_line(line: list[str], widths: list[int]) -> str:
    return "  ".join([cell.rjust(widths[column]) for column, cell in enumerate(line)]).rstrip()


_ANY_LENGTH: Final = 2**40
_COLUMNS: Final = ("level", "tier", "pool group", "layer groups", "slots", "bytes/slot", "bytes", "constraints", "batch", "spare")
