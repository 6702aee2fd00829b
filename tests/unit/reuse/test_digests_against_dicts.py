"""A digest table counts what plain dicts count, and gives a new digest the free id nearest to zero."""

import random
from array import array

import pytest

from kv_cache_manager_v2.reuse.digest_table import UNKNOWN_DIGEST, DigestTable


@pytest.mark.parametrize("seed", range(10))
def test_against_dicts(seed: int) -> None:
    choices = random.Random(seed)
    table = DigestTable()
    ids: dict[bytes, int] = {}
    counts: dict[int, int] = {}
    digests = [b"digest %d" % number for number in range(8)]
    for _ in range(200):
        digest = choices.choice(digests)
        kind = choices.randrange(3)
        if kind == 0:
            if digest not in ids:
                ids[digest] = next(token for token in range(UNKNOWN_DIGEST - 1, -100, -1) if token not in counts)
                counts[ids[digest]] = 0
            counts[ids[digest]] += 1
            assert table.acquire(digest) == ids[digest]
        elif counts:
            # Among ordinary tokens, zero too, and more than once.
            chosen = [token for token in counts if choices.random() < 0.5]
            if kind == 1:
                chosen += chosen[:1]
                table.acquire_again(array("i", [0, 1, *chosen, 5]).tobytes())
            else:
                table.release(array("i", [0, 1, *chosen, 5]).tobytes())
            for token in chosen:
                counts[token] += 1 if kind == 1 else -1
            ids = {digest: token for digest, token in ids.items() if counts[token] > 0}
            counts = {token: count for token, count in counts.items() if count > 0}
        assert len(table) == len(ids)
        assert table.total_count() == sum(counts.values())
        assert [table.find(one) for one in digests] == [ids.get(one, UNKNOWN_DIGEST) for one in digests]
        assert all(table.digest_of(token) == digest for digest, token in ids.items())
