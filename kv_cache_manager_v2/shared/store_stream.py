"""The stream on which pages are copied out: neither a sequence's step nor its thread waits for the bytes.

A copy is ordered behind what is on the sequence's stream when it is enqueued; the next user of one of the pages' slots is ordered behind
the copy, as `StreamOrder` does for all streams. No decision depends on it.
"""

from typing import Final

from ..base.ids import BAD_PAGE_INDEX, GPU_LEVEL
from ..device.stream_order import NO_POINT
from ..manager.kv_cache import KVCache
from ..manager.kv_cache_manager import KVCacheManager
from .page_copies import PageCopies
from .staging_slots import EnqueuedCopy
from .store_tasks import StagedPage


class StoreStream:
    """``pool_group_of``: by life cycle."""

    def __init__(self, manager: KVCacheManager, pool_group_of: list[int]) -> None:
        self._device: Final = manager.device
        self._pool_group_of: Final = pool_group_of
        self._shared: Final = manager._shared
        self.stream: Final = manager.device.create_stream()
        try:
            with self._shared.guard:
                self._timeline: Final = int(self._shared.order.enter(self.stream))
        except BaseException:
            manager.device.destroy_stream(self.stream)
            raise

    def list_snapshots(self, kv_cache: KVCache, life_cycle: int, end: int) -> list[int]:
        """Of the sequence's blocks before ``end``: the slot of the snapshot of recurrent state that ends with it, on level 0; else
        `BAD_PAGE_INDEX`."""
        state = kv_cache._state_for_batch()
        rows = self._shared.storage.rows
        slots: list[int] = []
        with self._shared.guard:
            for ordinal in range(end):
                page = state.blocks[ordinal].first_page + life_cycle
                is_near = ordinal < state.num_published and rows.has_page(page) and rows.level(page) == GPU_LEVEL
                slots.append(int(rows.slot(page)) if is_near else BAD_PAGE_INDEX)
        return slots

    def copy_out(self, kv_cache: KVCache, copies: PageCopies, pages: list[StagedPage], slots: list[int]) -> EnqueuedCopy:
        """Enqueue copies of the pages, at these slots of level 0, into their staging slots."""
        order = self._shared.order
        storage = self._shared.storage
        with self._shared.guard:
            order.wait(self._timeline, order.mark(kv_cache._state_for_batch().timeline))
            for page, slot in zip(pages, slots, strict=True):
                # Snapshots are another stream's, maybe.
                ready = int(storage.allocators[self._pool_group_of[page.life_cycle]].ready[slot])
                if ready != NO_POINT:
                    order.wait(self._timeline, ready)
            try:
                copies.enqueue(self.stream, pages, slots, False)
            finally:
                # Also where only some were enqueued.
                mark = order.mark(self._timeline)
                for page, slot in zip(pages, slots, strict=True):
                    storage.slots.advance_ready(slot, self._pool_group_of[page.life_cycle], self._timeline, mark)
        return EnqueuedCopy(self._device, self.stream)

    def close(self) -> None:
        """The copies are done. After the manager's shutdown its order is closed already, and a broken manager has none."""
        if not self._shared.order.is_closed and not self._shared.guard.is_broken:
            with self._shared.guard:
                self._shared.order.leave(self._timeline)
        self._device.destroy_stream(self.stream)
