"""The bytes of pages on level 0: copied and cleared on a sequence's own stream, cleared where a pool has grown."""

from math import gcd

from librt.vecs import vec
from mypy_extensions import i64

from ..base.ids import CacheTier
from ..device.port import CopyBatch
from .page_fill import fill_slots
from .page_storage import PageStorage


def copy_page(storage: PageStorage, source: i64, target: i64, pool_group: i64, stream: int) -> None:
    """Enqueue a copy of all bytes of a page on level 0; both are locked by the stream's sequence."""
    source_slot = storage.rows.slot(source)
    target_slot = storage.rows.slot(target)
    storage.record_copy(source, target)
    group = storage.pool_groups[pool_group]
    for pool in range(len(group.slot_bytes)):
        num_bytes = group.slot_bytes[pool]
        base = group.base_addresses[pool]
        batch = CopyBatch(CacheTier.GPU_MEM, CacheTier.GPU_MEM, num_bytes)
        batch.add(base + target_slot * num_bytes, base + source_slot * num_bytes)
        storage.device.copy_batch(stream, batch)


def copy_slots_at_once(storage: PageStorage, pool_groups: vec[i64], sources: vec[i64], targets: vec[i64], stream: int) -> None:
    """Enqueue copies of whole slots of level 0 as one batch, which is refused as a whole.

    A batch is of one size: the largest that all slots are multiples of. Devices join what lies side by side.
    """
    sizes: set[int] = set()
    for pool_group in pool_groups:
        sizes.update(storage.layout.slot_bytes(int(pool_group)))
    piece_bytes: i64 = gcd(*sizes)
    batch = CopyBatch(CacheTier.GPU_MEM, CacheTier.GPU_MEM, piece_bytes)
    for position in range(len(pool_groups)):
        group = storage.pool_groups[pool_groups[position]]
        for pool in range(len(group.slot_bytes)):
            num_bytes = group.slot_bytes[pool]
            source = group.base_addresses[pool] + sources[position] * num_bytes
            target = group.base_addresses[pool] + targets[position] * num_bytes
            for offset in range(0, num_bytes, piece_bytes):
                batch.add(target + offset, source + offset)
    storage.device.copy_batch(stream, batch)


def clear_page(storage: PageStorage, page: i64, pool_group: i64, stream: int) -> None:
    """Enqueue zeros for all bytes of a page on level 0 that the stream's sequence has locked."""
    fill_slots(storage.device, stream, storage.pool_groups[pool_group], storage.rows.slot(page), 1, 0)


def clear_slots(storage: PageStorage, pool_group: i64, begin: i64, end: i64) -> None:
    """Zeros in slots of level 0 that are new, where the device's memory does not begin as zeros; waits for it."""
    if storage.device.is_software:
        return
    group = storage.pool_groups[pool_group]
    stream = storage.device.default_stream()
    fill_slots(storage.device, stream, group, group.allocator.first_slot + begin, end - begin, 0)
    storage.device.synchronize_stream(stream)
