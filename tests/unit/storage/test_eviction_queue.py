"""Many pages at once take the places that one call each would have given them."""

import random

import pytest
from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2.storage.eviction_queue import EvictionQueue
from kv_cache_manager_v2.storage.page_rows import PLACE, ROW_WORDS, PageRows, pack_place
from kv_cache_manager_v2.storage.victim_queue import NUM_PRIORITIES

NUM_PAGES = 30


def queue_with_priorities(seed: int) -> tuple[EvictionQueue, list[int]]:
    """A queue, and pages of few priorities: neighbours often have the same one."""
    choices = random.Random(seed)
    rows = PageRows(1, NUM_PRIORITIES)
    queue = EvictionQueue(rows, 0)
    pages = []
    for slot in range(NUM_PAGES):
        page = int(rows.add_block())
        rows.words[page * ROW_WORDS + PLACE] = pack_place(slot, 0, choices.choice([3, 35, 35, 35, 100]))
        pages.append(page)
    return queue, pages


@pytest.mark.parametrize("seed", range(20))
def test_a_run_of_pages_comes_and_goes_as_page_by_page(seed: int) -> None:
    choices = random.Random(1000 + seed)
    one_by_one, pages = queue_with_priorities(seed)
    at_once, _ = queue_with_priorities(seed)
    waiting = list(pages)
    queued: list[int] = []
    for _ in range(40):
        choices.shuffle(waiting)
        count = choices.randint(0, len(waiting))
        run, waiting = waiting[:count], waiting[count:]
        if choices.random() < 0.5:
            at_once.push_run(vec[i64](run), count)
            for page in run:
                one_by_one.push(page)
        else:
            at_once.push_run_first(vec[i64](run), count)
            for page in run:
                one_by_one.push_first(page)
        queued += run
        assert at_once.collect() == one_by_one.collect()
        assert at_once.num_pages == one_by_one.num_pages == len(queued)
        assert at_once.first() == one_by_one.first()
        # In any order, or whole stretches from the last one on.
        if choices.random() < 0.5:
            choices.shuffle(queued)
        used = [queued.pop() for _ in range(choices.randint(0, len(queued)))]
        at_once.hold_run(vec[i64](used), len(used))
        for page in used:
            one_by_one.use(page)
        waiting += used


@pytest.mark.parametrize("seed", range(20))
def test_victims_leave_in_one_go_as_page_by_page(seed: int) -> None:
    """Whole stretches from the front of the line on, with a page from elsewhere among them now and then."""
    choices = random.Random(2000 + seed)
    one_by_one, pages = queue_with_priorities(seed)
    at_once, _ = queue_with_priorities(seed)
    for page in pages:
        one_by_one.push(page)
        at_once.push(page)
    while one_by_one.num_pages > 0:
        line = one_by_one.collect()
        gone = line[: choices.randint(1, len(line))]
        if len(gone) < len(line) and choices.random() < 0.5:
            gone.insert(choices.randint(1, len(gone)), choices.choice(line[len(gone) :]))
        at_once.evict_run(vec[i64](gone), len(gone))
        for page in gone:
            one_by_one.evict(page)
        assert at_once.collect() == one_by_one.collect()
        assert at_once.num_pages == one_by_one.num_pages
        assert at_once.first() == one_by_one.first()


def test_the_next_pages_are_known_among_pages_of_one_priority() -> None:
    queue, pages = queue_with_priorities(0)
    for page in pages:
        queue.push(page)
    line = queue.collect()
    for position, page in enumerate(line):
        behind = [other for other in line[position + 1 :] if priority_of(queue, other) == priority_of(queue, page)]
        listed = vec[i64]([0] * (len(line) + 2))
        assert queue.list_following(page, listed, 2, len(listed)) == len(behind)
        assert list(listed) == [0, 0, *behind] + [0] * (len(line) - len(behind))
        assert queue.list_following(page, listed, 0, 1) == min(1, len(behind))


def priority_of(queue: EvictionQueue, page: int) -> int:
    return int(queue._rows.priority(page))
