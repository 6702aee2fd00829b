"""How much of a path is evicted at once, and what ends such a run. Nothing is changed by looking."""

import pytest
from librt.vecs import vec
from mypy_extensions import i64
from small_models import manager_of, run_prompt

from kv_cache_manager_v2 import KVCacheManager
from kv_cache_manager_v2.events.removal_cause import CAPACITY
from kv_cache_manager_v2.reuse.victim_path import VictimPath

BLOCK = 4


def prompt_of(number: int, num_blocks: int) -> list[int]:
    return list(range(1000 * number, 1000 * number + num_blocks * BLOCK))


def gather(manager: KVCacheManager, wanted: int) -> tuple[int, int]:
    """Blocks and pages of the run that begins with the next victim, a page without a window of a last block."""
    storage = manager._shared.storage
    before = storage.queues[0].collect()
    page = storage.queues[0].first()
    leaf = manager._shared.tree.pool.block_of_page(page)
    path = VictimPath(storage)
    num_blocks = path.gather(leaf, page - leaf.first_page, 0, wanted)
    assert storage.queues[0].collect() == before
    assert path.pages[0] == page
    return int(num_blocks), int(path.num_pages)


def test_a_path_longer_than_what_is_looked_up_at_once() -> None:
    """Sixteen pages in line are looked up at a time, and 1, 15, 16, 17, 33 of them are wanted; of two paths, the older one goes."""
    with manager_of([None], BLOCK, num_slots=60) as manager:
        run_prompt(manager, prompt_of(1, 40)).close()
        run_prompt(manager, prompt_of(2, 20)).close()
        for wanted in (1, 2, 7, 15, 16, 17, 18, 33, 34, 40):
            assert gather(manager, wanted) == (wanted, wanted)
        assert gather(manager, 60) == (40, 40)


def test_a_block_takes_its_other_pages_along() -> None:
    """A prompt of 2 blocks inside the window of 9 tokens: two pages each, and a block goes whole."""
    with manager_of([None, 9], BLOCK, num_slots=40) as manager:
        run_prompt(manager, prompt_of(1, 2)).close()
        assert gather(manager, 1) == (1, 2)
        assert gather(manager, 3) == (2, 4)


@pytest.mark.parametrize("is_in_use", [False, True])
def test_a_branch_ends_the_run_and_so_does_what_is_in_use(is_in_use: bool) -> None:
    """Two prompts share 4 blocks: the first one's other 6 are next. The shared part has another child, or is held."""
    with manager_of([None], BLOCK, num_slots=20) as manager:
        run_prompt(manager, prompt_of(1, 10)).close()
        other = run_prompt(manager, prompt_of(1, 4) + ([] if is_in_use else prompt_of(2, 3)))
        if not is_in_use:
            other.close()
        assert gather(manager, 100) == (6, 6)


def test_another_path_in_line_ends_the_run() -> None:
    """The first half of a prompt was used again: only its second half is still at the front."""
    with manager_of([None], BLOCK, num_slots=20) as manager:
        run_prompt(manager, prompt_of(1, 10)).close()
        run_prompt(manager, prompt_of(2, 3)).close()
        run_prompt(manager, prompt_of(1, 5)).close()
        assert gather(manager, 100) == (5, 5)


def test_a_prompt_takes_the_room_of_an_older_one_in_few_steps() -> None:
    """What is left of the older prompt is its beginning, whole blocks, however much went at once."""
    for num_blocks in range(1, 10):
        with manager_of([None], BLOCK, num_slots=10) as manager:
            run_prompt(manager, prompt_of(1, 10)).close()
            run_prompt(manager, prompt_of(2, num_blocks)).close()
            assert manager.probe_reuse(None, prompt_of(1, 10)) == (10 - num_blocks) * BLOCK
            assert manager.probe_reuse(None, prompt_of(2, 10)) == num_blocks * BLOCK
            manager.check_invariants()


@pytest.mark.parametrize("windows", [[None, 9], [9]])
def test_pages_that_a_window_has_passed_go_together(windows: list[int | None]) -> None:
    """20 blocks, a window of 9 tokens: the next token, number 80, reads from 72 on, block 18. So pages of 18 blocks are first in
    line, that of block 17 before all others. Once it has gone, the 17 above follow without a further look. Without another layer group
    nothing stands in line behind the first block's page, and above it is the root."""
    with manager_of(windows, BLOCK, num_slots=60) as manager:
        kv_cache = run_prompt(manager, prompt_of(1, 20), expected_prompt_length=0)
        tree = manager._shared.tree
        queue = manager._shared.storage.queues[0]
        life_cycle = windows.index(9)
        line = queue.collect()
        assert [tree.pool.block_of_page(page).first_page + life_cycle for page in line] == line and len(line) == 18
        tree.drop_victims(0, 0, tree.storage.allocators[0].num_free + 1, CAPACITY, None)
        pages = vec[i64]([0] * 20)
        second = tree.pool.block_of_page(queue.first())
        assert tree._runs.list_out_of_window(second, life_cycle, queue, pages, 20) == 17
        assert list(pages)[:17] == line[1:]
        kv_cache.close()
