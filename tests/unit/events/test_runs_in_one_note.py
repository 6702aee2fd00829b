"""What is noted for many at once is what would have been noted one by one: the same events come of it."""

import random

import pytest
from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2.events.event_assembler import EventAssembler
from kv_cache_manager_v2.events.event_backlog import EventBacklog
from kv_cache_manager_v2.events.event_log import EventLog
from kv_cache_manager_v2.events.layer_group_facts import LayerGroupFacts
from kv_cache_manager_v2.events.published_run import PublishedRun, unpack_level, unpack_priority
from kv_cache_manager_v2.events.removal_cause import CAPACITY, UNREACHABLE

FIRST_PAGE = 7
BLOCK_BYTES = 16
ROOT = -1
NOWHERE = -1


def follower(num_groups: int) -> tuple[EventLog, EventBacklog]:
    groups = [LayerGroupFacts("full_attention", None, (100,)) for _ in range(num_groups)]
    backlog = EventBacklog(EventAssembler(groups, FIRST_PAGE, "sha256", None, 100_000), 100_000)
    log = EventLog(backlog, FIRST_PAGE, num_groups)
    log.on_root_made(ROOT, None, None)
    return log, backlog


def publish_one_by_one(log: EventLog, run: PublishedRun, num_groups: int) -> None:
    parent = int(run.parent)
    for ordinal, block in enumerate(run.first_pages):
        log.on_block_published(block, parent, run.key(ordinal), None)
        for group in range(num_groups):
            place = run.levels_and_priorities[ordinal * num_groups + group]
            if place >= 0:
                log.on_page_published(block + group, unpack_level(place), unpack_priority(place))
        parent = int(block)


@pytest.mark.parametrize("num_groups", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_path_that_comes_and_goes(num_groups: int, seed: int) -> None:
    print("seed", seed)
    choices = random.Random(seed)
    at_once, at_once_backlog = follower(num_groups)
    one_by_one, one_by_one_backlog = follower(num_groups)
    for _ in range(6):
        # Some pages are missing, but none of group 0; the blocks' numbers are in no order.
        first_pages = [FIRST_PAGE + number * num_groups for number in choices.sample(range(40), 10)]
        levels_and_priorities = [
            NOWHERE
            if group > 0 and choices.random() < 0.3
            else choices.randrange(3) | choices.randrange(50) << 5 | choices.randrange(2) << 12
            for _ in first_pages
            for group in range(num_groups)
        ]
        packed = choices.randbytes(4 + 10 * BLOCK_BYTES)
        run = PublishedRun(ROOT, vec[i64](first_pages), vec[i64](levels_and_priorities), packed, 4, BLOCK_BYTES)
        at_once.on_run_published(run)
        publish_one_by_one(one_by_one, run, num_groups)
        # The path goes from its end, each block's page of group 0 before the others; some of a group go before.
        early = [first_page + 1 for first_page in first_pages if num_groups > 1 and choices.random() < 0.5]
        at_once.on_pages_removed(vec[i64](early), len(early), CAPACITY)
        path = [first_page + group for first_page in reversed(first_pages) for group in range(num_groups)]
        path = [page for page in path if page not in early]
        blocks = vec[i64](list(reversed(first_pages)))
        at_once.on_path_removed(vec[i64](path), len(path), blocks, len(blocks), 0, num_groups, CAPACITY)
        for page in early:
            one_by_one.on_page_removed(page, CAPACITY)
        for page in path:
            # Without its first page a block cannot be matched, so the others go with that.
            one_by_one.on_page_removed(page, CAPACITY if page in first_pages else UNREACHABLE)
        for block in blocks:
            one_by_one.on_block_removed(block)
        for log in (at_once, one_by_one):
            assert not any(log.is_announced(first_page + group) for first_page in first_pages for group in range(num_groups))
            log.hand_over()
    events = [event.to_json() for event in at_once_backlog.drain()]
    assert events == [event.to_json() for event in one_by_one_backlog.drain()]
    # Of each group a created one; of each of six rounds a stored one of group 0 and at least one removed.
    assert len(events) >= num_groups + 6 * 2
