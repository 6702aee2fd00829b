"""Tokens in every form are packed to the int32 that Python's ``array`` writes, or refused at the first bad one, by its position."""

import random
import re
from array import array
from collections import UserList
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kv_cache_manager_v2.reuse.digest_table import UNKNOWN_DIGEST, DigestTable
from kv_cache_manager_v2.reuse.token_packing import MAX_TOKEN_ID, has_digest, pack_tokens, single_token, unpack_tokens

LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 40, 8191, 8192, 8193)


class Index:
    """An integer that is no ``int``."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class Tokens(UserList[object]):
    pass


LISTS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "sequence": Tokens,
    "numpy scalars": lambda ids: [np.int64(token) for token in ids],
    "objects": lambda ids: [Index(token) for token in ids],
    "mixed": lambda ids: [Index(token) if position % 3 == 1 else token for position, token in enumerate(ids)],
}
BUFFERS: dict[str, Callable[[list[int]], Any]] = {
    "array i": lambda ids: array("i", ids),
    "array q": lambda ids: array("q", ids),
    "numpy 32": lambda ids: np.array(ids, np.int32),
    "numpy 64": lambda ids: np.array(ids, np.int64),
    "numpy unsigned": lambda ids: np.array(ids, np.uint32 if min(ids, default=0) >= 0 else np.int64),
    "view": lambda ids: memoryview(array("i", ids)),
    "every other one": lambda ids: np.repeat(np.array(ids, np.int32), 2)[::2],
}
FORMS = {**LISTS, **BUFFERS}
BAD = (-1, -MAX_TOKEN_ID - 1, MAX_TOKEN_ID + 1, 1 << 40)
LARGEST = {**dict.fromkeys(("array i", "numpy 32", "view", "every other one"), MAX_TOKEN_ID), "numpy unsigned": (1 << 32) - 1}
"""What such an array can hold."""


def draw(choices: random.Random, count: int) -> list[int]:
    most = choices.choice((2, 1 << 17, MAX_TOKEN_ID))
    ids = [choices.randint(0, most) for _ in range(count)]
    for _ in range(min(count, 2)):
        ids[choices.randrange(count)] = choices.choice((0, MAX_TOKEN_ID))
    return ids


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_packed_alike(form: str) -> None:
    choices = random.Random(form)
    digests = DigestTable()
    for count in (0, *LENGTHS):
        ids = draw(choices, count)
        for acquire in (False, True):
            packed = pack_tokens(FORMS[form](ids), digests, acquire)
            assert type(packed) is bytes and packed == array("i", ids).tobytes()
        assert not has_digest(packed)
        assert unpack_tokens(packed, digests) == ids
    assert len(digests) == 0


@pytest.mark.parametrize("form, bad", [(form, bad) for form in FORMS for bad in BAD if bad <= LARGEST.get(form, bad)])
def test_the_first_id_out_of_range_is_named(form: str, bad: int) -> None:
    choices = random.Random(bad)
    digests = DigestTable()
    for count in LENGTHS:
        for position in {0, count - 1, choices.randrange(count)}:
            ids = draw(choices, count)
            ids[position] = bad
            if position < count - 1:
                ids[-1] = -1 if bad < 0 else bad
            with pytest.raises(ValueError, match=re.escape(f"prompt[{position}] is {bad}: ids are 0 <= id < 2**31")):
                pack_tokens(FORMS[form](ids), digests, True, "prompt")
    assert len(digests) == 0


@pytest.mark.parametrize("acquire", [False, True])
@pytest.mark.parametrize("count", LENGTHS)
def test_digests_among_tokens(count: int, acquire: bool) -> None:
    """Counted once for each place, or only looked up; nothing is counted where another item is bad."""
    choices = random.Random(count)
    digests = DigestTable()
    known = digests.acquire(b"known")
    for _ in range(3):
        ids: list[object] = list(draw(choices, count))
        places = {choices.randrange(count) for _ in range(choices.randint(1, 5))}
        for place in places:
            ids[place] = choices.choice((b"known", b"new"))
        with pytest.raises(TypeError, match=re.escape(f"tokens[{count}] is 'text', a str: tokens are int or bytes")):
            pack_tokens([*ids, "text", None], digests, acquire)
        with pytest.raises(ValueError, match=re.escape(f"tokens[{count}] is b'', an empty digest")):
            pack_tokens([*ids, b""], digests, acquire)
        assert digests.total_count() == 1
        packed = pack_tokens(ids, digests, acquire)
        expected = {b"known": known, b"new": digests.find(b"new")}
        assert list(array("i", packed)) == [expected[item] if isinstance(item, bytes) else item for item in ids]
        assert has_digest(packed)
        if acquire:
            assert unpack_tokens(packed, digests) == ids
            assert digests.total_count() == 1 + len(places)
            digests.release(packed)
        assert expected[b"new"] == UNKNOWN_DIGEST or acquire
        assert digests.total_count() == 1 and len(digests) == 1


def test_one_negative_token_is_found_wherever_it_is() -> None:
    for count in range(40):
        for place in range(count):
            for negative in (-1, -MAX_TOKEN_ID - 1):
                ids = [MAX_TOKEN_ID if position % 2 else 0 for position in range(count)]
                assert not has_digest(array("i", ids).tobytes())
                ids[place] = negative
                assert has_digest(array("i", ids).tobytes())


def test_a_single_token() -> None:
    for token in (0, 1, 77, MAX_TOKEN_ID):
        assert single_token([token]) == single_token((token,)) == token
    others: list[object] = [-1, MAX_TOKEN_ID + 1, True, b"digest", None, np.int32(3)]
    for other in others:
        assert single_token([other]) == single_token((other,)) == -1
    for tokens in ([], (), [1, 2], (1, 2), 5, array("i", [5]), "5", None):
        assert single_token(tokens) == -1


def test_what_is_no_sequence_of_tokens_is_refused() -> None:
    digests = DigestTable()
    cases: list[tuple[object, type[Exception], str]] = [
        ("text", TypeError, "not str; tokenize it first"),
        (b"digest", TypeError, "not bytes; a digest is one token: wrap it in a list"),
        (bytearray(b"digest"), TypeError, "not bytearray; a digest is one token"),
        (7, TypeError, "not int"),
        ({1, 2}, TypeError, "not set"),
        (np.array(7), TypeError, "not ndarray"),
        (np.array(["2026-01-01"], "datetime64[D]"), TypeError, "tokens must be integers"),
        (np.zeros((2, 2), np.int32), ValueError, "one dimension, not 2"),
        (array("h", [1, 2]), TypeError, r"not items of 2 bytes \(format 'h'\); convert it to int32$"),
        (np.array([1, 2], np.int8), TypeError, r"not items of 1 bytes \(format 'b'\); convert it to int32$"),
        (np.frombuffer(b"digest", np.uint8), TypeError, "to int32; if it is a digest, which is one token, give its bytes in a list"),
        (memoryview(b"digest"), TypeError, "not memoryview; a digest is one token"),
        (array("f", [1.0]), TypeError, "tokens must be integers, not float32"),
        (array("d", [1.0]), TypeError, "tokens must be integers, not float64"),
    ]
    for tokens, error, words in cases:
        with pytest.raises(error, match=words):
            pack_tokens(tokens, digests, True)
    assert pack_tokens(np.zeros(0, np.int64), digests, True) == b""
    assert len(digests) == 0
