"""A source of prompts that share prefixes, so that reuse happens.

A new prompt mostly begins like an earlier one, continues like another or with new tokens, and is cut anywhere. The vocabulary is
small, so that unrelated prompts agree by chance in a token or two. A few tokens are digests.
"""

from array import array
from random import Random
from typing import Any, Final, final

import numpy as np

from ...base.ids import TokenIdExt
from ..reference_tree import Text


@final
class TextSource:
    """Keeps some of the prompts that it is given; everything is drawn from the given random numbers."""

    __slots__ = ("_vocabulary", "_digest_share", "_max_kept", "_max_cut", "_share_of_repeated", "_texts")

    def __init__(self, vocabulary: int, digest_share: float, max_kept: int, max_cut: int = 0, share_of_repeated: float = 0.85) -> None:
        """``max_cut``: if not 0, prompts have the greatest length, and differ from earlier ones in at most so many tokens."""
        self._vocabulary: Final = vocabulary
        self._digest_share: Final = digest_share
        self._max_kept: Final = max_kept
        self._max_cut: Final = max_cut
        self._share_of_repeated: Final = share_of_repeated
        self._texts: Final[list[Text]] = []

    def draw_text(self, random: Random, max_tokens: int) -> Text:
        """Up to ``max_tokens`` tokens, sometimes none."""
        tokens: list[TokenIdExt] = []
        size = int(random.random() * (max_tokens + 1))
        if self._texts and random.random() < self._share_of_repeated:
            tokens.extend(random.choice(self._texts))
            if self._max_cut > 0:
                del tokens[len(tokens) - int(random.random() * (self._max_cut + 1)) :]
                return self._lengthen(tokens, max_tokens, random)
            if random.random() < 0.4:
                del tokens[int(random.random() * (len(tokens) + 1)) :]
            # Like the next turn of a chat, or a question about the same document.
            size = len(tokens) + int(random.random() * random.choice((1, 3, max_tokens)))
        return self._lengthen(tokens, size if self._max_cut == 0 else max_tokens, random)[:max_tokens]

    def _lengthen(self, tokens: list[TokenIdExt], size: int, random: Random) -> Text:
        while len(tokens) < size:
            tokens.append(self.draw_token(random))
        return tuple(tokens)

    def draw_token(self, random: Random) -> TokenIdExt:
        if random.random() < self._digest_share:
            return b"digest %d" % int(random.random() * 4)
        return int(random.random() * self._vocabulary)

    def keep(self, random: Random, text: Text) -> None:
        """Let later prompts begin like this one."""
        if len(self._texts) < self._max_kept:
            self._texts.append(text)
        else:
            self._texts[int(random.random() * self._max_kept)] = text


def draw_token_container(random: Random, text: Text) -> Any:
    """The same tokens in one of the forms that the library accepts."""
    if any([isinstance(token, bytes) for token in text]):
        return list(text) if random.random() < 0.5 else text
    form = int(random.random() * 6)
    if form == 0:
        return np.array(text, dtype=np.int32)
    if form == 1:
        return np.array(text, dtype=np.int64)
    if form == 2:
        return array("i", [int(token) for token in text])
    if form == 3:
        return np.array(text, dtype=np.int32).data
    return list(text) if form == 4 else text
