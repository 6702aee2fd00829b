"""Fleets that share a store: whatever ranks and store do, what is found is what was computed, and all of it while nothing is lost."""

import pytest

from .shared_lives import NUM_RANKS, SharedLives

NUM_ACTIONS = 120


@pytest.mark.parametrize("seed", range(12))
def test_a_rank_finds_what_others_have_computed(seed: int) -> None:
    lives = SharedLives(seed)
    lives.run(NUM_ACTIONS)
    assert lives.num_found > 0 and lives.num_lives > NUM_RANKS
    assert not lives.is_lossy or None not in lives.windows or lives.num_lossy > 0
