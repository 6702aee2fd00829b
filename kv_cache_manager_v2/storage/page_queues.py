"""The queue of an unlocked page: how a page leaves it, and where it goes back to.

An unlocked page stands in the eviction queue of its level and pool group (`PageStorage.queues`) where no sequence holds it, else among
the held pages of that level (`PageStorage.held_queues`), which may be offloaded but not dropped; of the last level that queue is empty.
"""

from mypy_extensions import i64

from .page_rows import LINKS, NOT_QUEUED, ONE_HOLD, PLACE, ROW_WORDS, add_priority, level_of_place, priority_of_place
from .page_storage import PageStorage


def take_out(storage: PageStorage, page: i64, pool_group: i64) -> None:
    """Take a page out of its queue, if it is in one: it cannot be chosen as a victim until `put_back`."""
    words = storage.rows.words
    if words[page * ROW_WORDS + LINKS] > NOT_QUEUED:
        place = words[page * ROW_WORDS + PLACE]
        index = level_of_place(place) * storage.num_pool_groups + pool_group
        (storage.queues[index] if place < ONE_HOLD else storage.held_queues[index]).take_out(page)


def take_out_victim(storage: PageStorage, page: i64, pool_group: i64) -> None:
    """The same for the next victim, which is offloaded or dropped: the policy of its level may remember it."""
    index = storage.rows.level(page) * storage.num_pool_groups + pool_group
    if storage.rows.num_holds(page) == 0:
        storage.queues[index].take_victim(page)
    else:
        storage.held_queues[index].remove(page)


def stands_first(storage: PageStorage, page: i64, index: i64) -> bool:
    """Whether a victim was put before all others of its priority, and not because it came last."""
    return storage.rows.num_holds(page) == 0 and storage.queues[index].stands_first(page)


def put_back(storage: PageStorage, page: i64, pool_group: i64, goes_first: bool = False) -> None:
    """Into the queue where an unlocked page belongs now, as its policy says (LRU: as the most recently used), or as the next to go."""
    level = storage.rows.level(page)
    index = level * storage.num_pool_groups + pool_group
    is_held = storage.rows.num_holds(page) > 0
    if is_held and level == storage.last_level:
        return
    queue = storage.held_queues[index] if is_held else storage.queues[index]
    if goes_first:
        queue.push_first(page)
    else:
        queue.push(page)


def defer(storage: PageStorage, index: i64, page: i64, below: i64) -> None:
    """The next victim of a queue goes behind ``below``, with a priority that is not lower."""
    words = storage.rows.words
    priority = priority_of_place(words[below * ROW_WORDS + PLACE])
    old = priority_of_place(words[page * ROW_WORDS + PLACE])
    if priority > old:
        words[page * ROW_WORDS + PLACE] = add_priority(words[page * ROW_WORDS + PLACE], priority - old)
        if storage.sink is not None:
            storage.sink.on_priority_changed(page, old, priority)
    storage.queues[index].defer(page, below)
