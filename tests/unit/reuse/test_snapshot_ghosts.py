"""Remembered snapshots: found by their prefix, and by the prefix above the block inside which they end; bounded."""

from kv_cache_manager_v2.reuse.snapshot_ghosts import NOT_GONE, SnapshotGhosts


def test_a_snapshot_is_found_by_its_prefix() -> None:
    ghosts = SnapshotGhosts(4)
    ghosts.record(7, 3, False, 5, 0)
    ghosts.record(8, 4, True, 5, 0)
    assert (ghosts.find(7), ghosts.find(8)) == (3 << 1, (4 << 1) | 1)
    assert ghosts.find(5) == NOT_GONE
    assert ghosts.find_length(5) == 0


def test_one_inside_a_block_is_found_from_above() -> None:
    ghosts = SnapshotGhosts(4)
    ghosts.record(7, 3, False, 5, 12)
    ghosts.record(9, 3, False, 5, 8)
    assert ghosts.find_length(5) == 8, "the latest one"
    assert ghosts.find(7) == ghosts.find(9) == 3 << 1


def test_what_goes_again_is_known_by_the_last_time() -> None:
    ghosts = SnapshotGhosts(4)
    ghosts.record(7, 3, False, 5, 4)
    for key in range(100, 162):
        ghosts.record(key, 4, False, 5000 + key, 4)
    ghosts.record(7, 6, True, 5, 4)
    # The 65th takes the place of the first one, whose key has another place by now.
    ghosts.record(1000, 6, False, 6, 4)
    assert ghosts.find(7) == (6 << 1) | 1 and ghosts.find_length(5) == 4
    for key in range(2000, 2062):
        ghosts.record(key, 7, False, 7000 + key, 4)
    assert ghosts.find(7) == (6 << 1) | 1
    ghosts.record(3000, 8, False, 9000, 4)
    assert ghosts.find(7) == NOT_GONE and ghosts.find_length(5) == 0


def test_only_so_many_are_remembered() -> None:
    for num_slots, count in ((1, 64), (100, 1600), (10**6, 4096)):
        ghosts = SnapshotGhosts(num_slots)
        for key in range(1, 10_000):
            ghosts.record(key, key, False, key + 20_000, 4)
        known = [key for key in range(1, 10_000) if ghosts.find(key) != NOT_GONE]
        assert known == list(range(10_000 - count, 10_000))
        assert sum(ghosts.find_length(key + 20_000) > 0 for key in range(1, 10_000)) == count
