"""`KVCache.commit_input` is `commit` of the tokens that the sequence was made with: the same decisions, events and records, and no token is
read a second time."""

import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from small_models import config_of, manager_of

from kv_cache_manager_v2 import HostDevice, KVCacheManager, LogicError
from kv_cache_manager_v2.replay.rerun import rerun

WINDOWS = (None, 8)
DIGEST = b"a picture"


def make(manager: KVCacheManager, tokens: Any) -> Any:
    kv_cache = manager.create_kv_cache(input_tokens=tokens)
    assert kv_cache.resume() and kv_cache.resize(len(tokens) + 2)
    return kv_cache


@pytest.mark.parametrize("mixed", [False, True])
def test_it_is_the_same_as_commit(mixed: bool, tmp_path: Any) -> None:
    """Whole, in chunks, after a match, with digests that no table knows yet."""
    shared = [1, 2, 3, 4, 5]
    prompts: list[Any] = [shared + [6] * 7, shared + [6] * 7, shared + [8] * 9, [9] * 3, shared[:4]]
    if mixed:
        prompts = [[DIGEST, *prompt, b"%d" % number] for number, prompt in enumerate(prompts)]
    paths = [tmp_path / "given", tmp_path / "again"]
    digests = []
    for path in paths:
        with KVCacheManager(config_of(WINDOWS), device=HostDevice(), journal=path) as manager:
            for number, prompt in enumerate(prompts):
                with make(manager, prompt) as kv_cache:
                    begin = kv_cache.num_committed_tokens
                    middle = begin + (len(prompt) - begin) // 2 if number % 2 else len(prompt)
                    if path == paths[0]:
                        kv_cache.commit_input(middle - begin)
                        kv_cache.commit_input()
                    else:
                        kv_cache.commit(prompt[begin:middle])
                        kv_cache.commit(prompt[middle:])
                    assert kv_cache.committed_tokens == prompt
                    manager.check_invariants()
            digests.append(manager.state_digest())
    assert digests[0] == digests[1]
    for path in paths:
        assert rerun(path, HostDevice(), check_invariants=True).digest == digests[0]


class CountingTokens(Sequence[int]):
    """1000 tokens that know how often one was read."""

    num_read = 0

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, position: Any) -> Any:
        self.num_read += 1
        return range(1000)[position]


def test_no_token_is_read_again() -> None:
    with manager_of(num_slots=400) as manager:
        tokens = CountingTokens()
        kv_cache = manager.create_kv_cache(input_tokens=tokens)
        num_read = tokens.num_read
        assert num_read >= 1000
        assert kv_cache.resume() and kv_cache.resize(1000)
        kv_cache.commit_input()
        assert tokens.num_read == num_read and kv_cache.num_committed_tokens == 1000
        kv_cache.close()


FORMS: dict[str, Any] = {
    "array": lambda tokens: np.array(tokens, np.int32),
    "array.array": lambda tokens: array.array("i", tokens),
    "every other": lambda tokens: np.repeat(np.array(tokens, np.int32), 2)[::2],
    "two to an item": lambda tokens: np.array(tokens, np.int64),
    "read-only": lambda tokens: memoryview(np.array(tokens, np.int32).tobytes()).cast("i"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", [0, 17, 150, 201])
@pytest.mark.parametrize("differs_at", [None, 100, 250, 301])
def test_what_is_committed_counts_in_any_form(form: str, first: int, differs_at: int | None, tmp_path: Any) -> None:
    """The input, in two chunks and some more behind, or other tokens from somewhere on: as if they were given as a list, of which each
    item is read. The first 100 tokens are here already."""
    prompt = list(range(300))
    committed = [*prompt, 7, 8, 9]
    if differs_at is not None:
        committed[differs_at] += 1000
    digests = []
    for to_form in (FORMS[form], list):
        with KVCacheManager(config_of(WINDOWS, num_slots=400), device=HostDevice(), journal=tmp_path / "journal") as manager:
            with make(manager, prompt[:100]) as kv_cache:
                kv_cache.commit(prompt[:100])
            kv_cache = make(manager, prompt)
            assert kv_cache.num_committed_tokens == 100 and kv_cache.resize(100 + first)
            kv_cache.commit(to_form(committed[100 : 100 + first]))
            with pytest.raises(LogicError):
                kv_cache.commit_input()
            with pytest.raises(ValueError, match="exceed the capacity"):
                kv_cache.commit(to_form(committed[100 + first : 302]))
            assert kv_cache.resize(303)
            for begin, end in ((100 + first, 302), (302, 303)):
                kv_cache.commit(to_form(committed[begin:end]))
            assert kv_cache.committed_tokens == committed
            kv_cache.close()
            manager.check_invariants()
            digests.append(manager.state_digest())
        assert rerun(tmp_path / "journal", HostDevice(), check_invariants=True).digest == digests[-1]
    assert digests[0] == digests[1]


def test_what_the_caller_does_to_the_list_afterwards_does_not_matter() -> None:
    with manager_of() as manager:
        for tokens in ([1, 2, 3, 4, 5], [1, b"x", 3], np.array([7, 8, 9], np.int32)):
            expected = list(tokens)
            with make(manager, tokens) as kv_cache:
                tokens[0] = 99
                kv_cache.commit_input()
                assert kv_cache.committed_tokens == expected


def test_a_fork_goes_on_with_it() -> None:
    with manager_of() as manager:
        parent = make(manager, [1, 2, 3, 4, 5, 6])
        parent.commit_input(3)
        child = parent.fork()
        child.commit_input()
        parent.commit_input(1)
        assert (parent.committed_tokens, child.committed_tokens) == ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6])
        manager.check_invariants()
        child.close()
        parent.close()


def test_what_cannot_be_committed_is_refused() -> None:
    with manager_of() as manager:
        kv_cache = make(manager, [1, 2, 3, 4, 5, 6])
        before = manager.describe()
        with pytest.raises(ValueError, match="6 input tokens are left"):
            kv_cache.commit_input(7)
        for wrong in ("3", 1.0, -1):
            with pytest.raises((TypeError, ValueError), match="num_tokens"):
                kv_cache.commit_input(wrong)
        assert manager.describe() == before
        kv_cache.commit_input(5)
        kv_cache.commit_input(1)
        kv_cache.commit_input()
        assert kv_cache.num_committed_tokens == 6
        with pytest.raises(ValueError, match="0 input tokens are left"):
            kv_cache.commit_input(1)
        kv_cache.close()
        with pytest.raises(LogicError):
            kv_cache.commit_input()

        # It ends with the first commit(), also one of nothing: what is left would not follow what is there.
        for nothing in ([], [-1]):
            kv_cache = make(manager, [7, 8, 9, 10])
            try:
                kv_cache.commit(nothing)
            except ValueError:
                pass
            with pytest.raises(LogicError, match="commit"):
                kv_cache.commit_input()
            kv_cache.close()

        # Other tokens stand where the input's would.
        kv_cache = make(manager, [7, 8, 9, 10])
        kv_cache.commit([1])
        with pytest.raises(LogicError, match="commit_input"):
            kv_cache.commit_input()
        kv_cache.close()

        kv_cache = manager.create_kv_cache(input_tokens=[5, 5, 5, 5, 5])
        assert kv_cache.resume() and kv_cache.resize(3)
        with pytest.raises(ValueError, match="capacity"):
            kv_cache.commit_input()
        kv_cache.commit_input(3)
        kv_cache.beam_width = 2
        with pytest.raises(LogicError, match="beams"):
            kv_cache.commit_input()
        kv_cache.close()

        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            with pytest.raises(LogicError, match="no input_tokens"):
                kv_cache.commit_input()
