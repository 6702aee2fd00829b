"""A later sequence with the same prefix gets those tokens for free, while the first one still generates and afterwards."""

import sys

import pytest
from small_models import free_slots, manager_of, run_prompt, used_slots

from kv_cache_manager_v2 import ReuseScope


def test_prefix_of_a_running_sequence_is_reused() -> None:
    with manager_of() as manager:
        first = run_prompt(manager, list(range(100, 112)))
        with manager.create_kv_cache(input_tokens=list(range(100, 112)) + [7]) as second:
            assert second.num_committed_tokens == second.history_length == second.capacity == 12
            assert second.resume()
            assert second.get_base_page_indices(0).tolist() == first.get_base_page_indices(0).tolist()
            manager.check_invariants()


def test_prefix_of_a_closed_sequence_is_reused() -> None:
    with manager_of() as manager:
        run_prompt(manager, list(range(12))).close()
        assert manager.probe_reuse(input_tokens=list(range(9))) == 9
        assert manager.probe_reuse(input_tokens=[0, 1, 2, 99]) == 3
        assert manager.probe_reuse(input_tokens=[99]) == 0


def test_generated_tokens_are_reused() -> None:
    with manager_of() as manager:
        with run_prompt(manager, list(range(6))) as kv_cache:
            for token in (50, 51, 52):
                assert kv_cache.resize(kv_cache.capacity + 1)
                kv_cache.commit([token])
            assert kv_cache.committed_tokens == [0, 1, 2, 3, 4, 5, 50, 51, 52]
        assert manager.probe_reuse(input_tokens=[0, 1, 2, 3, 4, 5, 50, 51, 52, 53]) == 9


@pytest.mark.parametrize(("partial", "expected"), [(True, 345), (False, 320)])
def test_tokens_that_end_inside_a_block(partial: bool, expected: int) -> None:
    """1000 tokens committed, 32 per block; 345 of them looked up, followed by others: 345 = 10 * 32 + 25."""
    with manager_of(tokens_per_block=32, enable_partial_reuse=partial) as manager:
        run_prompt(manager, list(range(1000))).close()
        text = list(range(345)) + [5000 + i for i in range(200)]
        assert manager.probe_reuse(input_tokens=text) == expected
        with manager.create_kv_cache(input_tokens=text) as kv_cache:
            assert kv_cache.num_committed_tokens == expected


@pytest.mark.parametrize("windows", [[None], [None, 16], [16]])
def test_without_partial_reuse_an_exact_end_matches(windows: list[int | None]) -> None:
    """Blocks of 32: 48 tokens committed and closed. Exactly these 48 match; a longer, a shorter or another text matches one block."""
    with manager_of(windows, tokens_per_block=32, enable_partial_reuse=False) as manager:
        run_prompt(manager, list(range(48))).close()
        assert manager.probe_reuse(input_tokens=list(range(48))) == 48
        for text in (list(range(49)), list(range(47)), [*range(47), 99], list(range(70))):
            assert manager.probe_reuse(input_tokens=text) == 32
        with manager.create_kv_cache(input_tokens=list(range(48))) as kv_cache:
            assert kv_cache.num_committed_tokens == 48
            assert kv_cache.resume() and kv_cache.resize(50), "the shared last block is copied before tokens 48 and 49 are written"
            kv_cache.commit([48, 49])
            manager.check_invariants()
        assert manager.probe_reuse(input_tokens=list(range(50))) == 50


@pytest.mark.parametrize(("partial", "backoff", "expected"), [(True, 1, 16), (False, 1, 16), (True, 9, 15), (False, 9, 8)])
def test_the_backoff_is_taken_off_the_content(partial: bool, backoff: int, expected: int) -> None:
    """Blocks of 8, a window of 9; 24 tokens are on a path of the tree, 16 usable: a match has at most 24 - backoff tokens.

    The second sequence moves its history over tokens 16..39 at once, so their blocks 2 and 3 never get windowed pages. At 24 and 23
    tokens the window reads block 2; at 16 it reads 8..16, block 1; at 15 it reads 7..15, and at 8 0..8, blocks 0 and 1.
    """
    text = list(range(40))
    with manager_of([None, 9], tokens_per_block=8, enable_partial_reuse=partial, reuse_match_backoff=backoff) as manager:
        with run_prompt(manager, text[:16]) as first:
            assert first.resize(40, 40)
            first.commit(text[16:])
        manager.check_invariants()
        assert manager.probe_reuse(input_tokens=[*text[:24], 99]) == expected


def test_best_of_many_siblings_serves_a_partial_block() -> None:
    """Siblings 0..39 under one parent differ in their third token; the one with the longest common prefix is taken."""
    with manager_of(num_slots=400) as manager:
        for sibling in range(40):
            run_prompt(manager, [1, 1, 1, 1, 2, 2, sibling, sibling]).close()
        assert manager.probe_reuse(input_tokens=[1, 1, 1, 1, 2, 2, 17, 99]) == 7
        assert manager.probe_reuse(input_tokens=[1, 1, 1, 1, 2, 2, 17, 17]) == 8
        assert manager.probe_reuse(input_tokens=[1, 1, 1, 1, 2, 2, 99, 99]) == 6
        assert manager.probe_reuse(input_tokens=[1, 1, 1, 1, 3]) == 4


def test_scopes_never_share() -> None:
    scopes = [(None, None), (0, None), (None, 0), (7, 11), (7, 12)]
    with manager_of() as manager:
        for written, scope in enumerate(scopes):
            run_prompt(manager, [1, 2, 3, 4, 5], reuse_scope=ReuseScope(*scope)).close()
            for index, other in enumerate(scopes):
                expected = 5 if index <= written else 0
                assert manager.probe_reuse(ReuseScope(*other), [1, 2, 3, 4, 5, 6]) == expected
        assert manager.probe_reuse(None, [1, 2, 3, 4, 5]) == 5, "None is the empty scope"


def test_text_committed_in_parts_grows_only() -> None:
    """Two texts that share 6 of their tokens and end at 6 and at 7 (4 per block): both ends stay reusable."""
    with manager_of() as manager:
        run_prompt(manager, [1, 2, 3, 4, 5, 6]).close()
        run_prompt(manager, [1, 2, 3, 4, 5, 6, 7]).close()
        run_prompt(manager, [1, 2, 3, 4, 5, 6]).close()
        assert manager.probe_reuse(input_tokens=[1, 2, 3, 4, 5, 6, 7, 8]) == 7
        assert manager.probe_reuse(input_tokens=[1, 2, 3, 4, 5, 6, 9]) == 6
        manager.check_invariants()
        assert used_slots(manager) == 2, "one full block and the longer of the partial ones"


def test_match_holds_its_pages_until_close() -> None:
    """A matched but suspended sequence keeps its pages through any pressure."""
    with manager_of(num_slots=8) as manager:
        run_prompt(manager, list(range(12))).close()
        held = manager.create_kv_cache(input_tokens=list(range(12)))
        other = run_prompt(manager, list(range(100, 120)))
        assert not other.resize(24), "3 held + 5 used of 8"
        manager.check_invariants()
        other.close()
        assert held.resume()


@pytest.mark.parametrize(("committed", "expected"), [(32, 29), (2, 0), (8, 5), (3, 0)])
def test_backoff_trims_every_match(committed: int, expected: int) -> None:
    """8 per block, backoff 3: 32 committed tokens match 29, 2 tokens match 0."""
    with manager_of([None, 16], tokens_per_block=8, reuse_match_backoff=3) as manager:
        run_prompt(manager, list(range(committed))).close()
        assert manager.probe_reuse(input_tokens=list(range(committed))) == expected
        with manager.create_kv_cache(input_tokens=list(range(committed))) as kv_cache:
            assert kv_cache.num_committed_tokens == expected
            manager.check_invariants()


@pytest.mark.parametrize("branch", [None, 1, 17, 50])
def test_however_long_the_shared_part_is(branch: int | None) -> None:
    """A path of 70 blocks and a half, from which another may part after ``branch`` blocks: of each prompt as much as it shares.

    A prompt that parts from the path ``n`` tokens in shares ``n``, wherever in a block and between branches that is.
    """
    path = list(range(1000, 1000 + 70 * 4 + 2))
    with manager_of(num_slots=200) as manager:
        run_prompt(manager, path).close()
        if branch is not None:
            run_prompt(manager, path[: branch * 4] + [7] * 8).close()
        for length in range(len(path) + 1):
            assert manager.probe_reuse(input_tokens=path[:length]) == length
            assert manager.probe_reuse(input_tokens=path[:length] + [9] * 40) == length
        assert manager.probe_reuse(input_tokens=path + path) == len(path)


def test_a_path_may_be_longer_than_any_limit_of_recursion() -> None:
    prompt = list(range(2 * sys.getrecursionlimit()))
    with manager_of(tokens_per_block=1, num_slots=len(prompt) + 1) as manager:
        run_prompt(manager, prompt).close()
        assert manager.probe_reuse(None, prompt) == len(prompt)
        assert manager.demote(prompt).num_accepted == len(prompt)
        manager.check_invariants()
        assert len(manager.describe()["tree"][0]["blocks"]) == len(prompt)
        run_prompt(manager, [7, *prompt[:-1]]).close()
        assert manager.probe_reuse(None, prompt) < len(prompt), "evicted"
        manager.invalidate_reuse_scope()
        assert manager.probe_reuse(None, prompt) == 0 and free_slots(manager) == len(prompt) + 1
