"""Children of a block are found, listed and taken out again, however many there are: beyond `MOST_TOGETHER` they are in several dicts."""

import random
from itertools import chain

import pytest

from kv_cache_manager_v2.reuse.block import MOST_TOGETHER, Block, Children


@pytest.mark.parametrize("seed", range(3))
def test_they_are_as_in_one_dict(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    children = Children()
    expected: dict[bytes, Block] = {}
    for target in (MOST_TOGETHER + 1500, MOST_TOGETHER - 500, 3000, MOST_TOGETHER + 300, 0):
        while len(expected) != target:
            if len(expected) < target:
                key = rng.randbytes(rng.choice((4, 16, 128)))
                if key not in expected:
                    expected[key] = Block(len(expected))
                    children.add(key, expected[key])
            else:
                # The oldest or any.
                key = next(iter(expected)) if rng.random() < 0.5 else rng.choice(list(expected)[:50])
                del expected[key]
                children.remove(key)
        assert children.count == target
        assert all(children.find(key) is child for key, child in expected.items())
        assert sorted(map(id, children.list_all())) == sorted(map(id, expected.values()))
        assert len(list(chain.from_iterable(children.dicts()))) == target
        assert children.find(rng.randbytes(16)) is None
        before, after = children.sorted_keys().neighbours(b"\x80", 3)
        in_order = sorted(expected)
        assert before == sorted((key for key in in_order if key < b"\x80"), reverse=True)[:3]
        assert after == [key for key in in_order if key >= b"\x80"][:3]


def test_no_dict_of_many_children_becomes_large() -> None:
    """A dict that grows is made anew in one call, so it is the largest one that says how long that may take."""
    children = Children()
    for number in range(5 * MOST_TOGETHER):
        children.add(number.to_bytes(4, "little") + bytes(124), Block(number))
    assert max(map(len, children.dicts())) == MOST_TOGETHER
    # 40,000 in 256 parts are 156 each; a part has twice as many once in 10^30 times.
    assert sorted(map(len, children.dicts()))[-2] < 2 * 4 * MOST_TOGETHER // 256
