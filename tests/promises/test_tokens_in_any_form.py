"""Tokens are welcome as lists, tuples, numpy arrays, `array.array`, memoryviews; a digest stands for a multimodal item."""

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_models import manager_of, run_prompt

FORMS: list[Callable[[list[int]], Any]] = [
    list,
    tuple,
    lambda tokens: [np.int64(token) for token in tokens],
    lambda tokens: np.array(tokens, np.int32),
    lambda tokens: np.array(tokens, np.int64),
    lambda tokens: np.array(tokens + tokens, np.int32)[: len(tokens)],
    lambda tokens: np.repeat(np.array(tokens, np.int32), 2)[::2],
    lambda tokens: array.array("i", tokens),
    lambda tokens: memoryview(array.array("i", tokens)),
]


@pytest.mark.parametrize("length", [1, 3, 4, 9, 1000])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_text(form: Callable[[list[int]], Any], length: int) -> None:
    tokens = [(7 * i) % 2**31 for i in range(length - 1)] + [2**31 - 1]
    with manager_of(num_slots=600) as manager:
        with run_prompt(manager, form(tokens)) as kv_cache:
            assert kv_cache.committed_tokens == tokens
        assert manager.probe_reuse(None, form(tokens)) == length
        assert manager.probe_reuse(None, tokens) == length


def test_digests_are_tokens() -> None:
    image, other = b"\x01" * 32, b"\x02" * 32
    text: list[int | bytes] = [1, 2, image, image, 5, image]
    with manager_of() as manager:
        with run_prompt(manager, text) as kv_cache:
            assert kv_cache.committed_tokens == text
            manager.check_invariants()
        assert manager.probe_reuse(None, text) == 6
        assert manager.probe_reuse(None, [1, 2, image, other, 5, image]) == 3
        with manager.create_kv_cache(None, text) as again:
            assert again.committed_tokens == text
            manager.check_invariants()
        manager.check_invariants()
        manager.clear_reusable_blocks()
        manager.check_invariants()


def test_unknown_digest_matches_nothing_even_itself() -> None:
    with manager_of() as manager:
        run_prompt(manager, [1, b"a", 2, 3]).close()
        manager.clear_reusable_blocks()
        run_prompt(manager, [1, b"b", 2, 3]).close()
        assert manager.probe_reuse(None, [1, b"a", 2, 3]) == 1


def test_digest_is_not_a_negative_number() -> None:
    """Digests are kept as negative numbers inside; no user's token can be one."""
    with manager_of() as manager:
        run_prompt(manager, [b"x", 2, 3, 4]).close()
        for token in (-1, -2, -3):
            with pytest.raises(ValueError):
                manager.probe_reuse(None, [token, 2, 3, 4])


def test_bad_token_counts_no_digest() -> None:
    with manager_of() as manager:
        with run_prompt(manager, [1]) as kv_cache:
            assert kv_cache.resize(8)
            with pytest.raises(ValueError):
                kv_cache.commit([b"x", b"y", -1])
            manager.check_invariants()


@pytest.mark.parametrize("length", [8191, 8192, 8193, 20_000])
def test_long_prompts_are_validated_as_short_ones_are(length: int) -> None:
    """A wrong id at any end of a long array is named, and a good array is taken."""
    with manager_of() as manager:
        tokens = np.arange(length, dtype=np.int32)
        assert manager.probe_reuse(None, tokens) == 0
        for position in (0, length // 2, length - 1):
            wrong = tokens.copy()
            wrong[position] = -7
            with pytest.raises(ValueError, match="-7"):
                manager.probe_reuse(None, wrong)
