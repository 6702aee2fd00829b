"""Content that is gone, in buckets of four: against a plain list per bucket, and how much of it is remembered."""

from random import Random

import pytest

from kv_cache_manager_v2.storage.eviction.ghost_table import NOT_THERE, GhostTable, bucket_of

WAYS = 4


@pytest.mark.parametrize(("seed", "num_buckets"), [(1, 1), (2, 3), (3, 40), (4, 1024), (5, 1500)])
def test_against_lists(seed: int, num_buckets: int) -> None:
    random = Random(seed)
    table = GhostTable()
    table.set_num_buckets(num_buckets)
    model: dict[int, list[tuple[int, int, int]]] = {}
    now = 0
    for step in range(6000):
        now += 5 * (step % 3 == 0)
        # Twice as many keys as there is room for; large numbers, as content keys are.
        key = random.randrange(1, 2 * WAYS * num_buckets + 3) * 0x1234567 + 1
        bucket = model.setdefault(bucket_of(key, num_buckets), [])
        known = [one for one in bucket if one[0] == key]
        if known:
            _, kind, tick = known[0]
            # A stamp is known modulo 4096.
            assert table.take(key, now) == (now - (now - tick) % 4096) * 2 + kind
            bucket[bucket.index(known[0])] = (0, 0, 0)
        else:
            assert table.take(key, now) == NOT_THERE
            kind = random.randrange(2)
            table.add(key, kind, now)
            bucket.insert(0, (key, kind, now))
            del bucket[WAYS:]


def test_other_contents_are_hardly_ever_taken_for_one_that_is_gone() -> None:
    table = GhostTable()
    table.set_num_buckets(100)
    for key in range(1, 401):
        table.add(key * 977, 1, 5)
    # 18 bits and four entries: one look-up in 65,536 errs, so 20,000 look-ups err 0.3 times; five times has a chance of 2 in 100,000.
    assert sum(table.take(key * 977, 5) != NOT_THERE for key in range(1000, 21000)) < 5


def test_without_buckets_nothing_is_kept_and_another_number_forgets() -> None:
    table = GhostTable()
    table.add(7, 0, 0)
    assert table.take(7, 0) == NOT_THERE
    table.set_num_buckets(10)
    table.add(7, 0, 0)
    table.set_num_buckets(10)
    assert table.take(7, 3) == 0
    table.add(7, 0, 0)
    table.set_num_buckets(11)
    assert table.take(7, 3) == NOT_THERE
