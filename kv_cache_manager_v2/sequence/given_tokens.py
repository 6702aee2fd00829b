"""The tokens that a sequence was made with, packed once, for the match and for its commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from mypy_extensions import i64

from ..reuse.digest_table import DigestTable
from ..reuse.token_packing import TOKEN_BYTES, has_digest, pack_tokens, view_of

if TYPE_CHECKING:
    from ..reuse.token_forms import Tokens


@final
class GivenTokens:
    __slots__ = ("num_tokens", "_packed", "_mixed")

    def __init__(self, tokens: Tokens, packed: bytes) -> None:
        """``packed``: what ``tokens`` are; unknown digests are in no table yet."""
        self.num_tokens: Final[i64] = len(packed) // TOKEN_BYTES
        self._packed: Final = packed
        mixed: list[object] | None = None
        # A buffer has no digests. Lists come first: to find out that one is no buffer takes an exception.
        if (isinstance(tokens, (list, tuple)) or view_of(tokens) is None) and has_digest(packed):
            listed: Any = tokens
            mixed = list(listed)
        self._mixed: Final[list[object] | None] = mixed
        """The tokens as they were given, where digests are among them: a digest is counted once for each commit, and may be new."""

    def share(self) -> bytes | list[object]:
        """All of them: packed, or as they were given where digests are among them."""
        return self._packed if self._mixed is None else self._mixed

    def pack(self, begin: i64, end: i64, digests: DigestTable) -> bytes:
        """Those from ``begin`` to ``end``, for a commit."""
        mixed = self._mixed
        if mixed is not None:
            return pack_tokens(mixed[int(begin) : int(end)], digests, True)
        if begin == 0 and end == self.num_tokens:
            return self._packed
        return self._packed[begin * TOKEN_BYTES : end * TOKEN_BYTES]

    def find_equal(self, begin: i64, tokens: object) -> bytes | None:
        """`pack` of as many as ``tokens`` are, if it is an int32 buffer of just those; else None.

        To compare is a tenth of the work of copying and validating them.
        """
        if self._mixed is not None or isinstance(tokens, (list, tuple)):
            return None
        view = view_of(tokens)
        if view is None or view.format != "i" or view.ndim != 1 or not view.c_contiguous:
            return None
        first_byte = int(begin * TOKEN_BYTES)
        num_bytes = view.nbytes
        if not self._packed.startswith(view, first_byte):
            return None
        if first_byte == 0 and num_bytes == len(self._packed):
            return self._packed
        return self._packed[first_byte : first_byte + num_bytes]
