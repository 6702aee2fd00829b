"""A refusal's numbers add up to the level's slots, and what it advises works, in any state: a follower does what it says until the call
goes through, and needs nothing else."""

import random
import re

import pytest
from small_models import manager_of, new_manager, run_prompt
from tiered_models import tiered_config

from kv_cache_manager_v2 import HostDevice, KVCache, KVCacheManager


def require_sum(text: str) -> None:
    """Free, evictable, locked and held of the level's slots; below level 0, with room and without."""
    found = re.search(r"of (\d+) there (\d+) are free, (\d+) evictable, (\d+) locked by active sequences and (\d+) held", text)
    if found is None:
        found = re.search(r"of (\d+) slots below it (\d+) can take them and (\d+) have pages", text)
    assert found is not None, text
    total, *parts = map(int, found.groups())
    assert total == sum(parts) and all(part >= 0 for part in parts), text


def test_what_waits_on_a_cached_prefix_is_named() -> None:
    """Fifty sequences that were created and not resumed hold a prefix of 30 blocks in a pool of 40."""
    with manager_of(num_slots=40) as manager:
        run_prompt(manager, list(range(120))).close()
        waiting = [manager.create_kv_cache(input_tokens=list(range(121))) for _ in range(50)]
        kv_cache = manager.create_kv_cache()
        assert kv_cache.resume() and not kv_cache.resize(80)
        text = str(manager.last_refusal)
        assert "20 slots asked for; of 40 there 10 are free, 0 evictable, 0 locked by active sequences" in text
        assert "and 30 held by suspended ones" in text
        assert "Close other sequences" in text
        for other in waiting:
            other.close()
        assert kv_cache.resize(80)


def put_into_a_random_state(manager: KVCacheManager, rng: random.Random) -> list[KVCache]:
    """Sequences of a few prefixes that wait, run or are suspended, as many as have room and some more."""
    open_: list[KVCache] = []
    for _ in range(rng.randrange(2, 14)):
        family = rng.randrange(3)
        tokens = [family * 1000 + i for i in range(rng.randrange(1, 60))]
        kv_cache = manager.create_kv_cache(input_tokens=tokens)
        open_.append(kv_cache)
        if rng.random() < 0.7 and kv_cache.resume() and kv_cache.resize(max(len(tokens), kv_cache.capacity)):
            kv_cache.commit(tokens[kv_cache.num_committed_tokens :])
            if rng.random() < 0.3:
                open_.pop().close()
            elif rng.random() < 0.5:
                kv_cache.suspend()
    return open_


def follow(manager: KVCacheManager, kv_cache: KVCache, others: list[KVCache], capacity: int) -> set[str]:
    """Does what each refusal says until the call goes through; returns what it was told to do."""
    told: set[str] = set()
    while not (kv_cache.is_active or kv_cache.resume()) or not kv_cache.resize(capacity):
        refusal = manager.last_refusal
        assert refusal is not None
        text = refusal.text
        require_sum(text)
        level = 0 if "GPU tier" in text or "max_util" in text else 1
        active = [other for other in others if other.is_active]
        if "uspend or close" in text and active:
            told.add("suspend")
            active[0].suspend()
        elif "lose" in text and others:
            told.add("close")
            others.pop().close()
        else:
            told.add("enlarge")
            assert "quota" in text, f"nothing is left to do: {text}"
            assert manager.resize(level, 2 * manager.get_quota(level))
    return told


@pytest.mark.parametrize("levels", ["one", "windows", "host", "two groups"])
def test_advice_that_is_followed_works(levels: str) -> None:
    told: set[str] = set()
    for seed in range(60):
        rng = random.Random(seed)
        num_slots = rng.randrange(12, 50)
        if levels == "one":
            manager = new_manager(num_slots=num_slots)
        elif levels == "windows":
            manager = new_manager([None, 9], num_slots=num_slots)
        else:
            groups = 2 if levels == "two groups" else 1
            lower = [("host", rng.randrange(4, 40))]
            manager = KVCacheManager(tiered_config(num_slots, lower, num_pool_groups=groups), device=HostDevice())
        with manager:
            others = put_into_a_random_state(manager, rng)
            kv_cache = others.pop(rng.randrange(len(others))) if others else manager.create_kv_cache()
            told |= follow(manager, kv_cache, others, max(kv_cache.capacity, rng.randrange(1, 5 * num_slots)))
            for one in [kv_cache, *others]:
                one.close()
    assert {"close", "enlarge"} <= told and ("suspend" in told or levels in ("one", "windows")), told
