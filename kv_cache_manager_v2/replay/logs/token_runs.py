"""Tokens and texts as segments: runs of 16 tokens, equal runs with equal codes.

A prompt is cut into runs of `RUN_TOKENS`; the last run may be shorter. Two prompts share the runs that are equal from their beginning
on, so
what they share is exact to the end of a run, and where one of them ends in a run that the other continues. Within a run that differs, the
up to 15 tokens before the difference do not count as shared.

A text becomes tokens by a tokenizer, or without one by its bytes: each `bytes_per_token` of UTF-8 are a token.
"""

import os
from array import array
from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np

from ...base.missing_package import missing_package
from ..bad_input import BadInputError
from ..tokens import NUM_SEGMENT_IDS, SegmentArray

RUN_TOKENS: Final = 16
BYTES_PER_TOKEN: Final = 4


@final
class Segments:
    """A growing prompt: codes and lengths."""

    __slots__ = ("codes", "lengths", "num_tokens")

    def __init__(self, codes: Sequence[int] = (), lengths: Sequence[int] = ()) -> None:
        self.codes: Final[list[int]] = list(codes)
        self.lengths: Final[list[int]] = list(lengths)
        self.num_tokens: int = sum(self.lengths)

    def add(self, code: int, length: int) -> None:
        if length > 0:
            self.codes.append(code)
            self.lengths.append(length)
            self.num_tokens += length

    def extend(self, other: "Segments") -> None:
        self.codes.extend(other.codes)
        self.lengths.extend(other.lengths)
        self.num_tokens += other.num_tokens

    def arrays(self) -> tuple[SegmentArray, SegmentArray]:
        return np.array(self.codes, dtype=np.int64), np.array(self.lengths, dtype=np.int64)


@final
class CodeTable:
    """Codes of contents, from 0 on in the order of first appearance."""

    __slots__ = ("_codes", "_num_codes", "_extended")

    def __init__(self) -> None:
        self._codes: Final[dict[object, int]] = {}
        self._num_codes = 0
        self._extended: Final[set[int]] = set()
        """Codes of short runs that a longer run continues."""

    def code(self, content: object) -> int:
        """The code of any hashable content."""
        found = self._codes.get(content)
        if found is None:
            found = self.fresh()
            self._codes[content] = found
        return found

    def fresh(self) -> int:
        """A code that nothing else has."""
        if self._num_codes >= NUM_SEGMENT_IDS:
            raise BadInputError(f"over {NUM_SEGMENT_IDS} different blocks: take a part of the log with --limit")
        self._num_codes += 1
        return self._num_codes - 1

    def code_of_run(self, run: bytes, item_bytes: int) -> int:
        """The code of a run; of a short one that it continues, if none has done that."""
        found = self._codes.get(run)
        if found is not None:
            return found
        end = len(run) - item_bytes
        while end > 0:
            begun = self._codes.get(run[:end])
            if begun is not None and begun not in self._extended:
                self._extended.add(begun)
                self._codes[run] = begun
                return begun
            end -= item_bytes
        found = self.fresh()
        self._codes[run] = found
        return found


@final
class TextCoder:
    """Makes segments of texts and tokens."""

    __slots__ = ("table", "_tokenizer", "_bytes_per_token")

    def __init__(self, tokenizer: Any = None, bytes_per_token: int = BYTES_PER_TOKEN) -> None:
        """``tokenizer``: has `encode`, whose result is a list of ids or has `ids`. None: bytes."""
        self.table: Final = CodeTable()
        self._tokenizer: Final = tokenizer
        self._bytes_per_token: Final = bytes_per_token

    def count(self, text: str) -> int:
        """The number of tokens of a text."""
        if self._tokenizer is None:
            return -(-len(text.encode("utf-8", "surrogatepass")) // self._bytes_per_token)
        return len(self._encode(text))

    def segments_of_text(self, text: str) -> Segments:
        if self._tokenizer is not None:
            return self.segments_of_tokens(self._encode(text))
        return self._cut(text.encode("utf-8", "surrogatepass"), self._bytes_per_token)

    def segments_of_tokens(self, tokens: Sequence[int]) -> Segments:
        return self._cut(array("q", tokens).tobytes(), 8)

    def _encode(self, text: str) -> list[int]:
        found = self._tokenizer.encode(text)
        ids: list[int] = found if isinstance(found, list) else list(found.ids)
        return ids

    def _cut(self, data: bytes, item_bytes: int) -> Segments:
        segments = Segments()
        run_bytes = RUN_TOKENS * item_bytes
        for begin in range(0, len(data), run_bytes):
            run = data[begin : begin + run_bytes]
            segments.add(self.table.code_of_run(run, item_bytes), -(-len(run) // item_bytes))
        return segments


def load_tokenizer(path: str) -> Any:
    """A `tokenizer.json`, or a folder that has one. `BadInputError` without the package, or for a file that is none."""
    try:
        import tokenizers
    except ImportError as missing:
        raise BadInputError(str(missing_package("--tokenizer", "tokenizers", missing))) from None

    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise BadInputError(f"{path}: no tokenizer.json is there; name one, or leave --tokenizer out to count bytes")
    try:
        return tokenizers.Tokenizer.from_file(file)
    except Exception as error:  # the package raises Exception itself
        raise BadInputError(f"{file}: not a tokenizer.json ({error}); leave --tokenizer out to count bytes") from None
