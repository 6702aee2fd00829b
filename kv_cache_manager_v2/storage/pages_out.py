"""Copies of pages into host memory of the caller's, on a stream of their own: neither a step nor its thread waits for the bytes.

Where a codec packs pages, those of level 0 are packed on their way out, and those below are as they are.

A copy is ordered behind all that its slot waits for, and behind the points that the caller names; the next user of the slot is ordered
behind the copy, as `StreamOrder` does for all streams. No decision depends on it.

    pages collected by `add`     -> `enqueue`: their copies are under way, their slots wait for them
                                 -> `discard`: nothing has happened
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.ids import CacheTier
from ..device.port import CopyBatch, Device
from ..device.stream_order import NO_POINT, StreamOrder
from ..pools.pool_group import PoolGroup
from .page_packer import PagePacker
from .page_storage import PageStorage


@final
class PagesOut:
    __slots__ = (
        "stream", "last", "_device", "_order", "_storage", "_timeline", "_batches", "_indices", "_slots", "_packer", "_unpacked"
    )  # fmt: skip

    _timeline: Final[i64]

    def __init__(self, storage: PageStorage, packer: PagePacker | None = None) -> None:
        self._device: Final[Device] = storage.device
        self._order: Final[StreamOrder] = storage.order
        self._storage: Final = storage
        self._packer: Final = packer
        self._unpacked: Final[list[list[tuple[int, int, int]]]] = [[] for _ in range(storage.num_pool_groups)]
        """Collected pages that are to be packed, by pool group: the page, its slot of level 0, and where it goes."""
        self._batches: Final[list[CopyBatch]] = []
        """One for each tier and size of pool slots."""
        self._indices = vec[i64]()
        self._slots = vec[i64]()
        """Where the collected pages are."""
        self.last: i64 = NO_POINT
        """The point behind all copies so far."""
        self.stream: Final[int] = storage.device.create_stream()
        try:
            self._timeline = storage.order.enter(self.stream, True)
        except BaseException:
            storage.device.destroy_stream(self.stream)
            raise

    def add(self, index: i64, slot: i64, target: i64, page: i64) -> None:
        """A page, in a slot of that level and pool group, which is memory; it goes to ``target``, packed, or pool after pool."""
        group = self._storage.pool_groups[index]
        packer = self._packer
        if packer is None:
            for pool in range(len(group.slot_bytes)):
                num_bytes = group.slot_bytes[pool]
                self._batch(group, num_bytes).add(target, group.base_addresses[pool] + slot * num_bytes)
                target += num_bytes
        elif index < self._storage.num_pool_groups:
            self._unpacked[index].append((int(page), int(slot), int(target)))
        else:
            self._batch(group, packer.packed_bytes(page)).add(target, group.base_addresses[0] + slot * group.slot_bytes[0])
        self._indices = append(self._indices, index)
        self._slots = append(self._slots, slot)

    def _batch(self, group: PoolGroup, num_bytes: i64) -> CopyBatch:
        for batch in self._batches:
            if batch.num_bytes == num_bytes and batch.src_tier == group.tier:
                return batch
        made = CopyBatch(CacheTier.HOST_MEM, group.tier, num_bytes)
        self._batches.append(made)
        return made

    def enqueue(self) -> None:
        """If the device refuses, some copies may be under way all the same, and their slots wait for them."""
        order = self._order
        timeline = self._timeline
        allocators = self._storage.allocators
        count = len(self._slots)
        known = NO_POINT  # pages of one step have one point
        try:
            for position in range(count):
                point = allocators[self._indices[position]].ready[self._slots[position]]
                if point != known:
                    order.wait(timeline, point)
                    known = point
            for batch in self._batches:
                if batch.count > 0:
                    self._device.copy_beside(self.stream, batch)
            for pool_group, unpacked in enumerate(self._unpacked):
                if len(unpacked) > 0:
                    self._pack(pool_group, unpacked)
        finally:
            mark = order.mark(timeline)
            self.last = mark
            known = NO_POINT
            both = mark
            for position in range(count):
                slot = self._slots[position]
                ready = allocators[self._indices[position]].ready
                if ready[slot] != known:
                    known = ready[slot]
                    both = order.advance(known, timeline, mark)
                ready[slot] = both
            self.discard()

    def _pack(self, pool_group: i64, unpacked: list[tuple[int, int, int]]) -> None:
        packer = self._packer
        assert packer is not None
        pages = vec[i64]([page for page, _slot, _target in unpacked])
        slots = vec[i64]([slot for _page, slot, _target in unpacked])
        targets = vec[i64]([target for _page, _slot, target in unpacked])
        packer.pack(self.stream, pages, self._storage.pool_groups[pool_group], slots, targets)

    def is_done(self, point: i64) -> bool:
        """Whether the copies before that point, which was `last`, are done; also after the manager's shutdown, which waits for them."""
        return self._order.is_closed or self._order.is_done(point)

    def discard(self) -> None:
        """Forget what was collected."""
        self._indices = vec[i64]()
        self._slots = vec[i64]()
        for batch in self._batches:
            batch.clear()
        for unpacked in self._unpacked:
            unpacked.clear()

    def leave(self) -> None:
        """Nothing is copied any more; the stream may be destroyed then."""
        self._order.leave(self._timeline)
