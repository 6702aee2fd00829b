"""`WindowRuns`: into how many children a run of windowed pages is followed, and what it knows after a look."""

import pytest
from small_models import manager_of, run_prompt

from kv_cache_manager_v2 import ReuseScope
from kv_cache_manager_v2.events.removal_cause import CAPACITY
from kv_cache_manager_v2.reuse.token_packing import pack_tokens
from kv_cache_manager_v2.storage.page_removal import drop

T = 4


@pytest.mark.parametrize("num_children, num_useless", [(1, 2), (2, 3), (8, 9), (9, 0)])
def test_a_run_is_followed_into_eight_children(num_children: int, num_useless: int) -> None:
    # The 16 tokens before the next one lie in at least 4 blocks. The first block, the second and a third one are a run of 3:
    # without the first one's page no window fits into what is left, so the second's page is useless, and so is each third one's.
    with manager_of(windows=(None, 17), num_slots=256) as manager:
        shared = list(range(2 * T))
        for child in range(num_children):
            run_prompt(manager, shared + [100 * child + position for position in range(100, 100 + T)]).close()
        tree = manager._shared.tree
        first, second = tree.find_path(tree.find_root(ReuseScope()), pack_tokens(shared, tree.digests, False), 0)
        assert second.only_child is not None or (second.children is not None and second.children.count == num_children)
        pages = list(tree._runs.find_useless(first, 1))
        assert len(pages) == num_useless
        assert num_useless == 0 or pages[0] == second.first_page + 1


@pytest.mark.parametrize("forgets", [False, True])
def test_a_run_that_has_become_too_short_is_useless_whatever_was_known(forgets: bool) -> None:
    """Windows of 3 blocks, and 8 blocks of which the fourth has lost its page. With the last one's page 3 in a row are left, which a match
    can use; with the next one's 2, which none can."""
    with manager_of(windows=(None, 3 * T + 1), num_slots=256) as manager:
        prompt = list(range(8 * T))
        run_prompt(manager, prompt).close()
        tree = manager._shared.tree
        path = tree.find_path(tree.find_root(ReuseScope()), pack_tokens(prompt, tree.digests, False), 0)
        pages = [block.first_page + 1 for block in path]
        blocks = [tree.pool.block_of_page(page) for page in pages]
        found: list[list[int]] = []
        for lost in (3, 7, 6):
            drop(tree.storage, pages[lost], tree.storage.pool_group_of[1], CAPACITY, None)
            if forgets or lost == 7:
                tree._runs.forget_place()
            if lost != 3:
                found.append(list(tree._runs.find_useless(blocks[lost], 1)))
        assert found == [[], [pages[5], pages[4]]]
