"""Cutting runs of tokens into pages, against doing it token by token."""

import numpy as np

from kv_cache_manager_v2.testing.page_spans import cut_into_pages


def test_spans_are_what_counting_tokens_says():
    rng = np.random.default_rng(3)
    for _ in range(200):
        tokens_per_page = int(rng.integers(1, 9))
        num_runs = int(rng.integers(0, 5))
        rows = rng.integers(0, 3, num_runs)
        begs = rng.integers(0, 30, num_runs)
        ends = np.maximum(begs + rng.integers(-2, 30, num_runs), 0)
        expected = []
        for row, beg, end in zip(rows.tolist(), begs.tolist(), ends.tolist(), strict=True):
            pages = {}
            for token in range(beg, end):
                pages.setdefault(token // tokens_per_page, []).append(token % tokens_per_page)
            expected += [(row, page, tokens[0], tokens[-1] + 1) for page, tokens in pages.items()]
        spans = cut_into_pages(tokens_per_page, rows, begs, ends)
        found = zip(spans.row.tolist(), spans.page.tolist(), spans.beg.tolist(), spans.end.tolist(), strict=True)
        assert list(found) == expected
        assert len(spans) == len(expected)
