"""The steps of `PageStorage` for the pages of a run of blocks, with what they share looked up once per run.

A run is given by the first page ids of its blocks and a life cycle; which steps are taken, and in which order, is the same as
page by page. Callers use these where all blocks of a prompt go through at once: a call per page costs ten times its work.
"""

from librt.vecs import vec
from mypy_extensions import i64

from ..device.stream_order import NO_POINT, timeline_of_point
from .decision_digest import SLOT
from .page_rows import (
    LINKS,
    LOCKED_ONCE,
    LOW_MASK,
    MOST_HOLDS,
    NO_PAGE,
    NOT_QUEUED,
    ONE_HOLD,
    ONE_LOCK,
    PLACE,
    ROW_WORDS,
    holds_of_place,
    level_of_place,
    pack_place,
)
from .page_storage import GPU, PageStorage


def hold_run(storage: PageStorage, first_pages: vec[i64], life_cycle: i64, begin: i64, end: i64) -> None:
    """`hold` the pages of ``first_pages[begin:end]``, which are used once `use_held_run` of their queue says so."""
    if begin >= end:
        return
    words = storage.rows.words
    pool_group = storage.pool_group_of[life_cycle]
    used = vec[i64]([0] * (end - begin))
    num_used: i64 = 0
    level: i64 = GPU
    for first_page in first_pages[begin:end]:
        page = first_page + life_cycle
        place = words[page * ROW_WORDS + PLACE]
        if place >= ONE_HOLD:
            assert holds_of_place(place) < MOST_HOLDS, "a page has more users than its row can count"
            words[page * ROW_WORDS + PLACE] = place + ONE_HOLD
            continue
        if level_of_place(place) != level:
            _queue_held(storage, pool_group, level, used, num_used)
            num_used = 0
            level = level_of_place(place)
        words[page * ROW_WORDS + PLACE] = place + ONE_HOLD
        used[num_used] = page
        num_used += 1
    _queue_held(storage, pool_group, level, used, num_used)


def _queue_held(storage: PageStorage, pool_group: i64, level: i64, pages: vec[i64], count: i64) -> None:
    """The first ``count`` pages, of that level, have just got their first hold."""
    index = level * storage.num_pool_groups + pool_group
    storage.queues[index].hold_run(pages, count)
    if level < storage.last_level:
        storage.held_queues[index].push_run(pages, count)


def lock_run(storage: PageStorage, first_pages: vec[i64], life_cycle: i64, begin: i64, end: i64, timeline: i64) -> vec[i64]:
    """`lock` the pages, which are on level 0; their slots."""
    order = storage.order
    words = storage.rows.words
    pool_group = storage.pool_group_of[life_cycle]
    ready = storage.allocators[pool_group].ready
    is_only_level = storage.last_level == 0
    slots = vec[i64]([0] * (end - begin))
    num_newly_locked: i64 = 0
    awaited: i64 = NO_POINT
    position: i64 = 0
    for first_page in first_pages[begin:end]:
        page = first_page + life_cycle
        links = words[page * ROW_WORDS + LINKS]
        place = words[page * ROW_WORDS + PLACE]
        if links < NOT_QUEUED or is_only_level:
            # Held, and on the last level, so in no queue.
            assert links <= NOT_QUEUED and holds_of_place(place) > NOT_QUEUED - links, "a page was locked that is not held"
            words[page * ROW_WORDS + LINKS] = links + ONE_LOCK
            if links == NOT_QUEUED:
                num_newly_locked += 1
        else:
            storage.lock_without_wait(page, pool_group)
        slot = place & LOW_MASK
        slots[position] = slot
        point = ready[slot]
        if point != awaited and point != NO_POINT and timeline_of_point(point) != timeline:
            order.wait(timeline, point)
            awaited = point
        position += 1
    storage.num_locked[pool_group] += num_newly_locked
    return slots


def make_locked_run(
    storage: PageStorage, first_pages: vec[i64], life_cycle: i64, begin: i64, end: i64, priority: i64, timeline: i64
) -> vec[i64]:
    """`make_locked_page` for each block, all with one priority; their slots."""
    pool_group = storage.pool_group_of[life_cycle]
    count = end - begin
    if storage.slots.filler is not None:
        filled = vec[i64]([0] * count)
        position: i64 = 0
        for first_page in first_pages[begin:end]:
            filled[position] = storage.make_locked_page(first_page + life_cycle, pool_group, priority, timeline)
            position += 1
        return filled
    if storage.packs_with_loss:
        storage.unpacked.difference_update([int(first_page + life_cycle) for first_page in first_pages[begin:end]])
    order = storage.order
    words = storage.rows.words
    allocator = storage.allocators[pool_group]
    slots = allocator.allocate_many(count)
    ready = allocator.ready
    storage.digest.record_run(SLOT, slots)
    place_of_slot_0 = pack_place(0, GPU, priority) + ONE_HOLD
    awaited: i64 = NO_POINT
    for first_page, slot in zip(first_pages[begin:end], slots):
        page = first_page + life_cycle
        assert words[page * ROW_WORDS + PLACE] == NO_PAGE, "a page was made where there is one"
        words[page * ROW_WORDS + PLACE] = place_of_slot_0 + slot
        words[page * ROW_WORDS + LINKS] = LOCKED_ONCE
        point = ready[slot]
        if point != awaited and point != NO_POINT and timeline_of_point(point) != timeline:
            order.wait(timeline, point)
            awaited = point
    storage.num_locked[pool_group] += count
    return slots


def drop_run(storage: PageStorage, level: i64, pool_group: i64, pages: vec[i64], count: i64) -> None:
    """`drop` the first ``count`` of the pages, victims of one queue and what goes with them; the caller counts and tells of them."""
    index = level * storage.num_pool_groups + pool_group
    words = storage.rows.words
    allocator = storage.allocators[index]
    watch = storage.drop_watch
    if watch is not None:
        for number in range(count):
            watch.on_drop(pages[number])
    storage.queues[index].evict_run(pages, count)
    position: i64 = 0
    if storage.copies.num_copies > 0 or not storage.reads.is_idle:
        while position < count:
            storage.copies.forget(pages[position])
            storage.reads.forget(pages[position])
            position += 1
    slots = vec[i64]([0] * count)
    for position in range(count):
        place = words[pages[position] * ROW_WORDS + PLACE]
        assert 0 <= place < ONE_HOLD, "a page was dropped that is held"
        slots[position] = place & LOW_MASK
        words[pages[position] * ROW_WORDS + PLACE] = NO_PAGE
    if storage.slots.filler is not None:
        for slot in slots:
            storage.slots.free_slot(index, slot, allocator.ready[slot])
    else:
        allocator.free_run(slots)


def set_ready_run(storage: PageStorage, first_pages: vec[i64], life_cycle: i64, point: i64) -> None:
    """`set_ready` for those of the blocks that have a page."""
    words = storage.rows.words
    ready = storage.allocators[storage.pool_group_of[life_cycle]].ready
    for first_page in first_pages:
        place = words[(first_page + life_cycle) * ROW_WORDS + PLACE]
        if place != NO_PAGE:
            ready[place & LOW_MASK] = point


def release_run(storage: PageStorage, first_pages: vec[i64], life_cycles: vec[i64], begin: i64, end: i64, timeline: i64, mark: i64) -> None:
    """`unlock_and_release` all pages of published blocks, the last block first, one pool group after the other."""
    for group in range(storage.num_pool_groups):
        some = vec[i64]([life_cycle for life_cycle in life_cycles if storage.pool_group_of[life_cycle] == group])
        if len(some) > 0:
            _release_group(storage, first_pages, some, begin, end, timeline, mark)


def _release_group(
    storage: PageStorage, first_pages: vec[i64], life_cycles: vec[i64], begin: i64, end: i64, timeline: i64, mark: i64
) -> None:
    order = storage.order
    words = storage.rows.words
    has_lower_levels = storage.last_level > 0
    twins = storage.twin_owner
    pool_group: i64 = storage.pool_group_of[life_cycles[0]]
    ready = storage.allocators[pool_group].ready
    released = vec[i64]([0] * ((end - begin) * len(life_cycles)))
    num_released: i64 = 0
    num_unlocked: i64 = 0
    position = end - 1
    while position >= begin:
        first_page = first_pages[position]
        for life_cycle in life_cycles:
            page = first_page + life_cycle
            place = words[page * ROW_WORDS + PLACE] - ONE_HOLD
            links = words[page * ROW_WORDS + LINKS] - ONE_LOCK
            assert place >= 0 and links <= NOT_QUEUED, "a hold was released twice"
            words[page * ROW_WORDS + PLACE] = place
            words[page * ROW_WORDS + LINKS] = links
            slot = place & LOW_MASK
            point = ready[slot]
            ready[slot] = mark if timeline_of_point(point) == timeline and point <= mark else order.advance(point, timeline, mark)
            if links == NOT_QUEUED:
                num_unlocked += 1
                if twins is not None and twins.take_over(page):
                    continue
                if place < ONE_HOLD:
                    released[num_released] = page
                    num_released += 1
                elif has_lower_levels:
                    storage.held_queues[pool_group].push(page)
        position -= 1
    storage.queues[pool_group].push_run(released, num_released)
    storage.num_locked[pool_group] -= num_unlocked


def release_run_evict_first(
    storage: PageStorage, first_pages: vec[i64], life_cycle: i64, begin: i64, end: i64, timeline: i64, mark: i64
) -> None:
    """`unlock` and `release` the pages, evict-first, of published blocks, the first block first."""
    order = storage.order
    words = storage.rows.words
    pool_group = storage.pool_group_of[life_cycle]
    ready = storage.allocators[pool_group].ready
    queue = storage.queues[pool_group]
    twins = storage.twin_owner
    released = vec[i64]([0] * (end - begin))
    num_released: i64 = 0
    num_unlocked: i64 = 0
    for first_page in first_pages[begin:end]:
        page = first_page + life_cycle
        place = words[page * ROW_WORDS + PLACE]
        if holds_of_place(place) == 1 and words[page * ROW_WORDS + LINKS] == LOCKED_ONCE and (twins is None or not twins.has_twin(page)):
            words[page * ROW_WORDS + PLACE] = place - ONE_HOLD
            words[page * ROW_WORDS + LINKS] = NOT_QUEUED
            num_unlocked += 1
            slot = place & LOW_MASK
            point = ready[slot]
            ready[slot] = mark if timeline_of_point(point) == timeline and point <= mark else order.advance(point, timeline, mark)
            released[num_released] = page
            num_released += 1
        else:
            # Held by others too, or about to be: it enters another queue, or none.
            storage.unlock(page, pool_group, timeline, mark)
            storage.release(page, pool_group, True)
    queue.push_run_first(released, num_released)
    storage.num_locked[pool_group] -= num_unlocked
