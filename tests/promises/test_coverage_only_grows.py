"""A page may hold fewer tokens than its block. The tree knows how many; coverage only grows, in whatever order sequences publish."""

from typing import Any

import pytest
from small_models import free_slots, manager_of, run_prompt

from kv_cache_manager_v2 import KVCacheManager

TEXT = list(range(160))
OTHER = [1000 + token for token in range(40)]


def probe(manager: KVCacheManager, text: list[int]) -> int:
    return manager.probe_reuse(input_tokens=text)


@pytest.mark.parametrize("lengths", [(80, 160), (160, 80)])
def test_a_short_and_a_long_text_that_share_the_short_one(lengths: tuple[int, int]) -> None:
    """32 tokens per block, full attention and a window of 16. At 80 the window reads 65 .. 80, so block 2 alone; at 160 block 4."""
    with manager_of([None, 16], tokens_per_block=32) as manager:
        for length in lengths:
            run_prompt(manager, TEXT[:length]).close()
            manager.check_invariants()
        assert probe(manager, TEXT[:80] + OTHER) == 80
        assert probe(manager, TEXT) == 160


@pytest.mark.parametrize("lengths", [(80, 88, 80), (88, 80, 80), (80, 80, 88)])
def test_coverage_only_grows(lengths: tuple[int, ...]) -> None:
    with manager_of([None, 16], tokens_per_block=32) as manager:
        for length in lengths:
            run_prompt(manager, TEXT[:length]).close()
            manager.check_invariants()
        assert probe(manager, TEXT[:80] + OTHER) == 80
        assert probe(manager, TEXT[:88] + OTHER) == 88


@pytest.mark.parametrize("holder_is_active", [True, False])
def test_a_block_replaced_by_a_fuller_one_stays_while_held(holder_is_active: bool) -> None:
    with manager_of([None, 16], tokens_per_block=32) as manager:
        short = run_prompt(manager, TEXT[:80])
        short.stop_committing()
        reader = manager.create_kv_cache(input_tokens=TEXT[:80] + OTHER)
        assert reader.num_committed_tokens == 80
        if not holder_is_active:
            short.suspend()
        run_prompt(manager, TEXT[:88]).close()
        manager.check_invariants()
        reader.close()
        manager.check_invariants()
        short.close()
        manager.check_invariants()
        assert probe(manager, TEXT) == 88
        manager.clear_reusable_blocks()
        assert free_slots(manager) == 64


def test_backoff_trims_every_match() -> None:
    """8 tokens per block, a backoff of 3: of 32 committed tokens 29 match, of 2 none."""
    with manager_of(tokens_per_block=8, reuse_match_backoff=3) as manager:
        run_prompt(manager, TEXT[:32]).close()
        run_prompt(manager, OTHER[:2]).close()
        assert probe(manager, TEXT[:32]) == 29
        assert probe(manager, OTHER[:2]) == 0


def rewind(kv_cache: Any, draft: int, accepted: int) -> None:
    """A step with one token and ``draft`` guesses, of which ``accepted`` are right."""
    begin = kv_cache.capacity
    assert kv_cache.resize(begin + 1 + draft, begin)
    assert kv_cache.resize(begin + 1 + accepted)
    kv_cache.commit(TEXT[begin : begin + 1 + accepted])


def test_rejected_drafts_leave_no_trace() -> None:
    """Blocks of 4: 7 draft tokens over a block boundary and back; the window of 6 never loses what the next token reads."""
    with manager_of([None, 6]) as manager:
        with run_prompt(manager, TEXT[:5]) as kv_cache:
            for accepted in (0, 3, 7, 1, 6):
                rewind(kv_cache, 7, accepted)
                manager.check_invariants()
                history = kv_cache.history_length
                assert history == kv_cache.capacity == kv_cache.num_committed_tokens
                windowed = kv_cache.get_base_page_indices(1).tolist()
                assert [slot >= 0 for slot in windowed] == [(block + 1) * 4 > history - 5 for block in range(len(windowed))]
        assert probe(manager, TEXT) == 5 + 1 + 4 + 8 + 2 + 7
