"""A page that goes on under the row of another block: nothing is copied, holds and locks go with it."""

from librt.vecs import vec
from mypy_extensions import i64

from .eviction_queue import EvictionQueue
from .page_rows import (
    LINKS,
    LOW_MASK,
    MOST_HOLDS,
    NO_PAGE,
    NOT_QUEUED,
    ONE_HOLD,
    PLACE,
    ROW_WORDS,
    holds_of_place,
    level_of_place,
    moved_place,
)
from .page_storage import GPU, PageStorage


def move_page(storage: PageStorage, source: i64, target: i64) -> None:
    """A private page goes on under a row of the published block that lacked it; nothing is copied."""
    words = storage.rows.words
    assert words[target * ROW_WORDS + PLACE] == NO_PAGE, "a page was moved onto another"
    place = words[source * ROW_WORDS + PLACE]
    queue: EvictionQueue | None = None
    if words[source * ROW_WORDS + LINKS] > NOT_QUEUED:
        # A suspended sequence publishes its tail.
        queue = storage.held_queues[level_of_place(place) * storage.num_pool_groups + storage.pool_group_of_page(source)]
        queue.remove(source)
    words[target * ROW_WORDS + PLACE] = place
    words[target * ROW_WORDS + LINKS] = words[source * ROW_WORDS + LINKS]
    words[source * ROW_WORDS + PLACE] = NO_PAGE
    words[source * ROW_WORDS + LINKS] = NOT_QUEUED
    storage.record_copy(source, target)
    storage.reads.forget(source)
    if queue is not None:
        queue.push(target)
    sink = storage.sink
    if sink is not None:
        sink.on_page_published(target, storage.rows.level(target), storage.rows.priority(target))


def replace_page(storage: PageStorage, ours: i64, theirs: i64, pool_group: i64, is_use: bool) -> None:
    """A published page that no active sequence has locked goes on in the slot of an equal locked page on level 0, with its holds and locks.

    ``is_use``: as for `PageStorage.hold`; of no matter where the page is in no queue.
    """
    words = storage.rows.words
    place = words[theirs * ROW_WORDS + PLACE]
    our_place = words[ours * ROW_WORDS + PLACE]
    num_our_holds = holds_of_place(our_place)
    level = level_of_place(place)
    index = level * storage.num_pool_groups + pool_group
    assert words[theirs * ROW_WORDS + LINKS] >= NOT_QUEUED, "a page was replaced that is in use"
    assert words[ours * ROW_WORDS + LINKS] < NOT_QUEUED, "a page was replaced by one that is not locked"
    assert holds_of_place(place) + num_our_holds <= MOST_HOLDS, "a page has more users than its row can count"
    point = _leave_slot(storage, theirs, index, level)
    if words[theirs * ROW_WORDS + LINKS] != NOT_QUEUED:
        if place >= ONE_HOLD:
            storage.held_queues[index].remove(theirs)
        elif not is_use:
            storage.queues[index].hold_run(vec[i64]([theirs]), 1)
        elif level > GPU:
            storage.queues[index].remove(theirs)
        else:
            storage.queues[index].use(theirs)
    storage.slots.free_slot(index, place & LOW_MASK, point)
    words[theirs * ROW_WORDS + PLACE] = moved_place(place, GPU, our_place & LOW_MASK) + num_our_holds * ONE_HOLD
    words[theirs * ROW_WORDS + LINKS] = words[ours * ROW_WORDS + LINKS]
    words[ours * ROW_WORDS + PLACE] = NO_PAGE
    words[ours * ROW_WORDS + LINKS] = NOT_QUEUED
    storage.reads.forget(theirs)
    storage.record_copy(ours, theirs)
    storage.reads.forget(ours)
    if storage.sink is not None and level > GPU:
        storage.sink.on_page_moved(theirs, level, GPU)


def _leave_slot(storage: PageStorage, page: i64, index: i64, level: i64) -> i64:
    """After which point the slot of a page may be touched that goes on, with the same bytes, in another one on level 0.

    Its clean copy is that of the same bytes. Not if the page was on the same level as the copy, or may have come from a disk: then which
    bytes the copy has depends on a read.
    """
    copies = storage.copies
    if copies.has_copy(page) and level == GPU and not storage.closed.has_disks:
        slot = storage.rows.slot(page)
        return copies.end_read(page, storage.allocators[index].ready[slot])
    copies.forget(page)
    return storage.allocators[index].ready[storage.rows.slot(page)]
