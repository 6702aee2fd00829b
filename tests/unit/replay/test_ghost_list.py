"""A bounded set of keys in the order of adding, against a plain dict; its room is bounded by its limit."""

from random import Random

import pytest

from kv_cache_manager_v2.replay.policies.ghost_list import NOT_THERE, GhostList


@pytest.mark.parametrize(("seed", "limit"), [(1, 1), (2, 3), (3, 40), (4, 100), (5, 700)])
def test_against_a_dict(seed: int, limit: int) -> None:
    random = Random(seed)
    ghosts = GhostList()
    ghosts.set_limit(limit)
    model: dict[int, int] = {}
    for step in range(4000):
        # Few keys, so that they come back; large numbers, as content keys are.
        key = random.randrange(1, 2 * limit + 3) * 0x1234567 + 1
        kind = random.random()
        if kind < 0.6:
            ghosts.add(key, step)
            model.pop(key, None)
            model[key] = step
        elif kind < 0.95:
            assert ghosts.take(key) == model.get(key, NOT_THERE)
            model.pop(key, None)
        elif kind < 0.96:
            limit = max(1, limit + random.randint(-3, 3))
            ghosts.set_limit(limit)
        else:
            assert ghosts.contains(key) == (key in model)
        while len(model) > limit:
            del model[next(iter(model))]
        assert ghosts.num_keys == len(model)
        if step % 97 == 0:
            ghosts.check()
    for key in list(model):
        assert ghosts.take(key) == model[key]
    assert ghosts.num_keys == 0
    ghosts.check()


def test_without_room_nothing_is_kept() -> None:
    ghosts = GhostList()
    ghosts.add(5)
    assert not ghosts.contains(5)
    assert ghosts.num_keys == 0


@pytest.mark.parametrize("limit", [64, 65, 700])
def test_a_ring_without_gaps_grows_and_forgets_none(limit: int) -> None:
    """Nothing is taken, so each doubling finds a ring of keys alone."""
    ghosts = GhostList()
    ghosts.set_limit(limit)
    for key in range(1, 2 * limit):
        ghosts.add(key, 3 * key)
        assert ghosts.contains(max(1, key - limit + 1)) and not ghosts.contains(key - limit or -1)
    ghosts.check()
    assert [ghosts.take(key) for key in range(limit, 2 * limit)] == [3 * key for key in range(limit, 2 * limit)]
