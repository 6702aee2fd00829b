"""Life of a manager's memory: released at shutdown, or with the last `PoolView`.

state      way out
OPEN       close -> CLOSED if no view is out, else PENDING
PENDING    the last release -> CLOSED
CLOSED     none; the storage is closed, and the device if the manager made it
"""

from typing import Final, final


from ..base.package_log import PackageLog
from ..base.ids import CacheTier
from ..device.cold_page_codec import ColdPageCodec
from ..device.port import Device
from ..storage.page_mover import PageMover
from ..storage.page_packer import PagePacker
from ..storage.page_storage import PageStorage
from ..config.cache_tier_config import DiskCacheTierConfig
from ..config.manager_config import KVCacheManagerConfig
from ..device.stream_order import StreamOrder
from ..layout.sizing import plan_slot_counts
from ..layout.slot_layout import SlotLayout
from ..storage.page_fill import DebugFill
from ..storage.level_slots import LevelSlots
from .durable_opening import list_absolute_paths


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
    codec: ColdPageCodec | None,
) -> tuple[PageStorage, PageMover]:
    """Allocate the memory; an error leaves nothing allocated."""
    if codec is not None:
        codec.validate(device)
    storage = PageStorage(device, order, layout, levels, num_null_slots, debug_fill)
    storage.packs_with_loss = codec is not None and not codec.is_lossless
    packer = None if codec is None else PagePacker(codec, device, layout, storage.rows)
    mover = PageMover(device, order, storage.pool_groups, storage.num_pool_groups, storage.num_levels, packer)
    if len(levels) > 1:
        try:
            mover.bounce.open(layout)
            if packer is not None:
                largest = max([layout.slot_bytes_total(index, 1) for index in range(layout.num_pool_groups)])
                for number, level in enumerate(levels):
                    if level.tier == CacheTier.DISK:
                        packer.open_staging(number, largest)
        except BaseException:
            mover.close()
            storage.close()
            raise
    return storage, mover


_logger: Final = PackageLog("kv_cache_manager_v2")


@final
class MemoryLease:
    """Conservation: `num_views` is the number of `take` without `release`."""

    __slots__ = ("num_views", "is_closed", "_storage", "_mover", "_device", "_owns_device")

    def __init__(self, storage: PageStorage, mover: PageMover, device: Device, owns_device: bool) -> None:
        self.num_views = 0
        self.is_closed = False
        """Whether the manager is shut down: PENDING or CLOSED."""
        self._storage: Final = storage
        self._mover: Final = mover
        self._device: Final = device
        self._owns_device: Final = owns_device

    def take(self) -> None:
        self.num_views += 1

    def release(self) -> None:
        assert self.num_views > 0, "a view of the memory was released twice"
        self.num_views -= 1
        if self.is_closed and self.num_views == 0:
            self._close_memory()

    def close(self) -> None:
        """Release the memory, or let the last view do so. Nothing that the manager enqueued is running."""
        self.is_closed = True
        if self.num_views == 0:
            self._close_memory()
        else:
            _logger.warning(
                "the manager is shut down, but %d pool views are not released: its memory stays until they are (PoolView.release)",
                self.num_views,
            )

    def _close_memory(self) -> None:
        self._mover.close()
        self._storage.close()
        if self._owns_device:
            self._device.close()
