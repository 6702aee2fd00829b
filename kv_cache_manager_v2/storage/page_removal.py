"""Pages that leave their slot: to another level, or dropped from the cache; their owner, the tree, hears of it.

``cause`` is a `removal_cause`; ``account``: counters of the sequence whose call it is, or None.
"""

from mypy_extensions import i64

from ..events.removal_cause import CAPACITY, FAILURE, SHRUNK, UNREACHABLE
from ..stats.page_counters import PageCounters
from .page_queues import defer
from .page_rows import LOW_MASK, NO_PAGE, ONE_HOLD, PLACE, ROW_WORDS, level_of_place, moved_place
from .page_storage import GPU, PageStorage
from .victim_queue import NO_VICTIM


def place_page(storage: PageStorage, page: i64, level: i64, slot: i64) -> None:
    """The page, in no queue, has moved to that slot."""
    words = storage.rows.words
    place = words[page * ROW_WORDS + PLACE]
    words[page * ROW_WORDS + PLACE] = moved_place(place, level, slot)
    if storage.packs_with_loss and level == GPU:
        storage.unpacked.add(int(page))
    storage.queues[level_of_place(place) * storage.num_pool_groups + storage.pool_group_of_page(page)].forget(page)
    if storage.sink is not None:
        # A sink passes over what was never published.
        storage.sink.on_page_moved(page, level_of_place(place), level)


def count_dropped(
    storage: PageStorage, level: i64, pool_group: i64, cause: i64, num_pages: i64, account: PageCounters | None, num_counted: i64 = 0
) -> None:
    """``num_counted`` of them were counted when a disk could not read them."""
    if cause == CAPACITY or cause == UNREACHABLE or cause == SHRUNK:
        num_evicted = storage.num_evicted
        num_evicted[level * storage.num_pool_groups + pool_group] += num_pages
    storage.last_cause = cause
    storage.counters.record_dropped(level, pool_group, cause, num_pages - num_counted, account)


def count_failed_reads(storage: PageStorage, account: PageCounters | None) -> None:
    """Each page that a disk could not read counts as dropped there, once, wherever it is and whether or not it can be read later."""
    for page, level in storage.reads.take_uncounted().items():
        storage.counters.record_dropped(level, storage.pool_group_of_page(page), FAILURE, 1, account)


def drop(storage: PageStorage, page: i64, pool_group: i64, cause: i64, account: PageCounters | None) -> None:
    """A droppable page is gone, for a `removal_cause`; its slot is free. ``account``: of the sequence whose call it is."""
    words = storage.rows.words
    place = words[page * ROW_WORDS + PLACE]
    assert 0 <= place < ONE_HOLD, "a page was dropped that is held"
    if storage.drop_watch is not None and (cause == CAPACITY or cause == UNREACHABLE or cause == SHRUNK):
        storage.drop_watch.on_drop(page)
    if storage.copies.num_copies > 0:
        storage.copies.forget(page)
    level = level_of_place(place)
    index = level * storage.num_pool_groups + pool_group
    if cause == CAPACITY or cause == UNREACHABLE:
        # What is useless without a victim is dropped with it.
        storage.queues[index].evict(page)
    else:
        storage.queues[index].remove(page)
    words[page * ROW_WORDS + PLACE] = NO_PAGE
    num_counted: i64 = 0
    if not storage.reads.is_idle or len(storage.reads.counted) > 0:
        num_counted = 1 if int(page) in storage.reads.counted else 0
        storage.reads.forget(page)
    count_dropped(storage, level, pool_group, cause, 1, account, num_counted)
    slot = place & LOW_MASK
    allocator = storage.allocators[index]
    if storage.slots.filler is None:
        allocator.free_as_it_is(slot)
    else:
        storage.slots.free_slot(index, slot, allocator.ready[slot])
    if storage.sink is not None:
        storage.sink.on_page_removed(page, cause)


def disown(storage: PageStorage, page: i64, pool_group: i64, cause: i64) -> None:
    """A held page, if there is one, is no page of the cache any more, and counts as dropped: it is its holders' alone, as a private one."""
    if not storage.rows.has_page(page):
        return
    index = storage.rows.level(page) * storage.num_pool_groups + pool_group
    storage.copies.forget(page)
    storage.queues[index].forget(page)
    count_dropped(storage, storage.rows.level(page), pool_group, cause, 1, None, 1 if int(page) in storage.reads.counted else 0)
    if storage.sink is not None:
        storage.sink.on_page_removed(page, cause)


def drop_with_owner(storage: PageStorage, page: i64, pool_group: i64, cause: i64, account: PageCounters | None) -> None:
    """`drop`, and the owner hears of it: what is useless without the page may go with it."""
    with storage.changes:
        drop(storage, page, pool_group, cause, account)
        storage.owner().on_page_dropped(page, account)


def drop_victims(storage: PageStorage, level: i64, pool_group: i64, wanted: i64, cause: i64, account: PageCounters | None) -> None:
    """Drop victims of a queue, what becomes useless with each one too, until ``wanted`` slots are free or it is empty (`PageOwner`)."""
    with storage.changes:
        storage.owner().drop_victims(level, pool_group, wanted, cause, account)


def is_published(storage: PageStorage, page: i64) -> bool:
    """Whether its bytes never change any more."""
    return storage.owner().is_published(page)


def find_page_below(storage: PageStorage, page: i64, level: i64) -> i64:
    """A queued page of that level that has to go before this one, since it is useless without it, or NO_PAGE (`PageOwner`)."""
    return storage.owner().find_page_below(page, level)


def find_victim(storage: PageStorage, index: i64, is_dropped: bool) -> i64:
    """The droppable page of least value of a queue that has some, to be dropped or to be offloaded. Of one path of the tree the leaf goes
    first: a page with others below it on its level is moved behind one of them in the queue."""
    queue = storage.queues[index]
    while True:
        page = queue.first_to_drop() if is_dropped else queue.first()
        assert page != NO_VICTIM, "no victim where one was counted"
        below = find_page_below(storage, page, storage.rows.level(page))
        if below == NO_PAGE:
            return page
        defer(storage, index, page, below)


def settle_reads(storage: PageStorage, account: PageCounters | None = None) -> None:
    """Look at the outcome of disk reads, and drop pages that are lost and that no sequence holds.

    ``account``: of the sequence whose call it is.
    """
    reads = storage.reads
    rows = storage.rows
    reads.settle()
    count_failed_reads(storage, account)
    # From the leaf of each path, so that each goes for its own reason.
    for page in reversed(list(reads.lost)):
        if page in reads.lost and rows.num_holds(page) == 0:
            drop_with_owner(storage, page, storage.pool_group_of_page(page), FAILURE, account)
