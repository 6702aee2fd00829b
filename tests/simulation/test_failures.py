"""What the simulation does after a failure of the device: losses are known before the next action."""

from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config

from kv_cache_manager_v2.testing import SimulatedDevice
from kv_cache_manager_v2.testing.simulation.failures import PlannedFault, settle_failures


def count_pages(bench: Bench) -> int:
    """Cached pages on both levels; no sequence is open, so all of them are droppable."""
    return sum(counts.evictable for level in (0, 1) for counts in bench.manager.get_storage_statistics(level))


def test_pages_that_a_disk_has_lost_are_dropped_where_no_sequence_is_open() -> None:
    """Otherwise a later action drops them, for no reason that the reference model knows."""
    device = SimulatedDevice(3)
    with Bench(tiered_config(4, [("disk", 12)]), device) as bench:
        prefixes = [[100 * name + token for token in range(4 * TOKENS_PER_BLOCK)] for name in (1, 2)]
        for prefix in prefixes:
            with bench.manager.create_kv_cache(input_tokens=prefix) as sequence:
                assert sequence.resume() and sequence.resize(len(prefix))
                sequence.commit(prefix)
        device.drain()
        num_pages = count_pages(bench)  # of the first on the disk, of the second on level 0
        device.faults.fail("disk_read", 1, PlannedFault("unreadable"))
        assert bench.manager.prefetch(prefixes[0]).num_accepted == len(prefixes[0])
        assert count_pages(bench) == num_pages

        assert settle_failures(device, bench.manager)

        assert device.faults.num_fired == 1
        assert count_pages(bench) < num_pages
        bench.manager.check_invariants()
