"""The garbage collector looks at no block of the cache, however many are filled, and no call copies what the blocks before it have.

Nor does `KVCacheManager.freeze`, which hides all else from it, change a decision."""

import gc
import sys
from typing import Any

import numpy as np
import pytest
from small_models import config_of, manager_of, new_manager, run_prompt

from kv_cache_manager_v2 import HostDevice, KVCacheEventIndex, KVCacheEventManager, KVCacheManager, LogicError

BLOCK = 4
NUM_BLOCKS = 500


def fill(manager: KVCacheManager) -> None:
    for number in range(10):
        first = 1_000_000 * number
        run_prompt(manager, list(range(first, first + NUM_BLOCKS // 10 * BLOCK))).close()


def count_seen(only_blocks: bool) -> int:
    """Objects that the collector looks at: all, or the library's blocks alone, which other tests' remains do not change."""
    return sum(1 for seen in gc.get_objects() if not only_blocks or type(seen).__name__ == "Block")


def undo_freeze() -> None:
    """What the manager has hidden can be freed; what the test run itself has hidden is hidden again (conftest.py)."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def count_new_objects(freezes: bool, only_blocks: bool) -> int:
    """Objects that the collector has to look at once the cache is full, beyond those of an empty one."""
    with manager_of([None, 8], BLOCK, num_slots=2 * NUM_BLOCKS) as manager:
        try:
            if freezes:
                manager.freeze()
            gc.collect()
            before = count_seen(only_blocks)
            fill(manager)
            gc.collect()
            return count_seen(only_blocks) - before
        finally:
            undo_freeze()


@pytest.mark.parametrize("freezes", [False, True])
def test_the_collector_sees_no_block_that_is_cached(freezes: bool) -> None:
    """500 are cached. The root of the tree has 10 children: a dictionary and what keeps it in order."""
    assert count_new_objects(freezes, only_blocks=True) == 0
    assert count_new_objects(freezes, only_blocks=False) <= 20


def test_the_collector_sees_no_block_of_events() -> None:
    """What names blocks for events, and a router's view of them: the lists of tokens, too."""
    events = KVCacheEventManager(10_000)
    index = KVCacheEventIndex()
    with KVCacheManager(config_of([None, 8], BLOCK, 2 * NUM_BLOCKS), device=HostDevice(), event_manager=events) as manager:
        fill(manager)
        gc.collect()
        before = count_seen(only_blocks=False)
        events.flush_iteration_events()
        index.apply(events.get_latest_events())
        gc.collect()
        assert len(index) >= NUM_BLOCKS
        assert count_seen(only_blocks=False) - before <= 20
        assert index.blocks()[0].tokens == index.blocks()[0].tokens != []


def test_blocks_start_no_collection() -> None:
    """The collector runs after every 700 new objects, and looks at all young lists of the process: prompts that wait, above all."""
    num_blocks = 4096
    with manager_of([None, 8], BLOCK, num_slots=2 * num_blocks) as manager:
        fill(manager)
        kv_cache = manager.create_kv_cache(input_tokens=np.arange(num_blocks * BLOCK, dtype=np.int32))
        assert kv_cache.resume()
        gc.collect()
        before = gc.get_count()[0]
        assert kv_cache.resize(num_blocks * BLOCK)
        kv_cache.commit_input()
        made = gc.get_count()[0] - before
    assert 0 <= made < 350, "a collection sets the count to 0"


def test_the_collector_sees_no_list_of_all_blocks() -> None:
    """It would look at each item."""
    with manager_of([None, 8], BLOCK, num_slots=2 * NUM_BLOCKS) as manager:
        fill(manager)
        manager.clear_reusable_blocks()
        gc.collect()
        longest = [len(seen) for seen in gc.get_objects() if isinstance(seen, list) and len(seen) > 0 and type(seen[0]).__name__ == "Block"]
        assert longest == []


def test_blocks_of_a_manager_that_was_forgotten_are_freed() -> None:
    """Blocks refer to each other, and the collector does not see them: they go with the manager, also without a shutdown."""
    with manager_of([None, 8], BLOCK, num_slots=2 * NUM_BLOCKS) as manager:
        fill(manager)
    counts = []
    for _ in range(4):
        gc.collect()
        counts.append(sys.getallocatedblocks())
        manager = new_manager([None, 8], BLOCK, num_slots=2 * NUM_BLOCKS)
        fill(manager)
        with pytest.warns(ResourceWarning):
            del manager
            gc.collect()
    assert counts[-1] - counts[1] < NUM_BLOCKS // 2, counts


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("windows", [[None, 8], [None, 8, 4]])
def test_rows_stay_where_they_are_while_every_slot_has_a_block_of_its_own(windows: list[int | None], grows: bool) -> None:
    """Windows leave blocks with one page of several: there are more blocks than full ones would fit. What tree and statistics keep
    for each has been reserved; a copy of all would be a pause."""
    with manager_of(windows, BLOCK, num_slots=NUM_BLOCKS // 10 if grows else NUM_BLOCKS) as manager:
        if grows:
            assert manager.resize(0, 10 * manager.get_quota(0))
        rows: Any = manager._shared.storage.rows
        history: Any = manager._shared.tree.history
        run_prompt(manager, [1, 2, 3, 4]).close()
        places = [address_of(rows.words), address_of(history._prefixes.words), address_of(history._marks.words)]
        for number in range(NUM_BLOCKS // 10):
            with manager.create_kv_cache() as kv_cache:
                assert kv_cache.resume()
                for _ in range(20):
                    assert kv_cache.resize(kv_cache.capacity + BLOCK)
                    kv_cache.commit([number] * BLOCK)
        assert len(manager._shared.tree.pool.all_blocks()) > NUM_BLOCKS // len(windows) + 50
        assert places == [address_of(rows.words), address_of(history._prefixes.words), address_of(history._marks.words)]


def address_of(words: Any) -> int:
    return np.frombuffer(memoryview(words), np.int64).ctypes.data


def test_the_freeze_changes_no_decision() -> None:
    digests = []
    for freezes in (False, True):
        with manager_of([None, 8], BLOCK, num_slots=NUM_BLOCKS) as manager:
            try:
                if freezes:
                    manager.freeze()
                fill(manager)
                fill(manager)
                digests.append(manager.state_digest())
                manager.check_invariants()
            finally:
                undo_freeze()
    assert digests[0] == digests[1]


def test_a_manager_that_is_shut_down_has_nothing_to_freeze() -> None:
    manager = new_manager([None], BLOCK, num_slots=8)
    manager.shutdown()
    with pytest.raises(LogicError):
        manager.freeze()
