"""Runs of tokens, split at page boundaries.

A *row* is one beam of one sequence in a step. A *span* is the part of one page that a run of a row's tokens covers:
``[beg, end)`` counted from the page's first token. Columns of equal length, one entry per span, ordered by their
run.
"""

from typing import Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]


@final
class PageSpans:
    """Spans of pages with ``tokens_per_page`` tokens each."""

    __slots__ = ("tokens_per_page", "row", "page", "beg", "end")

    def __init__(self, tokens_per_page: int, row: Ints, page: Ints, beg: Ints, end: Ints) -> None:
        self.tokens_per_page: Final = tokens_per_page
        self.row: Final = row
        self.page: Final = page
        """Ordinal of the page in its sequence: tokens ``page * tokens_per_page`` and on."""
        self.beg: Final = beg
        self.end: Final = end

    def __len__(self) -> int:
        return len(self.row)


def cut_into_pages(tokens_per_page: int, rows: Ints, run_begs: Ints, run_ends: Ints) -> PageSpans:
    """Split run ``i``, tokens ``[run_begs[i], run_ends[i])`` of ``rows[i]``, at page boundaries; empty runs have no spans."""
    kept = run_ends > run_begs
    rows, run_begs, run_ends = rows[kept], run_begs[kept], run_ends[kept]
    first_pages = run_begs // tokens_per_page
    num_pages = (run_ends - 1) // tokens_per_page + 1 - first_pages
    run_of_span = np.repeat(np.arange(len(rows)), num_pages)
    # Spans count on from run to run; less what came before the run, they count the run's own pages from 0.
    spans_before = np.cumsum(num_pages) - num_pages
    page = np.arange(len(run_of_span)) - spans_before[run_of_span] + first_pages[run_of_span]
    first_token = page * tokens_per_page
    beg = np.maximum(run_begs[run_of_span] - first_token, 0)
    end = np.minimum(run_ends[run_of_span] - first_token, tokens_per_page)
    return PageSpans(tokens_per_page, rows[run_of_span], page, beg, end)
