"""Slots per level: how many blocks of each layer group every cache level has slots for, as listeners are told."""

from .page_storage import PageStorage


def list_slots_per_level(storage: PageStorage) -> list[tuple[int, ...]]:
    """By life cycle, the slots of its pool group on each level."""
    num_pool_groups = int(storage.num_pool_groups)
    found: list[tuple[int, ...]] = []
    for life_cycle in range(int(storage.rows.num_life_cycles)):
        # The allocators of a level follow those of the level above it.
        allocators = storage.allocators[int(storage.pool_group_of[life_cycle]) :: num_pool_groups]
        found.append(tuple([int(allocator.num_slots) for allocator in allocators]))
    return found


def announce_slots(storage: PageStorage) -> None:
    """Pool groups have another number of slots than before."""
    if storage.sink is not None:
        storage.sink.on_levels_resized(list_slots_per_level(storage))
