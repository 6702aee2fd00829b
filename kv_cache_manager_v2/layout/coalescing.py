"""From layers to slots: which buffers share a pool, and which layer groups share a pool group.

1. The buffers of a layer group are grouped by expanded size; each size is one coalesced buffer, in layer order. As a
   layer appears once in its group, its buffers of one size lie side by side.
2. Coalesced buffers are sorted by total size, largest first, then by expanded size. Their sizes are the slot's.
3. Layer groups whose slots have the same list of sizes share a pool group, numbered in order of first appearance.

                  pool 0                                pool 1
    group 0       [K0 V0 K1 V1]  4 x 1024 bytes         [S0 S1]  2 x 64 bytes
    group 1       [K2 V2]        2 x 2048 bytes         [S2]     1 x 128 bytes       the same pool group: 4096, 128
"""

from ..base.ids import LifeCycleId
from ..config.manager_config import KVCacheManagerConfig
from .buffer_id import BufferId
from .registry import LifeCycleRegistry
from .slot_desc import CoalescedBuffer, SlotDesc, SlotDescVariant


def compute_slot_variants(config: KVCacheManagerConfig, registry: LifeCycleRegistry) -> list[SlotDescVariant]:
    """Each layer group's slot, by life cycle id."""
    by_size: list[dict[int, list[BufferId]]] = [{} for _ in range(len(registry))]
    for layer in config.layers:
        sizes = by_size[registry.life_cycle_id_of_config(layer)]
        for buffer in layer.buffers:
            expanded_size = buffer.size * buffer.expansion(config.tokens_per_block)
            sizes.setdefault(expanded_size, []).append(BufferId(layer.layer_id, buffer.role))
    return [_compute_variant(LifeCycleId(index), sizes) for index, sizes in enumerate(by_size)]


def _compute_variant(life_cycle_id: LifeCycleId, sizes: dict[int, list[BufferId]]) -> SlotDescVariant:
    order = sorted([(size * len(buffer_ids), size) for size, buffer_ids in sizes.items()], reverse=True)
    coalesced = [CoalescedBuffer(size, tuple(sizes[size])) for _, size in order]
    return SlotDescVariant(life_cycle_id, tuple(coalesced))


def compute_pool_groups(variants: list[SlotDescVariant]) -> list[SlotDesc]:
    """The slots of each pool group; every variant is in exactly one of them."""
    by_sizes: dict[tuple[int, ...], list[SlotDescVariant]] = {}
    for variant in variants:
        by_sizes.setdefault(variant.slot_size_list, []).append(variant)
    return [SlotDesc(tuple(members)) for members in by_sizes.values()]
