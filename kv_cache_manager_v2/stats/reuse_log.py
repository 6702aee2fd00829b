"""A log of what happened to the sampled blocks, as a ring of words: enough to simulate another cache later.

A word is the kind of event (bits 0-2) and 59 bits of the block's key. A block that is published below a sampled one is followed by
the key of its nearest sampled predecessor (BELOW).
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

MAX_WORDS: Final = 1 << 17
"""8 bytes each, 1 MiB in all."""

BELOW: Final = 0
PUBLISHED: Final = 1
"""By a sequence, which holds the block from now on."""
PUBLISHED_PART: Final = 2
"""A partial block, which no sequence holds."""
ASKED: Final = 3
"""A prompt looked the block up, cached or not."""
HELD: Final = 4
RELEASED: Final = 5

KIND_MASK: Final = 7
KEY_SHIFT: Final = 3
_KEY_MASK: Final = (1 << 59) - 1


@final
@mypyc_attr(native_class=True)
class ReuseLog:
    """The last `MAX_WORDS` words; `has_lost` is true once there were more."""

    __slots__ = ("has_lost", "_words", "_next")

    has_lost: bool
    _words: vec[i64]
    _next: i64

    def __init__(self) -> None:
        self.has_lost = False
        self._words = vec[i64]()
        self._next = 0

    def record(self, kind: i64, key: i64) -> None:
        word = ((key & _KEY_MASK) << KEY_SHIFT) | kind
        if len(self._words) < MAX_WORDS:
            self._words = append(self._words, word)
            return
        self.has_lost = True
        self._words[self._next] = word
        self._next = (self._next + 1) & (MAX_WORDS - 1)

    def copy_words(self) -> vec[i64]:
        """The words, oldest first."""
        words = vec[i64]([0] * len(self._words))
        at = self._next
        for position in range(len(words)):
            words[position] = self._words[at]
            at += 1
            if at == len(words):
                at = 0
        return words
