"""The layout of tokens in a buffer's page: which bytes belong to which token, and their contents.

The bytes of a page are divided among its tokens evenly and in order: token ``t`` owns the bytes from
``ceil(t * page_bytes / tokens_per_page)`` up to where the next one begins. Any size works; a page with fewer bytes than
tokens leaves some tokens with none. Byte ``j`` of a token is byte ``j % 8`` of its 64-bit value, the lowest first.

To process many bytes at once a page is treated as *words*: of 8, 4, 2 or 1 bytes, the widest that divides each token's bytes.
"""

from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from .token_values import Values

Words: TypeAlias = npt.NDArray[Any]
"""Unsigned ints of one of the four widths."""

_VALUE_BYTES: Final = 8


@final
class TokenLayout:
    """The layout of one kind of page. Immutable."""

    __slots__ = (
        "page_bytes",
        "tokens_per_page",
        "words_per_page",
        "word_type",
        "owner",
        "_column",
        "_key_column",
        "_is_identity",
        "_has_one_key_word",
    )

    def __init__(self, page_bytes: int, tokens_per_page: int) -> None:
        word_bytes = _word_bytes(page_bytes, tokens_per_page)
        words_per_value = _VALUE_BYTES // word_bytes
        byte_of_word = np.arange(0, page_bytes, word_bytes, dtype=np.int64)
        owner = byte_of_word * tokens_per_page // page_bytes
        first_byte = -(-owner * page_bytes // tokens_per_page)
        key_column = (byte_of_word - first_byte) % _VALUE_BYTES // word_bytes
        self.page_bytes: Final = page_bytes
        self.tokens_per_page: Final = tokens_per_page
        self.words_per_page: Final[int] = len(byte_of_word)
        self.word_type: Final[Any] = np.dtype(f"<u{word_bytes}")
        """The numpy dtype of a word."""
        self.owner: Final[npt.NDArray[np.int64]] = owner
        """For each word of a page, the token in the page that owns it."""
        # A row of values as words has `words_per_value` of them per token; these columns select the page's words.
        self._column: Final[npt.NDArray[np.int64]] = owner * words_per_value + key_column
        self._key_column: Final[npt.NDArray[np.int64]] = key_column
        self._is_identity: Final[bool] = word_bytes == _VALUE_BYTES and self.words_per_page == tokens_per_page
        self._has_one_key_word: Final[bool] = len(key_column) == 0 or not bool(key_column.any())

    def first_byte(self, token_in_page: int) -> int:
        """The offset of the token's bytes in the page; for ``tokens_per_page``, the page's end."""
        return -(-token_in_page * self.page_bytes // self.tokens_per_page)

    def first_bytes(self, tokens_in_page: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """`first_byte` of many tokens."""
        return -(-tokens_in_page * self.page_bytes // self.tokens_per_page)

    def page_words(self, values: Values) -> Words:
        """Rows of ``tokens_per_page`` values as rows of page words."""
        if self._is_identity:
            return values
        words: Words = np.ascontiguousarray(values).view(self.word_type)[:, self._column]
        return words

    def key_words(self, key: int) -> Words:
        """The key as page words: a single one if every word is the same, else a row."""
        words: Words = np.array([key], dtype=np.uint64).view(self.word_type)
        return words[0] if self._has_one_key_word else words[self._key_column]

    def token_bytes(self, value: int, token_in_page: int) -> bytes:
        """The bytes of a token with that value, the key mixed in."""
        num_bytes = self.first_byte(token_in_page + 1) - self.first_byte(token_in_page)
        repeats = -(-num_bytes // _VALUE_BYTES)
        return (value.to_bytes(_VALUE_BYTES, "little") * repeats)[:num_bytes]


def _word_bytes(page_bytes: int, tokens_per_page: int) -> int:
    """The widest word that divides the bytes of every token."""
    if page_bytes % tokens_per_page == 0:
        for word_bytes in (8, 4, 2):
            if page_bytes // tokens_per_page % word_bytes == 0:
                return word_bytes
    return 1
