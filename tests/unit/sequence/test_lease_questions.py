"""Leases: which are open, and whether a block that was private when it was leased lies below a root by now."""

from small_models import manager_of

from kv_cache_manager_v2 import ReuseScope


def test_blocks_of_leases_are_below_the_root_once_they_are_published() -> None:
    """Three blocks in one scope, the last of which is leased, and the two before it kept with it; another scope's root has none below."""
    with manager_of() as manager:
        leases, tree = manager._shared.claims.leases, manager._shared.tree
        other = manager.create_kv_cache(ReuseScope(salt=7))
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(12)
            root, other_root = tree.find_root(ReuseScope()), tree.find_root(ReuseScope(salt=7))
            assert root is not None and other_root is not None and len(leases) == 0
            lease = kv_cache.reserve_transfer(2, 3)
            assert [leases.is_open(number) for number in range(2)] == [True, False] and len(leases) == 1
            state = leases.find(0)
            assert state is not None and leases.open_leases() == [state] and leases.find(1) is None
            assert [len(slots) for slots in state.slots] == [1] and [len(pages) for pages in state.pages] == [3]
            assert not leases.has_block_below(root)
            kv_cache.commit(list(range(3)))
            assert not leases.has_block_below(root), "no block is full yet"
            kv_cache.commit(list(range(3, 12)))
            assert leases.has_block_below(root) and not leases.has_block_below(other_root)
            second = kv_cache.reserve_transfer(0, 1)
            assert [leases.is_open(number) for number in range(3)] == [True, True, False]
            lease.settle()
            assert [leases.is_open(number) for number in range(2)] == [False, True] and leases.find(0) is None
            assert not leases.has_block_below(root), "a block that was published before is not pinned for the lease"
            second.settle()
        other.close()
        assert len(leases) == 0
        manager.check_invariants()
