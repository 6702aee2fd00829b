"""Token values of the fake engine: 64-bit values that name a token and the whole prefix before it.

An attention layer's keys and values of a token depend on every token before it, so the value does too: it is the sum,
modulo 2**64, of one well mixed number per (token, position) of the prefix, the token itself included. Sums are what
numpy computes for whole prompts at memory speed. Two prefixes that differ anywhere have different values, but for a
chance of 2**-64 per pair.

A buffer mixes in its layer and role by exclusive or with a *key* of its own. That is linear, so expected bytes are computed
once for all layers. Beams are not part of the value: beams with the same prefix may share pages.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt

Values: TypeAlias = npt.NDArray[np.uint64]

_DIGEST_TAG: Final = 1 << 63
"""Set in the number of a digest token and clear in every token id, so that the two never coincide."""

_TOKEN_FACTOR: Final = np.uint64(0xD1342543DE82EF95)
_POSITION_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_SHIFT_1: Final = np.uint64(30)
_SHIFT_2: Final = np.uint64(27)
_SHIFT_3: Final = np.uint64(31)


def token_numbers(tokens: object) -> Values:
    """One number per token, from a sequence of ids and digests or from any buffer of ints."""
    if isinstance(tokens, (np.ndarray, array, memoryview)):
        numbers = np.asarray(tokens)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise TypeError(f"tokens are a {numbers.ndim}-dimensional array of {numbers.dtype}; give a flat one of ints")
        return numbers.astype(np.uint64)
    listed = list(cast(Sequence[Any], tokens))
    if bytes in set(map(type, listed)):
        listed = [_digest_number(token) if isinstance(token, bytes) else token for token in listed]
    return np.array(listed, dtype=np.uint64)


def _digest_number(digest: bytes) -> int:
    return int.from_bytes(blake2b(digest, digest_size=8).digest(), "little") | _DIGEST_TAG


def prefix_values(numbers: Values) -> Values:
    """``values[t]`` names the prefix that ends with token ``t``."""
    mixed = np.arange(1, len(numbers) + 1, dtype=np.uint64)
    mixed *= _POSITION_FACTOR
    mixed += numbers * _TOKEN_FACTOR
    mixed ^= mixed >> _SHIFT_1
    mixed *= _MIX_1
    mixed ^= mixed >> _SHIFT_2
    mixed *= _MIX_2
    mixed ^= mixed >> _SHIFT_3
    return np.cumsum(mixed, dtype=np.uint64)


def tree_values(history: Values, nodes: Values, parents: Sequence[int]) -> Values:
    """The values of a tree of drafts after a history: a node's value names the history and its branch, not its position."""
    num_history = len(history)
    values = np.empty(num_history + len(nodes), dtype=np.uint64)
    values[:num_history] = prefix_values(history)
    branches: list[list[int]] = []
    for node, parent in enumerate(parents):
        branches.append([*(branches[parent] if parent >= 0 else []), node])
        values[num_history + node] = prefix_values(np.concatenate((history, nodes[branches[node]])))[-1]
    return values


def buffer_key(layer_id: int, role: str) -> int:
    """The 64-bit key that separates this buffer's values from those of every other layer and role."""
    return int.from_bytes(blake2b(f"{layer_id}/{role}".encode(), digest_size=8).digest(), "little")
