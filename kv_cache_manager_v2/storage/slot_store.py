"""The slots of all levels: the memory pools, which slots are free, and scratch slots, which have no page.

What belongs to pool group ``g`` at level ``l`` is at index ``l * num_pool_groups + g``. Every free slot has a point
(`SlotAllocator.ready`): its next user waits until the device has passed it.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..device.port import Device
from ..device.slot_watch import SlotWatch
from ..device.stream_order import StreamOrder, timeline_of_point
from ..layout.slot_layout import SlotLayout
from ..pools.pool_group import PoolGroup
from ..pools.slot_allocator import SlotAllocator
from .page_fill import DebugFill
from .decision_digest import SLOT, DecisionDigest
from .level_slots import LevelSlots
from .page_fill import PageFiller


@final
class SlotStore:
    __slots__ = ("pool_groups", "allocators", "num_locked", "filler", "_device", "_order", "_layout", "_digest")

    def __init__(self, device: Device, order: StreamOrder, layout: SlotLayout, digest: DecisionDigest) -> None:
        self.pool_groups: Final[list[PoolGroup]] = []
        self.allocators: Final[list[SlotAllocator]] = []
        self.num_locked = vec[i64]([0] * layout.num_pool_groups)
        """Pages with a lock and scratch slots, per pool group."""
        self.filler: PageFiller | None = None
        """None unless slots are filled with a debug pattern as they are handed out."""
        self._device: Final = device
        self._order: Final = order
        self._layout: Final = layout
        self._digest: Final = digest

    def add_level(self, level: LevelSlots, num_null_slots: int) -> None:
        max_bytes = level.compute_max_bytes(self._device)
        number = len(self.pool_groups) // self._layout.num_pool_groups
        for index in range(self._layout.num_pool_groups):
            slot_bytes = self._layout.slot_bytes(index, number)
            most = max(level.num_slots[index], max_bytes // sum(slot_bytes))
            path = level.path
            watches: list[SlotWatch] | None = None
            if level.durable is not None:
                path = level.durable.data_path(index)
                watches = list(level.durable.groups[index].pools)
            group = PoolGroup(self._device, level.tier, slot_bytes, level.num_slots[index], num_null_slots, path, most, watches)
            self.pool_groups.append(group)
            self.allocators.append(group.allocator)

    def fill_pages(self, debug_fill: DebugFill) -> None:
        """From now on slots of level 0 are filled with a pattern as they are handed out and freed."""
        self.filler = PageFiller(self._device, self._order, self.pool_groups, debug_fill)

    def close(self) -> None:
        """Free the memory. The caller has synchronised."""
        if self.filler is not None:
            self.filler.close()
        for group in self.pool_groups:
            group.close()

    def free_slot(self, index: i64, slot: i64, point: i64) -> None:
        """The slot may be touched after ``point``."""
        if self.filler is not None and index < len(self.num_locked):
            point = self.filler.fill_freed(index, slot, point)
        self.allocators[index].free(slot, point)

    def take_scratch_slot(self, pool_group: i64, timeline: i64) -> i64:
        """A free slot without a page; room has been made before. It stays free if the device refuses to wait for it or to fill it."""
        allocator = self.allocators[pool_group]
        slot = allocator.allocate()
        self._digest.record(SLOT, slot)
        try:
            self._order.wait(timeline, allocator.ready[slot])
            if self.filler is not None:
                self.filler.fill_fresh(pool_group, slot, timeline)
        except BaseException:
            allocator.free(slot, allocator.ready[slot])
            raise
        self.num_locked[pool_group] += 1
        return slot

    def free_scratch_slot(self, pool_group: i64, slot: i64, mark: i64) -> None:
        """The slot may be touched after ``mark``, and after what its owner would have waited for had it got to use it."""
        self.num_locked[pool_group] -= 1
        point = self._order.advance(self.allocators[pool_group].ready[slot], timeline_of_point(mark), mark)
        self.free_slot(pool_group, slot, point)

    def advance_ready(self, slot: i64, pool_group: i64, timeline: i64, mark: i64) -> None:
        """The next user of the slot waits for ``mark``, a fresh mark of ``timeline``, too."""
        allocator = self.allocators[pool_group]
        allocator.ready[slot] = self._order.advance(allocator.ready[slot], timeline, mark)
