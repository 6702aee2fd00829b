"""Leases: which are open, and what each holds."""

from small_models import manager_of


def test_leases_are_found_by_number_while_they_are_open() -> None:
    with manager_of() as manager:
        leases = manager._shared.claims.leases
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(12)
            assert len(leases) == 0
            lease = kv_cache.reserve_transfer(2, 3)
            assert [leases.is_open(number) for number in range(2)] == [True, False] and len(leases) == 1
            state = leases.find(0)
            assert state is not None and leases.open_leases() == [state] and leases.find(1) is None
            # The third of three blocks is leased, and the two before it are kept with it.
            assert [len(slots) for slots in state.slots] == [1] and [len(pages) for pages in state.pages] == [3]
            kv_cache.commit(list(range(12)))
            second = kv_cache.reserve_transfer(0, 1)
            assert [leases.is_open(number) for number in range(3)] == [True, True, False]
            lease.settle()
            assert [leases.is_open(number) for number in range(2)] == [False, True] and leases.find(0) is None
            second.settle()
        assert len(leases) == 0
        manager.check_invariants()
