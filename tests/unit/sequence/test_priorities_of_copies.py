"""Priorities where one page takes another one's place: the copy of a matched tail, and equal blocks of sequences that keep their own."""

import pytest
from small_models import manager_of, run_prompt

from kv_cache_manager_v2 import LifeCycle
from kv_cache_manager_v2.base.ids import BlockOrdinal


def ask(ordinal: BlockOrdinal, life_cycle: LifeCycle) -> int:
    return 40 + 10 * int(ordinal) + (1 if life_cycle.window_size is None else 2)


def test_the_copy_of_a_matched_tail_has_the_priorities_that_were_asked_for() -> None:
    """Six tokens are a block and a published part of one, which the first resume copies, for each layer group."""
    with manager_of([6, None]) as manager:
        run_prompt(manager, list(range(6))).close()
        with manager.create_kv_cache(None, [*range(6), 100], custom_priority_callback=ask) as kv_cache:
            assert kv_cache.num_committed_tokens == 6
            state = kv_cache._state_for_batch()
            rows = manager._shared.storage.rows
            published = state.blocks[1]
            assert kv_cache.resume()
            assert state.blocks[1] is not published
            for before in ([[35, 35], [52, 51], [35, 35]], [[42, 41], [52, 51], [52, 51]]):
                # What was there already has them once it is in use.
                blocks = [*state.blocks, published]
                assert [[int(rows.priority(block.first_page + number)) for number in range(2)] for block in blocks] == before
                assert kv_cache.resize(7)


@pytest.mark.parametrize("keeps_indices", [False, True])
@pytest.mark.parametrize("first, second", [(20, 70), (70, 20)])
def test_equal_blocks_take_the_higher_priority(keeps_indices: bool, first: int, second: int) -> None:
    """Two sequences compute a block side by side: what is published has the higher priority, in either order of the commits."""
    with manager_of(allow_seq_rebasing=not keeps_indices) as manager:
        open_ones = []
        for priority in (first, second):
            answer = {"priority": priority}

            def asked(ordinal: BlockOrdinal, life_cycle: LifeCycle, answer: dict[str, int] = answer) -> int:
                return answer["priority"]

            kv_cache = manager.create_kv_cache(custom_priority_callback=asked)
            assert kv_cache.resume() and kv_cache.resize(4)
            open_ones.append(kv_cache)
        rows = manager._shared.storage.rows
        for kv_cache in open_ones:
            kv_cache.commit([1, 2, 3, 4])
        block = open_ones[0]._state_for_batch().blocks[0]
        assert block is open_ones[1]._state_for_batch().blocks[0]
        assert rows.priority(block.first_page) == 70
