"""Vector clocks: join is the least upper bound, and inclusion is what it says."""

from random import Random

from kv_cache_manager_v2.testing.happens_before import HOST, VectorClock


def test_join_is_the_least_clock_that_includes_both():
    random = Random(0)
    for _ in range(200):
        a = [random.randrange(4) for _ in range(random.randrange(1, 6))]
        b = [random.randrange(4) for _ in range(random.randrange(1, 6))]
        joined = VectorClock(a[:])
        joined.join(VectorClock(b))
        for component in range(7):
            for tick in range(1, 5):
                either = (component < len(a) and a[component] >= tick) or (component < len(b) and b[component] >= tick)
                assert joined.includes(component, tick) == either


def test_copy_is_independent():
    clock = VectorClock([1, 2])
    copied = clock.copy()
    assert clock.advance(1) == 3
    assert copied.includes(1, 2) and not copied.includes(1, 3)


def test_advance_reaches_new_components():
    clock = VectorClock([0])
    assert clock.advance(3) == 1
    assert clock.includes(3, 1) and not clock.includes(2, 1)
    assert clock.advance(HOST) == 1
