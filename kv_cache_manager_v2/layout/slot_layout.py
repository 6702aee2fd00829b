"""The slot layout of a model: pool groups, pools and slot sizes, and where in a slot each buffer lies.

Pure: a configuration in, addresses-as-arithmetic out (``address = base of the pool + slot_id * slot bytes +
offset``). It knows neither how many slots there are nor where the pools are. Never changes once it is made.

From layers to slots:

1. The buffers of a layer group are grouped by expanded size; each size is one coalesced buffer, in layer order. As a
   layer appears once in its group, its buffers of one size lie side by side.
2. Coalesced buffers are sorted by total size, largest first, then by expanded size. Their sizes are the slot's.
   With `max_slot_padding`, slots of attention are filled up to equal bytes, behind the buffers (`config.equal_slots`).
3. Layer groups whose slots have the same list of sizes share a pool group, numbered in order of first appearance.
4. Where a codec packs pages (`pack_cold_slots`), a slot below level 0 is one packed page: as many bytes as the largest of the pool
   group's layer groups, in one pool.

                  pool 0                                pool 1
    group 0       [K0 V0 K1 V1]  4 x 1024 bytes         [S0 S1]  2 x 64 bytes
    group 1       [K2 V2]        2 x 2048 bytes         [S2]     1 x 128 bytes       the same pool group: 4096, 128
"""

from typing import Final, final


from ..base.errors import UnknownBufferError
from ..base.ids import LifeCycleId, PoolGroupIndex, PoolIndex
from ..config.manager_config import KVCacheManagerConfig
from .buffer_id import BufferId
from .buffer_placement import BufferPlacement
from .registry import LifeCycleRegistry
from .slot_desc import SlotDesc, SlotDescVariant
from .slot_desc import CoalescedBuffer


def compute_slot_variants(config: KVCacheManagerConfig, registry: LifeCycleRegistry) -> list[SlotDescVariant]:
    """Each layer group's slot, by life cycle id."""
    by_size: list[dict[int, list[BufferId]]] = [{} for _ in range(len(registry))]
    for layer in config.layers:
        sizes = by_size[registry.life_cycle_id_of_config(layer)]
        for buffer in layer.buffers:
            expanded_size = buffer.size * buffer.expansion(config.tokens_per_block)
            sizes.setdefault(expanded_size, []).append(BufferId(layer.layer_id, buffer.role))
    return [
        _compute_variant(LifeCycleId(index), sizes, registry.slot_bytes if registry[LifeCycleId(index)].has_page_per_block else None)
        for index, sizes in enumerate(by_size)
    ]


def _compute_variant(life_cycle_id: LifeCycleId, sizes: dict[int, list[BufferId]], slot_bytes: tuple[int, ...] | None) -> SlotDescVariant:
    order = sorted([(size * len(buffer_ids), size) for size, buffer_ids in sizes.items()], reverse=True)
    coalesced = [
        CoalescedBuffer(size, tuple(sizes[size]), 0 if slot_bytes is None else (slot_bytes[pool] - total) // size)
        for pool, (total, size) in enumerate(order)
    ]
    return SlotDescVariant(life_cycle_id, tuple(coalesced))


def compute_pool_groups(variants: list[SlotDescVariant]) -> list[SlotDesc]:
    """The slots of each pool group; every variant is in exactly one of them."""
    by_sizes: dict[tuple[int, ...], list[SlotDescVariant]] = {}
    for variant in variants:
        by_sizes.setdefault(variant.slot_size_list, []).append(variant)
    return [SlotDesc(tuple(members)) for members in by_sizes.values()]


@final
class SlotLayout:
    """The layout; see the module's docstring. Made by `compute_slot_layout`."""

    __slots__ = (
        "life_cycles",
        "num_life_cycles",
        "num_pool_groups",
        "pool_group_indices",
        "slot_descs",
        "buffer_ids",
        "_slot_bytes",
        "_cold_bytes",
        "_placements",
        "_scratch_blocks_per_slot",
    )

    def __init__(
        self,
        life_cycles: LifeCycleRegistry,
        slot_descs: list[SlotDesc],
        placements: dict[BufferId, BufferPlacement],
        has_scratch_slots: bool = True,
    ) -> None:
        """``placements`` in the order of the configuration. ``has_scratch_slots``: off where the engine owns the memory."""
        num_life_cycles = len(life_cycles)
        self.life_cycles: Final = life_cycles
        self.num_life_cycles: Final[int] = num_life_cycles
        self.num_pool_groups: Final[int] = len(slot_descs)
        pool_group_indices = [0] * num_life_cycles
        for pool_group_index, slot_desc in enumerate(slot_descs):
            for variant in slot_desc.variants:
                pool_group_indices[variant.layer_group_id] = pool_group_index
        self.pool_group_indices: Final[tuple[int, ...]] = tuple(pool_group_indices)
        """The pool group of each life cycle."""
        self.slot_descs: Final[tuple[SlotDesc, ...]] = tuple(slot_descs)
        """By pool group: the contents of its slots."""
        self.buffer_ids: Final[tuple[BufferId, ...]] = tuple(placements)
        """Every buffer, in the order of the configuration."""
        self._slot_bytes: Final[list[tuple[int, ...]]] = [slot_desc.slot_size_list for slot_desc in slot_descs]
        self._cold_bytes: list[tuple[int, ...]] = self._slot_bytes
        """The same of a slot below level 0."""
        self._placements: Final = placements
        self._scratch_blocks_per_slot: Final[list[int]] = [
            min([p.scratch_blocks_per_slot for p in placements.values() if p.life_cycle_id == life_cycle_id])
            for life_cycle_id in range(num_life_cycles if has_scratch_slots else 0)
        ]
        """By life cycle; empty where scratch blocks have no slots."""

    def life_cycle_ids_of_pool_group(self, pool_group_index: int) -> tuple[LifeCycleId, ...]:
        """The layer groups that this pool group serves."""
        return tuple([variant.layer_group_id for variant in self.slot_descs[pool_group_index].variants])

    def slot_variants(self) -> list[SlotDescVariant]:
        """Each layer group's slot, by life cycle id."""
        variants = [variant for slot_desc in self.slot_descs for variant in slot_desc.variants]
        return sorted(variants, key=lambda variant: variant.layer_group_id)

    def pack_cold_slots(self, page_bytes: list[int]) -> None:
        """From now on a slot below level 0 is one packed page. ``page_bytes``: of such a page, by life cycle id."""
        self._cold_bytes = [(max([page_bytes[variant.layer_group_id] for variant in slot_desc.variants]),) for slot_desc in self.slot_descs]

    def slot_bytes(self, pool_group_index: int, level: int = 0) -> tuple[int, ...]:
        """Bytes of one slot of that level, by pool."""
        return (self._slot_bytes if level == 0 else self._cold_bytes)[pool_group_index]

    def slot_bytes_total(self, pool_group_index: int, level: int = 0) -> int:
        """Bytes of one slot of that level in all its pools."""
        return sum(self.slot_bytes(pool_group_index, level))

    def list_slot_bytes(self, num_levels: int) -> list[int]:
        """`slot_bytes_total` by level and pool group."""
        return [self.slot_bytes_total(index, level) for level in range(num_levels) for index in range(self.num_pool_groups)]

    def buffer_placement(self, buffer_id: BufferId) -> BufferPlacement:
        placement = self._placements.get(buffer_id)
        if placement is None:
            roles = [other.role for other in self.buffer_ids if other.layer_id == buffer_id.layer_id]
            raise UnknownBufferError(
                f"layer_id is {buffer_id.layer_id} and data_role {buffer_id.role!r}: there is no such buffer; the layer has {roles}"
                if roles
                else f"layer_id is {buffer_id.layer_id}; the configured layers are {sorted({other.layer_id for other in self.buffer_ids})}"
            )
        return placement

    def compute_num_scratch_slots(self, life_cycle_id: int, num_scratch_blocks: int) -> int:
        """Scratch slots for so many scratch blocks: the maximum over layers and pools; none where the engine owns the memory."""
        if len(self._scratch_blocks_per_slot) == 0:
            return 0
        blocks_per_slot = self._scratch_blocks_per_slot[life_cycle_id]
        return (num_scratch_blocks + blocks_per_slot - 1) // blocks_per_slot


def compute_slot_layout(config: KVCacheManagerConfig, registry: LifeCycleRegistry) -> SlotLayout:
    variants = compute_slot_variants(config, registry)
    slot_descs = compute_pool_groups(variants)
    _validate_pool_ratio(config, slot_descs)
    expansions: dict[BufferId, int] = {}
    for layer in config.layers:
        for buffer in layer.buffers:
            expansions[BufferId(layer.layer_id, buffer.role)] = buffer.expansion(config.tokens_per_block)
    placements: dict[BufferId, BufferPlacement] = {}
    for pool_group_index, slot_desc in enumerate(slot_descs):
        for variant in slot_desc.variants:
            _place_buffers(expansions, PoolGroupIndex(pool_group_index), variant, placements)
    in_order = {buffer_id: placements[buffer_id] for buffer_id in expansions}
    return SlotLayout(registry, slot_descs, in_order, not config.is_external)


def _place_buffers(
    expansions: dict[BufferId, int], pool_group_index: PoolGroupIndex, variant: SlotDescVariant, placements: dict[BufferId, BufferPlacement]
) -> None:
    """Add the placements of a layer group's buffers."""
    for pool_index, coalesced in enumerate(variant.coalesced_buffers):
        num_of_layer: dict[int, int] = {}
        for buffer_id in coalesced.buffer_ids:
            num_of_layer[buffer_id.layer_id] = num_of_layer.get(buffer_id.layer_id, 0) + 1
        for ordinal, buffer_id in enumerate(coalesced.buffer_ids):
            placements[buffer_id] = BufferPlacement(
                buffer_id,
                variant.layer_group_id,
                pool_group_index,
                PoolIndex(pool_index),
                coalesced.single_buffer_size,
                expansions[buffer_id],
                coalesced.num_buffers + coalesced.num_unused,
                ordinal,
                num_of_layer[buffer_id.layer_id],
            )


def _validate_pool_ratio(config: KVCacheManagerConfig, slot_descs: list[SlotDesc]) -> None:
    if config.initial_pool_ratio is not None and len(config.initial_pool_ratio) != len(slot_descs):
        sizes = [slot_desc.slot_size_list for slot_desc in slot_descs]
        raise ValueError(
            f"initial_pool_ratio has {len(config.initial_pool_ratio)} items, but these layers make {len(slot_descs)}"
            f" pool groups (bytes per slot and pool: {sizes}); give one item for each"
        )
