"""Loaded pages, from staging slots into pages of level 0, on their sequence's stream: copied, or unpacked where a codec has packed them."""

from typing import Final

from ..base.ids import CacheTier
from ..device.cold_page_codec import ColdPageCodec
from ..device.port import CopyBatch, Device
from ..layout.pool_desc import PoolGroupDesc
from ..layout.slot_desc import SlotDescVariant
from .page_record import RecordLayout
from .staging_slots import StagingSlots
from .store_tasks import StagedPage


class PageCopies:
    """Pages and their slots. ``descs``: the pools of level 0 as they are now."""

    def __init__(
        self, device: Device, staging: StagingSlots, layouts: list[RecordLayout], pool_group_of: list[int], descs: tuple[PoolGroupDesc, ...]
    ) -> None:
        self._device: Final = device
        self._staging: Final = staging
        self._layouts: Final = layouts
        self._pool_group_of: Final = pool_group_of
        self._descs: Final = {int(desc.pool_group_index): desc for desc in descs}

    def unpack(
        self, stream: int, pages: list[StagedPage], page_slots: list[int], codec: ColdPageCodec, variants: list[SlotDescVariant]
    ) -> None:
        """`enqueue` of pages that the codec has packed. ``variants``: the slots, by life cycle."""
        for life_cycle, variant in enumerate(variants):
            chosen = [(page, slot) for page, slot in zip(pages, page_slots, strict=True) if page.life_cycle == life_cycle]
            pools = self._descs[self._pool_group_of[life_cycle]].pools
            hot = [[int(pool.base_address) + slot * int(pool.slot_bytes) for _page, slot in chosen] for pool in pools]
            head = self._layouts[life_cycle].head_bytes
            if len(chosen) > 0:
                codec.decode(self._device, stream, variant, hot, [self._staging.address(page.slot) + head for page, _slot in chosen])

    def enqueue(self, stream: int, pages: list[StagedPage], page_slots: list[int]) -> None:
        """Each page, at its slot of level 0, from its staging slot."""
        batches: dict[int, CopyBatch] = {}
        for page, slot in zip(pages, page_slots, strict=True):
            staged = self._staging.address(page.slot) + self._layouts[page.life_cycle].head_bytes
            for pool in self._descs[self._pool_group_of[page.life_cycle]].pools:
                num_bytes = int(pool.slot_bytes)
                batch = batches.get(num_bytes)
                if batch is None:
                    batch = CopyBatch(CacheTier.GPU_MEM, CacheTier.HOST_MEM, num_bytes)
                    batches[num_bytes] = batch
                batch.add(int(pool.base_address) + slot * num_bytes, staged)
                staged += num_bytes
        for batch in batches.values():
            self._device.copy_batch(stream, batch)
