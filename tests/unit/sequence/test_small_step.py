"""The bound below which a resize changes the numbers only: kept by the resize that finds it, gone with what may make it untrue."""

import random
from typing import Any

from small_models import manager_of, run_prompt

from kv_cache_manager_v2.sequence.sequence_state import ACTIVE, SequenceState
from kv_cache_manager_v2.sequence.small_step import is_small_resize, stays_within_blocks


def state_of(kv_cache: Any) -> SequenceState:
    state: SequenceState = kv_cache._state_for_batch()
    return state


def small_capacities(kv_cache: Any) -> list[int]:
    state = state_of(kv_cache)
    return [capacity for capacity in range(40) if is_small_resize(state, capacity, state.history)]


def test_the_bound_lies_behind_the_last_block() -> None:
    """Blocks of 4. 6 tokens take 2 blocks, so 5 .. 8 change nothing else, and 9 is the first slow capacity. After 9: blocks of 9 .. 12."""
    with manager_of() as manager, manager.create_kv_cache() as kv_cache:
        assert small_capacities(kv_cache) == [], "suspended"
        assert kv_cache.resume() and kv_cache.resize(6)
        assert state_of(kv_cache).next_slow_capacity == 9 and small_capacities(kv_cache) == [5, 6, 7, 8]
        assert kv_cache.resize(9)
        assert state_of(kv_cache).next_slow_capacity == 13 and small_capacities(kv_cache) == [9, 10, 11, 12]
        assert kv_cache.resize(3)
        assert small_capacities(kv_cache) == [1, 2, 3, 4]
        kv_cache.suspend()
        assert small_capacities(kv_cache) == []
        assert kv_cache.resume() and small_capacities(kv_cache) == [], "the next resize finds it"
        assert kv_cache.resize(3) and small_capacities(kv_cache) == [1, 2, 3, 4]


def test_a_fork_takes_it_from_its_parent() -> None:
    """The block that both have is copied for the first writer: a resize inside it changes more than the numbers."""
    with manager_of() as manager, manager.create_kv_cache() as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(6)
        with kv_cache.fork() as child:
            assert small_capacities(kv_cache) == small_capacities(child) == []
            assert child.resize(7) and small_capacities(child) == [5, 6, 7, 8]


def test_it_never_promises_too_much() -> None:
    """Random calls on a few sequences; what is small must be valid for an active sequence of one beam, and stay within its blocks."""
    rng = random.Random(5)
    num_small = 0
    with manager_of(windows=[8, None]) as manager:
        run_prompt(manager, list(range(10)))
        kv_caches = [manager.create_kv_cache(input_tokens=list(range(10))) for _ in range(3)]
        for _ in range(600):
            kv_cache = rng.choice(kv_caches)
            action = rng.choice(["resize", "resize", "resize", "commit", "suspend", "resume", "resume", "fork"])
            active = state_of(kv_cache).status == ACTIVE
            if action == "resize" and active:
                kv_cache.resize(max(kv_cache.history_length, min(60, kv_cache.capacity + rng.randint(-3, 5))))
            elif action == "commit" and active and kv_cache.num_committed_tokens < kv_cache.capacity:
                kv_cache.commit([7])
            elif action == "suspend" and active:
                kv_cache.suspend()
            elif action == "resume" and not active:
                kv_cache.resume()
            elif action == "fork":
                position = rng.randrange(3)
                other = kv_caches[position]
                if other is not kv_cache:
                    kv_caches[position] = kv_cache.fork()
                    other.close()
            for one in kv_caches:
                state = state_of(one)
                for capacity in small_capacities(one):
                    num_small += 1
                    assert state.status == ACTIVE and not state.has_beams and len(state.arrivals.points) == 0
                    assert stays_within_blocks(state, capacity, state.history)
            manager.check_invariants()
    assert num_small > 500
