"""The hash of a text is the same by both ways, takes every token and its place into account, and knows what was before."""

import array
import random

import pytest
from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2.reuse.prefix_hash import EMPTY_PREFIX, RUN_WORDS, hash_block, hash_run


def packed(tokens: list[int]) -> bytes:
    return array.array("i", tokens).tobytes()


def as_written_down(parent: int, tokens: list[int]) -> int:
    """The docstring of the module in numbers without end."""
    factors = (0x1E3779B97F4A7C15, 0x2545F4914F6CDD1D, 0x369DEA0F31A53F85, 0x27BB2EE687B0B0FD)
    words = [low + (high << 32) for low, high in zip(tokens[0::2], tokens[1::2], strict=False)]
    if len(tokens) % 2 == 1:
        words.append(tokens[-1])
    sums = [4 * len(tokens), 0, 0, 0]
    fours = len(tokens) // 8 * 4
    for number, factor in enumerate(factors):
        for word in words[number:fours:4]:
            sums[number] = (sums[number] ^ word) * factor
    for word in words[fours:]:
        sums[0] = (sums[0] ^ word) * factors[0]
    text = (parent * 0x1B873593CC9E2D51 + sum(sums)) % (1 << 62)
    return (text * 0x0F58476D1CE4E5B9) % (1 << 62) ^ (text >> 31)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 128])
def test_both_ways_are_what_is_written_down(num_tokens: int) -> None:
    rng = random.Random(num_tokens)
    blocks = [[rng.randrange(largest) for _ in range(num_tokens)] for largest in (5, 1 << 17, (1 << 31) - 1)]
    text = EMPTY_PREFIX
    expected = []
    for tokens in blocks:
        expected.append(as_written_down(text, tokens))
        assert hash_block(text, packed(tokens)) == expected[-1]
        text = expected[-1]
    if num_tokens % (2 * RUN_WORDS) == 0:
        texts = vec[i64]([0] * (1 + len(blocks)))
        hash_run(EMPTY_PREFIX, vec[i64](memoryview(packed(sum(blocks, []))).cast("q")), num_tokens // 2, texts, 1)
        assert list(texts) == [0, *expected]


@pytest.mark.parametrize("seed", range(4))
def test_texts_that_are_much_alike_are_told_apart(seed: int) -> None:
    """One token other, two swapped, a part moved, or shorter: among some thousand 62-bit numbers no two are equal by chance."""
    print("seed", seed)
    rng = random.Random(seed)
    largest = [3, 200, 1 << 17, 1 << 18][seed]
    base = [rng.randrange(largest) for _ in range(32)]
    texts = {tuple(base)}
    for place in range(32):
        for _ in range(20):
            texts.add((*base[:place], rng.randrange(largest), *base[place + 1 :]))
        for change in range(1, 8):
            texts.add((*base[:place], base[place] ^ change, *base[place + 1 :]))
        for other in range(place):
            swapped = list(base)
            swapped[place], swapped[other] = base[other], base[place]
            texts.add(tuple(swapped))
        texts.add((*base[place:], *base[:place]))
        texts.add(tuple(base[: place + 1]))
    for token in range(3):
        texts |= {(token,) * length for length in range(1, 65)}
    hashes = {hash_block(parent, packed(list(text))) for text in texts for parent in (EMPTY_PREFIX, 12345)}
    assert len(hashes) == 2 * len(texts)
    assert all(0 <= value < 1 << 62 for value in hashes)
