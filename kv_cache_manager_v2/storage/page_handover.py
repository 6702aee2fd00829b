"""A page that goes on under the row of another block: nothing is copied, holds and locks go with it."""

from mypy_extensions import i64

from .eviction_queue import EvictionQueue
from .page_rows import LINKS, LOW_MASK, NO_PAGE, NOT_QUEUED, ONE_LOCK, PLACE, ROW_WORDS, USERS, pack_place, priority_of_place
from .page_storage import GPU, PageStorage


def move_page(storage: PageStorage, source: i64, target: i64) -> None:
    """A private page goes on under a row of the published block that lacked it; nothing is copied."""
    words = storage.rows.words
    at_source = source * ROW_WORDS
    at_target = target * ROW_WORDS
    assert words[at_target + PLACE] == NO_PAGE, "a page was moved onto another"
    place = words[at_source + PLACE]
    queue: EvictionQueue | None = None
    if words[at_source + LINKS] != NOT_QUEUED:
        # A suspended sequence publishes its tail.
        queue = storage.held_queues[storage.rows.level(source) * storage.num_pool_groups + storage.pool_group_of_page(source)]
        queue.remove(source)
    words[at_target + PLACE] = place
    words[at_target + USERS] = words[at_source + USERS]
    words[at_source + PLACE] = NO_PAGE
    storage.reads.note_copy(source, target)
    storage.reads.forget(source)
    words[at_source + USERS] = 0
    if queue is not None:
        queue.push(target)
    sink = storage.sink
    if sink is not None:
        sink.on_page_published(target, storage.rows.level(target), storage.rows.priority(target))


def replace_page(storage: PageStorage, ours: i64, theirs: i64, pool_group: i64) -> None:
    """A published page that lies on a lower level goes on in the slot of an equal locked page on level 0."""
    words = storage.rows.words
    at_ours = ours * ROW_WORDS
    at_theirs = theirs * ROW_WORDS
    storage.copies.forget(theirs)
    level = storage.rows.level(theirs)
    index = level * storage.num_pool_groups + pool_group
    users = words[at_theirs + USERS]
    assert users < ONE_LOCK and level > 0, "a page was replaced that is in use"
    if words[at_theirs + LINKS] != NOT_QUEUED:
        (storage.queues[index] if users == 0 else storage.held_queues[index]).remove(theirs)
    slot = words[at_theirs + PLACE] & LOW_MASK
    storage.free_slot(index, slot, storage.allocators[index].ready[slot])
    priority = priority_of_place(words[at_theirs + PLACE])
    words[at_theirs + PLACE] = pack_place(words[at_ours + PLACE] & LOW_MASK, GPU, priority)
    words[at_theirs + USERS] = users + words[at_ours + USERS]
    words[at_ours + PLACE] = NO_PAGE
    storage.reads.forget(theirs)
    storage.reads.note_copy(ours, theirs)
    storage.reads.forget(ours)
    words[at_ours + USERS] = 0
    if storage.sink is not None:
        storage.sink.on_page_moved(theirs, level, GPU)
