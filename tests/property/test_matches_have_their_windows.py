"""A match is the longest prefix of which every layer group has the pages that the next token reads, each by its own window."""

from random import Random

import pytest
from small_models import manager_of

from kv_cache_manager_v2 import KVCacheManager

Path = tuple[int, ...]


def pages_of_paths(manager: KVCacheManager) -> dict[Path, list[bool]]:
    """Of each block, named by all tokens up to its end: which layer groups have its page."""
    found: dict[Path, list[bool]] = {}
    path: list[int] = []
    for root in manager.describe()["tree"]:
        for block in root["blocks"]:
            path = [*path[: block["depth"]], *block["tokens"]]
            found[tuple(path)] = [page is not None for page in block["pages"]]
    return found


def find_longest(pages: dict[Path, list[bool]], prompt: list[int], windows: tuple[int | None, ...]) -> int:
    """With one token per block the next token at m reads the last w - 1 blocks before it."""

    def can_begin_at(num_tokens: int) -> bool:
        if tuple(prompt[:num_tokens]) not in pages:
            return False
        firsts = [0 if window is None else max(0, num_tokens - window + 1) for window in windows]
        return all(pages[tuple(prompt[: at + 1])][group] for group, first in enumerate(firsts) for at in range(first, num_tokens))

    return max((num_tokens for num_tokens in range(1, len(prompt) + 1) if can_begin_at(num_tokens)), default=0)


@pytest.mark.parametrize("windows", [(2, 5), (5, 2), (None, 3), (3, 6, 9), (9, 3, None)])
def test_probes_are_those_of_pages_counted(windows: tuple[int | None, ...]) -> None:
    random = Random(str(windows))
    shorter = 0
    with manager_of(windows, tokens_per_block=1, num_slots=16 * len(windows)) as manager:
        texts: list[list[int]] = [[]]
        for _turn in range(60):
            text = [*random.choice(texts)[: random.randrange(12)], *(random.randrange(3) for _ in range(random.randrange(1, 9)))][:12]
            texts.append(text)
            with manager.create_kv_cache(input_tokens=text) as kv_cache:
                assert kv_cache.resume()
                while kv_cache.num_committed_tokens < len(text):
                    at = kv_cache.num_committed_tokens
                    assert kv_cache.resize(at + 1)
                    kv_cache.commit([text[at]])
            pages = pages_of_paths(manager)
            for prompt in random.sample(texts, min(len(texts), 8)):
                expected = find_longest(pages, prompt, windows)
                assert manager.probe_reuse(input_tokens=prompt) == expected, (prompt, pages)
                shorter += tuple(prompt) in pages and 0 < expected < len(prompt)
    assert shorter > 2, "too few prompts whose blocks are there and whose windows are not"
