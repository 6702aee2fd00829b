"""Which kind each block of a request has, beside a look at every token; the learned eviction policy is told nothing else of it."""

from random import Random

import pytest

from kv_cache_manager_v2 import RetentionConfig, TokenRangeRetention
from kv_cache_manager_v2.sequence.kind_ranges import find_kinds
from kv_cache_manager_v2.storage.eviction.segment_traits import NO_HINT, RequestFacts


def kinds_by_token(ranges: list[TokenRangeRetention], length: int, size: int, num_blocks: int) -> list[int]:
    """The last block first. Of the ranges with a kind that name a token of the block the highest priority counts, the first of equal ones;
    the model knows 15 kinds, from 1 on."""
    levels = []
    for block in reversed(range(num_blocks)):
        best: TokenRangeRetention | None = None
        for item in ranges:
            named = range(item.begin, length if item.end is None else item.end)
            names_block = any(token in named for token in range(block * size, (block + 1) * size))
            if item.kind is not None and names_block and (best is None or item.priority > best.priority):
                best = item
        levels.append(NO_HINT if best is None or best.kind is None else 1 + best.kind % 15)
    return levels


@pytest.mark.parametrize("seed", range(30))
def test_the_highest_range_with_a_kind_names_the_block(seed: int) -> None:
    """Ranges may end behind the request's blocks, and a request may have more blocks than they name."""
    random = Random(seed)
    facts = RequestFacts()
    for _ in range(10):
        size, length = random.choice((1, 4, 16)), random.randint(1, 70)
        ranges = []
        for _ in range(random.randint(1, 5)):
            begin = random.randrange(length)
            end = random.choice((None, random.randint(begin + 1, length + 30)))
            priority, kind = random.choice((0, 1, 50, 50, 100)), random.choice((None, 0, 3, 14, 15, 200))
            ranges.append(TokenRangeRetention(begin, end, priority, kind=kind))
        kinds = find_kinds(RetentionConfig(ranges), length, size)
        has_kinds = any(item.kind is not None for item in ranges)
        assert (kinds is not None) is has_kinds
        num_blocks = random.randint(0, length // size + 2)
        facts.begin(num_blocks, 0, 0)
        if kinds is not None:
            kinds.describe(facts)
            assert [int(facts.kind_at(block)) for block in range(num_blocks)] == kinds_by_token(ranges, length, size, num_blocks)
            assert facts.kind_at(num_blocks) == NO_HINT
        facts.end()


def test_without_kinds_there_is_nothing_to_tell() -> None:
    assert find_kinds(RetentionConfig(), 8, 4) is None
    assert find_kinds(RetentionConfig([TokenRangeRetention(0, 4, 50)]), 8, 4) is None
