"""What hits in a sample, with another size or policy, say of all tokens: arithmetic, with figures that can be followed by hand."""

import pytest

from kv_cache_manager_v2 import EvictionPolicy
from kv_cache_manager_v2.sequence.reuse_sample import CacheFigures

LRU, LEARNED = EvictionPolicy.LRU, EvictionPolicy.LEARNED


def figures(num_tokens: int = 200, num_hit: int = 100, num_gone: int = 40, unsampled: float = 0.0, partial: bool = False) -> CacheFigures:
    return CacheFigures(0, LRU, num_tokens, num_hit, num_gone, 50.0, 0.5, 0.1, False, unsampled, 30, partial)


@pytest.mark.parametrize(
    ("unsampled", "hits_now", "hits_then", "expected"),
    [
        # As many hits: what was measured.
        (0.0, 4, 4, 100),
        # Half of them: half of the 100 tokens. None then: none.
        (0.0, 4, 2, 50),
        (0.0, 4, 0, 0),
        # Of the 6 queries of 10 that were no hits 3 are: half of the 40 tokens that were gone. Each query a hit: all 40.
        (0.0, 4, 7, 120),
        (0.0, 4, 10, 140),
        # Each query was a hit already.
        (0.0, 10, 10, 100),
        # Half as many blocks again that every cache has: 9 hits of 15 now, 7 or 12 then.
        (0.5, 4, 2, 100 * 7 / 9),
        (0.5, 4, 7, 100 + 40 * 3 / 6),
        # Fewer than the sample shows, by 2: 2 hits of 8 now, and then 0, which is never less.
        (-0.2, 4, 2, 0),
        (-0.2, 4, 1, 0),
        (-0.2, 4, 3, 50),
        # As many as there are hits: nothing is known of those, and the sample is taken as it is.
        (-0.4, 4, 2, 50),
    ],
)
def test_hits_are_anchored_at_what_was_measured(unsampled: float, hits_now: int, hits_then: int, expected: float) -> None:
    found = figures(unsampled=unsampled).compute_hit_rate(hits_now, hits_then, 10)
    assert found == pytest.approx(expected / 200)


def test_without_tokens_nothing_is_hit() -> None:
    nothing = figures(num_tokens=0, num_hit=0, num_gone=0)
    assert nothing.compute_hit_rate(0, 0, 0) == nothing.incomplete_share == 0.0
    assert figures().incomplete_share == 30 / 200


def test_a_level_of_another_size_has_its_share_of_the_blocks() -> None:
    """Half of 50 blocks are on the level: twice its size makes 75, half of it 37.5, and none of it 25."""
    assert [figures().compute_blocks(size) for size in (1.0, 2.0, 0.5, 0.0)] == [50.0, 75.0, 37.5, 25.0]


def test_partial_layers_are_known_as_they_were_measured_only() -> None:
    for size, policy in ((1.0, LRU), (2.0, LRU), (1.0, LEARNED)):
        assert figures().is_known(size, policy)
        assert figures(partial=True).is_known(size, policy) == (size == 1.0 and policy is LRU)
