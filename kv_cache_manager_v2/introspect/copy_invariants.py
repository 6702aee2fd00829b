"""Invariants of clean copies: each is of a published page on a warmer level, each in a free slot of its own."""

from ..base.errors import CorruptedError
from ..sequence.shared_state import SharedState
from ..storage.page_removal import is_published


def check_copies(shared: SharedState) -> None:
    storage = shared.storage
    rows = storage.rows
    num_pool_groups = int(storage.num_pool_groups)
    copies = storage.copies.collect()
    if len(copies) != storage.copies.num_copies:
        raise CorruptedError(f"{len(copies)} clean copies are listed, {storage.copies.num_copies} counted")
    slots: list[set[int]] = [set() for _ in storage.allocators]
    for page, (index, slot) in copies.items():
        level, pool_group = divmod(index, num_pool_groups)
        name = f"the clean copy of page {page} in slot {slot} of level {level}"
        if not storage.copies.has_copy_at(page, index):
            raise CorruptedError(f"{name} is not known to the page")
        if not rows.has_page(page) or not is_published(storage, page):
            raise CorruptedError(f"{name} is not of a published page")
        if rows.level(page) >= level:
            raise CorruptedError(f"{name} is no colder than the page, which is on level {rows.level(page)}")
        if storage.pool_group_of_page(page) != pool_group:
            raise CorruptedError(f"{name} is in another pool group than the page")
        slots[index].add(slot)
    for index, allocator in enumerate(storage.allocators):
        if allocator.num_aside != len(slots[index]):
            raise CorruptedError(f"{allocator.num_aside} slots are set aside at index {index} for {len(slots[index])} copies")
        for slot in allocator.collect_free_slots():
            if slot in slots[index]:
                raise CorruptedError(f"slot {slot} at index {index} holds a clean copy and is in the list of slots without one")
