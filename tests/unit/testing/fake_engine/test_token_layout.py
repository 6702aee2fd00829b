"""Which bytes of a page are a token's, against counting them one by one."""

import numpy as np
import pytest

from kv_cache_manager_v2.testing.token_layout import TokenLayout

KEY = 0x0123456789ABCDEF

# (bytes, tokens): 8, 16, 12, 4, 2, 6, 1, 3 and 7 bytes per token; then sizes that tokens do not divide; then fewer
# bytes than tokens; then one token, as for recurrent state.
PAGES = [(64, 8), (128, 8), (96, 8), (32, 8), (16, 8), (48, 8), (8, 8), (24, 8), (56, 8), (100, 32), (33, 32), (5, 8)]
PAGES += [(1, 4), (8, 1), (40, 1), (37, 1), (6, 1)]


def brute_force_page(values, page_bytes):
    """Token t owns byte b iff t is the last one with t / tokens <= b / bytes."""
    num_tokens = len(values)
    page, position_of_token = [], [0] * num_tokens
    for byte in range(page_bytes):
        token = max(t for t in range(num_tokens) if t * page_bytes <= byte * num_tokens)
        page.append((values[token] ^ KEY) >> (8 * (position_of_token[token] % 8)) & 0xFF)
        position_of_token[token] += 1
    return bytes(page), position_of_token


@pytest.mark.parametrize(("page_bytes", "num_tokens"), PAGES)
def test_pages_hold_what_counting_says(page_bytes, num_tokens):
    layout = TokenLayout(page_bytes, num_tokens)
    values = np.random.default_rng(page_bytes * 100 + num_tokens).integers(0, 2**64, (3, num_tokens), dtype=np.uint64)
    words = layout.page_words(values) ^ layout.key_words(KEY)
    assert words.dtype == layout.word_type
    assert words.shape == (3, layout.words_per_page)
    for row in range(3):
        expected, num_bytes_of_token = brute_force_page(values[row].tolist(), page_bytes)
        assert words[row].tobytes() == expected
        begs = layout.first_bytes(np.arange(num_tokens + 1)).tolist()
        assert begs == [layout.first_byte(token) for token in range(num_tokens + 1)]
        assert begs == np.cumsum([0, *num_bytes_of_token]).tolist()
        tokens = [layout.token_bytes(int(values[row, token]) ^ KEY, token) for token in range(num_tokens)]
        assert b"".join(tokens) == expected


def test_words_are_as_wide_as_tokens_allow():
    widths = [TokenLayout(page_bytes, tokens).word_type.itemsize for page_bytes, tokens in PAGES]
    assert widths == [8, 8, 4, 4, 2, 2, 1, 1, 1, 1, 1, 1, 1, 8, 8, 1, 2]
