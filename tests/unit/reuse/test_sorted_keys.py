"""`SortedKeys` against a sorted list, with more keys than a run has, so that runs split, empty and go."""

from bisect import bisect_left
from random import Random

import pytest

from kv_cache_manager_v2.reuse.sorted_keys import RUN_KEYS, SortedKeys


@pytest.mark.parametrize(("seed", "num_first"), [(0, 0), (1, RUN_KEYS), (2, 3 * RUN_KEYS)])
def test_against_a_sorted_list(seed: int, num_first: int) -> None:
    random = Random(seed)
    model = sorted({random.randbytes(3) for _ in range(num_first)})
    keys = SortedKeys(list(model))
    most = 0
    for step in range(6 * RUN_KEYS):
        key = random.randbytes(3)
        # It grows beyond a run, and then shrinks to nothing.
        if step < 3 * RUN_KEYS and key not in model:
            keys.add(key)
            model.insert(bisect_left(model, key), key)
        elif model and step >= 3 * RUN_KEYS:
            keys.remove(model.pop(random.randrange(len(model))))
        most = max(most, len(model))
        if step % 7 == 0:
            at = bisect_left(model, key)
            before, after = keys.neighbours(key, 8)
            assert before == model[max(at - 8, 0) : at][::-1]
            assert after == model[at : at + 8]
    assert most > 2 * RUN_KEYS
