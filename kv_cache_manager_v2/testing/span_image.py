"""The expected contents of pages for a set of spans, as page words, before a buffer's key is mixed in.

Made once per batch and page layout, and used for every layer and role with that layout: only the key differs.
"""

from typing import Final, final

import numpy as np
import numpy.typing as npt

from .page_spans import Ints, PageSpans
from .token_layout import TokenLayout, Words
from .token_values import Values

_MAX_KEPT_BYTES: Final = 32 << 20
"""Larger images are computed anew each time, in pieces: pages of a full-size model are large."""


@final
class SpanImage:
    """The spans' token values, and those as words."""

    __slots__ = ("spans", "layout", "value_offset", "num_bytes", "_values", "_words", "_mask", "_is_masked")

    def __init__(self, spans: PageSpans, layout: TokenLayout, values: Values, value_offset: Ints) -> None:
        self.spans: Final = spans
        self.layout: Final = layout
        self.value_offset: Final = value_offset
        """By span: the index of its page's first token among the values (which may be before the span's own)."""
        self.num_bytes: Final = int((layout.first_bytes(spans.end) - layout.first_bytes(spans.beg)).sum())
        """Bytes that the spans cover."""
        self._values: Final[Values] = values
        num_covered = spans.end - spans.beg
        self._is_masked: Final[bool] = bool((num_covered != layout.tokens_per_page).any())
        self._words: Words | None = None
        self._mask: npt.NDArray[np.bool_] | None = None
        if len(spans) * layout.page_bytes <= _MAX_KEPT_BYTES:
            self._words = self._lay_out(0, len(spans))
            self._mask = self._cover(0, len(spans)) if self._is_masked else None

    def __len__(self) -> int:
        return len(self.spans)

    def words(self, beg: int, end: int) -> Words:
        """The pages of spans ``[beg, end)``; words outside a span are arbitrary."""
        return self._lay_out(beg, end) if self._words is None else self._words[beg:end]

    def mask(self, beg: int, end: int) -> npt.NDArray[np.bool_] | None:
        """Which of those words are inside the spans; None for all."""
        if not self._is_masked:
            return None
        return self._cover(beg, end) if self._mask is None else self._mask[beg:end]

    def value_of(self, span: int, token_in_page: int) -> int:
        return int(self._values[self.value_offset[span] + token_in_page])

    def _lay_out(self, beg: int, end: int) -> Words:
        tokens = self.value_offset[beg:end, None] + np.arange(self.layout.tokens_per_page)
        # Only tokens outside a span can be outside the values.
        return self.layout.page_words(self._values.take(tokens, mode="clip"))

    def _cover(self, beg: int, end: int) -> npt.NDArray[np.bool_]:
        owner = self.layout.owner
        covered: npt.NDArray[np.bool_] = owner >= self.spans.beg[beg:end, None]
        covered &= owner < self.spans.end[beg:end, None]
        return covered
