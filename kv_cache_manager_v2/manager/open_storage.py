"""Opening the storage of a configuration: the slots of each level, their memory, and the mover between levels."""

from ..config.cache_tier_config import DiskCacheTierConfig
from ..config.manager_config import KVCacheManagerConfig
from ..device.port import Device
from ..device.stream_order import StreamOrder
from ..layout.sizing import plan_slot_counts
from ..layout.slot_layout import SlotLayout
from ..storage.debug_fill import DebugFill
from ..storage.level_slots import LevelSlots
from ..storage.page_mover import PageMover
from ..storage.page_storage import PageStorage
from .disk_paths import list_absolute_paths


def plan_levels(layout: SlotLayout, config: KVCacheManagerConfig) -> list[LevelSlots]:
    """Slots of every level, level 0 first; `ValueError` if a quota is too small."""
    levels: list[LevelSlots] = []
    for level, tier in enumerate(config.cache_tiers):
        path = list_absolute_paths(tier)[0] if isinstance(tier, DiskCacheTierConfig) else None
        counts = plan_slot_counts(layout, config, tier.quota, level)
        levels.append(LevelSlots(tier.tier, path, counts, tier.eviction_policy, tier))
    return levels


def open_storage(
    device: Device,
    order: StreamOrder,
    layout: SlotLayout,
    levels: list[LevelSlots],
    num_null_slots: int,
    debug_fill: DebugFill | None,
) -> tuple[PageStorage, PageMover]:
    """Allocate the memory; an error leaves nothing allocated."""
    storage = PageStorage(device, order, layout, levels, num_null_slots, debug_fill)
    mover = PageMover(device, order, storage.pool_groups, storage.num_pool_groups, storage.num_levels)
    if len(levels) > 1:
        try:
            mover.open_bounce([layout.slot_bytes(index) for index in range(layout.num_pool_groups)])
        except BaseException:
            storage.close()
            raise
    return storage, mover
