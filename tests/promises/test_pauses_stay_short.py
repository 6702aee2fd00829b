"""After `KVCacheManager.freeze` the garbage collector looks at no block of the cache, however many are filled, and no decision
is another one for it."""

import gc

import pytest
from small_models import manager_of, run_prompt

from kv_cache_manager_v2 import KVCacheManager, LogicError

BLOCK = 4
NUM_BLOCKS = 500


def fill(manager: KVCacheManager) -> None:
    for number in range(10):
        first = 1_000_000 * number
        run_prompt(manager, list(range(first, first + NUM_BLOCKS // 10 * BLOCK))).close()


def count_seen(only_blocks: bool) -> int:
    """Objects that the collector looks at: all, or the library's blocks alone, which other tests' remains do not change."""
    return sum(1 for seen in gc.get_objects() if not only_blocks or type(seen).__name__ == "Block")


def count_new_objects(freezes: bool, only_blocks: bool) -> int:
    """Objects that the collector has to look at once the cache is full, beyond those of an empty one."""
    with manager_of([None, 8], BLOCK, num_slots=2 * NUM_BLOCKS) as manager:
        try:
            if freezes:
                manager.freeze()
                assert gc.get_freeze_count() >= NUM_BLOCKS
            gc.collect()
            before = count_seen(only_blocks)
            fill(manager)
            gc.collect()
            return count_seen(only_blocks) - before
        finally:
            gc.unfreeze()


def test_the_collector_sees_no_block_that_is_cached_after_the_freeze() -> None:
    """Without it each of the 500 blocks is seen. The root of the tree has 10 children: a dictionary and what keeps it in order."""
    assert count_new_objects(freezes=False, only_blocks=True) >= NUM_BLOCKS
    assert count_new_objects(freezes=True, only_blocks=True) == 1, "the root, which the first sequence of a scope makes"
    assert count_new_objects(freezes=True, only_blocks=False) <= 20


def test_blocks_that_were_made_in_advance_are_taken_in_the_same_order() -> None:
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
                gc.unfreeze()
    assert digests[0] == digests[1]


def test_a_manager_that_is_shut_down_has_nothing_to_freeze() -> None:
    manager = manager_of([None], BLOCK, num_slots=8)
    manager.shutdown()
    with pytest.raises(LogicError):
        manager.freeze()
