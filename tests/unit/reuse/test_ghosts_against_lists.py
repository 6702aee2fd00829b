"""Ghosts of snapshots are what a plain list of the latest ones says."""

import random

import pytest

from kv_cache_manager_v2.reuse.snapshot_ghosts import NOT_GONE, SnapshotGhosts


@pytest.mark.parametrize("num_slots, most", [(0, 64), (4, 64), (5, 80), (256, 4096), (257, 4096)])
@pytest.mark.parametrize("seed", range(3))
def test_against_a_list(seed: int, num_slots: int, most: int) -> None:
    choices = random.Random(seed)
    ghosts = SnapshotGhosts(num_slots)
    latest: list[tuple[int, int, bool, int, int]] = []
    num_keys = max(most * choices.randint(1, 3) // 2, 100)
    for time in range(2 * most + 300):
        key, parent = choices.randrange(num_keys), choices.randrange(num_keys)
        went_with_block, num_bytes = choices.random() < 0.5, choices.choice((0, 4, 8, 124))
        ghosts.record(key, time, went_with_block, parent, num_bytes)
        latest.append((key, time, went_with_block, parent, num_bytes))
        del latest[:-most]
        if time % (most // 8) == 0 or time < 40:
            by_key = {key: 2 * time + went for key, time, went, _, _ in latest}
            by_parent = {parent: num_bytes for _, _, _, parent, num_bytes in latest if num_bytes > 0}
            for key in (*range(min(num_keys, 60)), num_keys):
                assert ghosts.find(key) == by_key.get(key, NOT_GONE)
                assert ghosts.find_length(key) == by_parent.get(key, 0)


def test_one_that_went_at_the_start_is_known() -> None:
    ghosts = SnapshotGhosts(4)
    ghosts.record(0, 0, False, 0, 4)
    assert ghosts.find(0) == 0
    assert ghosts.find_length(0) == 4
