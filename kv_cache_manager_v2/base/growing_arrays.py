"""Arrays that grow without being copied: the addresses for all their items are taken at the start, memory comes as it is used."""

from librt.vecs import vec
from mypy_extensions import i64


def reserve_words(words: vec[i64], num_words: i64) -> vec[i64]:
    """The same items, with room to append up to ``num_words`` in all."""
    # Through a view: that way the room is left untouched. `vec(capacity=...)` by itself writes zeros into all of it.
    return vec[i64](memoryview(words), capacity=num_words)
