"""How many slots of a level are free, could be freed, and must stay, as users are told."""

from mypy_extensions import i64

from ..stats.storage_statistics import StorageStatistics
from .page_storage import PageStorage


def compute_statistics(storage: PageStorage, level: i64, pool_group: i64) -> StorageStatistics:
    index = level * storage.num_pool_groups + pool_group
    allocator = storage.allocators[index]
    free = int(allocator.num_free)
    evictable = int(storage.queues[index].num_pages + storage.held_queues[index].num_pages)
    total = int(allocator.num_slots)
    return StorageStatistics(
        slot_sizes=storage.layout.slot_bytes(int(pool_group)),
        total=total,
        free=free,
        evictable=evictable,
        available=free + evictable,
        unavailable=total - free - evictable,
        peak_used=int(allocator.total_peak),
        evicted=int(storage.num_evicted[index]),
        clean_copies=int(allocator.num_aside),
    )
