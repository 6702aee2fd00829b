"""A block that two running sequences produce at the same time is stored once; the second one's slot comes back."""

import pytest
from small_models import manager_of, run_prompt, used_slots


def test_second_producer_takes_over_the_first_ones_page() -> None:
    with manager_of() as manager:
        first = manager.create_kv_cache()
        second = manager.create_kv_cache()
        for kv_cache in (first, second):
            assert kv_cache.resume() and kv_cache.resize(8)
        assert used_slots(manager) == 4
        first.commit([1, 2, 3, 4])
        second.commit([1, 2, 3, 4])
        manager.check_invariants()
        assert used_slots(manager) == 3
        a, b = first.get_base_page_indices(0).tolist(), second.get_base_page_indices(0).tolist()
        assert a[0] == b[0] and a[1] != b[1]


@pytest.mark.parametrize("num_others", [0, 1, 5])
def test_a_partial_block_whose_tokens_begin_a_longer_one_is_not_stored(num_others: int) -> None:
    """The tree has 5 6 7 8, and other blocks behind the same prefix: 5 6 at the end of a sequence adds no page."""
    with manager_of() as manager:
        for number in range(num_others):
            run_prompt(manager, [1, 2, 3, 4, 10 + number, 0, 0, 0]).close()
        run_prompt(manager, [1, 2, 3, 4, 5, 6, 7, 8]).close()
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(6)
            kv_cache.commit([1, 2, 3, 4, 5, 6])
        # One page of the shared prefix, one of each block behind it.
        assert used_slots(manager) == 2 + num_others
        manager.check_invariants()


def test_private_partial_block_is_never_swapped() -> None:
    """The tree has 5 6 7 8; a sequence that has written 5 6 of its own block goes on writing there."""
    with manager_of() as manager:
        writer = manager.create_kv_cache()
        assert writer.resume() and writer.resize(8)
        writer.commit([1, 2, 3, 4, 5, 6])
        own = writer.get_base_page_indices(0).tolist()
        fuller = run_prompt(manager, [1, 2, 3, 4, 5, 6, 7, 8])
        assert fuller.num_committed_tokens == 8
        assert writer.get_base_page_indices(0).tolist() == own
        assert fuller.get_base_page_indices(0)[1] != own[1]
        writer.commit([9, 10])
        assert writer.get_base_page_indices(0).tolist() == own
        manager.check_invariants()


def test_publishing_a_block_again_adds_missing_pages() -> None:
    """Window 4 (T = 4): a prompt of 16 leaves only its last window droppable-first; eviction takes the early ones.

    The same prompt, computed again from the start in a scope of reuse where only the full-attention pages are left, brings
    the windowed pages back to the published blocks.
    """
    with manager_of([4], num_slots=4) as manager:
        run_prompt(manager, list(range(16))).close()
        evicting = run_prompt(manager, [99, 98, 97, 96])
        evicting.close()
        again = manager.create_kv_cache()
        assert again.resume() and again.resize(4)
        again.commit([0, 1, 2, 3])
        manager.check_invariants()
        again.close()
        assert manager.probe_reuse(input_tokens=[0, 1, 2, 3]) == 4


def test_published_partial_block_is_never_written_again() -> None:
    """After `stop_committing` the next resize into the last block moves its owner to a private copy."""
    with manager_of() as manager:
        with run_prompt(manager, [1, 2, 3, 4, 5, 6]) as kv_cache:
            kv_cache.stop_committing()
            published = kv_cache.get_base_page_indices(0).tolist()
            assert manager.probe_reuse(input_tokens=[1, 2, 3, 4, 5, 6, 7]) == 6
            assert kv_cache.resize(7)
            private = kv_cache.get_base_page_indices(0).tolist()
            assert private[0] == published[0] and private[1] != published[1]
            manager.check_invariants()


def test_each_of_two_holders_copies_a_partial_block() -> None:
    with manager_of() as manager:
        run_prompt(manager, [1, 2, 3, 4, 5, 6]).close()
        holders = [manager.create_kv_cache(input_tokens=[1, 2, 3, 4, 5, 6]) for _ in range(2)]
        for holder in holders:
            assert holder.resume()
        tails = {holder.get_base_page_indices(0)[1] for holder in holders}
        assert len(tails) == 2
        assert used_slots(manager) == 1 + 1 + 2
        manager.check_invariants()


def test_shared_tail_is_copied_before_the_next_tokens() -> None:
    """Two owners of one published partial block grow without inputs of their own: another machine fills the tokens."""
    with manager_of() as manager:
        owners = [manager.create_kv_cache() for _ in range(2)]
        for owner in owners:
            assert owner.resume() and owner.resize(6)
        for owner in owners:
            owner.commit([1, 2, 3, 4, 5, 6])
        for owner in owners:
            owner.stop_committing()
        for owner in owners:
            assert owner.resize(8, 8)
        tails = {owner.get_base_page_indices(0)[1] for owner in owners}
        assert len(tails) == 2
        for owner in owners:
            assert owner.resize(20, 19)
        manager.check_invariants()


def test_sole_holder_goes_on_where_there_is_no_room_for_a_copy() -> None:
    """Two slots hold the six tokens; a copy of the partial block would need a third, but no other sequence uses the block."""
    with manager_of(num_slots=2) as manager:
        with run_prompt(manager, [1, 2, 3, 4, 5, 6]) as kv_cache:
            kv_cache.stop_committing()
            kv_cache.suspend()
            assert kv_cache.resume()
            assert kv_cache.resize(7)
            manager.check_invariants()
        with manager.create_kv_cache(input_tokens=[1, 2, 3, 4, 9]) as again:
            assert again.resume() and again.resize(6)
            manager.check_invariants()
    # Beside the slot of another sequence; where there are two slots at all, the match would be the whole block only.
    with manager_of(num_slots=3) as manager, manager.create_kv_cache() as other:
        assert other.resume() and other.resize(1)
        run_prompt(manager, [1, 2, 3, 4, 5, 6]).close()
        with manager.create_kv_cache(input_tokens=[1, 2, 3, 4, 5, 6]) as matched:
            assert matched.resume()
            matched_tokens = matched.committed_tokens
            assert matched_tokens == [1, 2, 3, 4, 5, 6]
            manager.check_invariants()


def test_tokens_that_are_written_and_not_committed_are_kept() -> None:
    """5 6 is published; another sequence has room for two more tokens in its own block of 5 6 and may have written them."""
    with manager_of() as manager:
        run_prompt(manager, [1, 2, 3, 4, 5, 6]).close()
        with manager.create_kv_cache() as writer:
            assert writer.resume() and writer.resize(8)
            writer.commit([1, 2, 3, 4, 5, 6])
            own = writer.get_base_page_indices(0).tolist()
            writer.stop_committing()
            assert writer.get_base_page_indices(0).tolist() == own
            manager.check_invariants()
