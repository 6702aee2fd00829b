"""A windowed layer never holds more than it needs: pages that no layer will read again go back as the window moves."""

import pytest
from small_models import config_of, free_slots, manager_of, run_prompt, used_slots

from kv_cache_manager_v2 import BAD_PAGE_INDEX, GpuCacheTierConfig, HostCacheTierConfig, HostDevice, KVCacheManager, KVCacheManagerConfig


def valid_blocks(indices: memoryview) -> list[int]:
    return [ordinal for ordinal, index in enumerate(indices) if index != BAD_PAGE_INDEX]


def test_worked_example_of_a_long_prompt() -> None:
    """Window 1000, one token per block, prompt 4000 in chunks of 2000.

    At history 2000 the next token reads positions 1001..2000, so blocks 0..1000 are gone and the second chunk adds 2000; at
    4000 the first kept block is 3001; each decode step adds one block and frees one.
    """
    with manager_of([1000], tokens_per_block=1, num_slots=4000) as manager:
        kv_cache = manager.create_kv_cache()
        assert kv_cache.resume()
        assert kv_cache.resize(2000)
        assert used_slots(manager) == 2000
        assert kv_cache.resize(4000, 2000)
        assert valid_blocks(kv_cache.get_base_page_indices(0)) == list(range(1001, 4000))
        assert used_slots(manager) == 2999
        assert kv_cache.resize(4000, 4000)
        assert valid_blocks(kv_cache.get_base_page_indices(0)) == list(range(3001, 4000))
        for step in range(1, 5):
            assert kv_cache.resize(4000 + step, 4000 + step - 1)
            assert valid_blocks(kv_cache.get_base_page_indices(0)) == list(range(3000 + step, 4000 + step))
            assert used_slots(manager) == 1000
        manager.check_invariants()
        kv_cache.close()
        assert free_slots(manager) == 4000


def test_last_window_is_enough_for_a_hit() -> None:
    """T = 1, W = 2, ABCDE: the next token reads E and itself, so the page of E alone serves all five.

    With four slots F, G and H push out the pages in the order in which the window left them: A, B and C.
    """
    with manager_of([2], tokens_per_block=1, num_slots=4) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            for position, token in enumerate([1, 2, 3, 4, 5]):
                assert kv_cache.resize(position + 1)
                kv_cache.commit([token])
        assert manager.get_storage_statistics()[0].evicted > 0
        assert manager.probe_reuse(input_tokens=[1, 2, 3, 4, 5]) == 5
        assert manager.probe_reuse(input_tokens=[1, 2, 3, 4, 5, 6]) == 5


def test_sinks_are_kept() -> None:
    """T = 4, window 8, 5 sink tokens = 2 blocks. At history 40 the next token reads 33..40: blocks 2..7 are stale."""
    with manager_of([8], num_slots=64, sinks=[5]) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            assert kv_cache.resize(40)
            assert kv_cache.resize(44, 40)
            assert valid_blocks(kv_cache.get_base_page_indices(0)) == [0, 1, 8, 9, 10]
            manager.check_invariants()


def test_groups_with_different_windows() -> None:
    """Full attention keeps all 11 blocks; window 8 keeps those from floor(33 / 4) = 8 on, window 20 from floor(21 / 4) = 5."""
    with manager_of([None, 8, 20], num_slots=64) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            assert kv_cache.resize(40)
            assert kv_cache.resize(44, 40)
            assert valid_blocks(kv_cache.get_base_page_indices(0)) == list(range(11))
            assert valid_blocks(kv_cache.get_base_page_indices(1)) == [8, 9, 10]
            assert valid_blocks(kv_cache.get_base_page_indices(2)) == [5, 6, 7, 8, 9, 10]
            assert used_slots(manager) == 11 + 3 + 6
            manager.check_invariants()


def test_history_that_jumps_needs_only_the_last_window() -> None:
    """As when another machine filled the pages: `resize(n, n)` takes pages only for what the next step reads."""
    with manager_of([8], num_slots=4) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            assert kv_cache.resize(400, 400)
            # 393..400 are read: blocks 98, 99 (and 100, which is not there yet).
            assert valid_blocks(kv_cache.get_base_page_indices(0)) == [98, 99]
            manager.check_invariants()


@pytest.mark.parametrize("length", [1024, 1000])
def test_committed_prompt_is_reused_with_its_window(length: int) -> None:
    with manager_of([None, 128], tokens_per_block=32, num_slots=200) as manager:
        run_prompt(manager, list(range(length))).close()
        assert manager.probe_reuse(input_tokens=list(range(length))) == length
        manager.check_invariants()


def test_window_moves_before_new_pages_are_taken() -> None:
    """One call frees and takes: 4 slots are enough to slide a window of 8 tokens (4 per block) for ever."""
    with manager_of([8], num_slots=4) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            kv_cache.stop_committing()
            assert kv_cache.resize(8)
            for position in range(8, 100):
                assert kv_cache.resize(position + 1, position)
            manager.check_invariants()


def test_what_the_window_passed_goes_first_but_for_the_end_of_the_prompt() -> None:
    """Window 8, 4 tokens per block, a prompt of 600 tokens and an answer of 40: 160 blocks in two groups fill 320 slots.

    Windowed pages of blocks 148 and 149 serve prompts that part where this one ended, and from block (600 - 512 + 1 - 8) / 4 = 20 on
    those that part up to 512 tokens before. The window has passed 158 blocks: of these 0..19 and 150..157 go first, 28 pages, as
    many as the 14 blocks of another prompt need.
    """
    with manager_of([None, 8], num_slots=320) as manager:
        text = list(range(640))
        with run_prompt(manager, text[:600]) as kv_cache:
            for position in range(600, 640):
                assert kv_cache.resize(position + 1)
                kv_cache.commit(text[position : position + 1])
        assert free_slots(manager) == 0
        run_prompt(manager, list(range(1000, 1056))).close()
        assert manager.get_storage_statistics()[0].evicted == 28
        assert manager.probe_reuse(input_tokens=text) == 640
        assert manager.probe_reuse(input_tokens=[*text[:600], 9]) == 600
        assert manager.probe_reuse(input_tokens=text[:100]) == 100
        assert manager.probe_reuse(input_tokens=text[:80]) == 0
        manager.check_invariants()


@pytest.mark.parametrize("num_prompts", [7, 12])
def test_what_the_window_passed_takes_no_room_from_others_on_a_lower_level(num_prompts: int) -> None:
    """Window 9, 4 tokens per block: a text of 40 tokens has 10 pages, of which the window has passed 8, and a match of all of it needs the
    other 2. The GPU has room for one text, the host for 20 pages: the last 2 of ten texts. By recency alone it would be all 10 of two."""
    slot_bytes = 64  # of `config_of`: 4 tokens, a key and a value of 8 bytes each
    plain = config_of((9,), num_slots=10)
    config = KVCacheManagerConfig(
        plain.tokens_per_block, [GpuCacheTierConfig(10 * slot_bytes), HostCacheTierConfig(20 * slot_bytes)], plain.layers
    )
    with KVCacheManager(config, device=HostDevice()) as manager:
        texts = [list(range(1000 * number, 1000 * number + 40)) for number in range(num_prompts)]
        for text in texts:
            with manager.create_kv_cache() as kv_cache:
                assert kv_cache.resume()
                assert kv_cache.resize(40)
                kv_cache.commit(text)
            manager.check_invariants()
        found = [manager.probe_reuse(input_tokens=text) for text in texts]
        # Which text goes is the policy's choice: all came once.
        assert sorted(found) == [0] * max(0, num_prompts - 11) + [40] * min(num_prompts, 11)
