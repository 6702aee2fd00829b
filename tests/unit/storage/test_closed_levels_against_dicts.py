"""Closed levels beside a dict of reasons: disks that fail one after the other, and levels that are only read."""

from contextlib import closing
from random import Random

import pytest
from forwarding_device import ForwardingDevice

from kv_cache_manager_v2 import CacheTier, StorageIOError
from kv_cache_manager_v2.pools.pool_group import PoolGroup
from kv_cache_manager_v2.storage.closed_levels import ClosedLevels

TIERS = (CacheTier.GPU_MEM, CacheTier.HOST_MEM, CacheTier.DISK, CacheTier.DISK, CacheTier.DISK)


class FailingDevice(ForwardingDevice):
    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[int, str] = {}

    def disk_failure(self, address: int) -> StorageIOError | None:
        return StorageIOError(self.failures[address]) if address in self.failures else None


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("num_pool_groups", [1, 2, 3])
def test_against_a_dict(seed: int, num_pool_groups: int, tmp_path) -> None:
    """The first failure of a level is its reason for good. Memory is asked for no failure: it has none."""
    choices = Random(seed)
    with closing(FailingDevice()) as device:
        pool_groups = [
            PoolGroup(device, tier, (4096,) * (group + 1), 1, 0, str(tmp_path) if tier == CacheTier.DISK else None)
            for tier in TIERS
            for group in range(num_pool_groups)
        ]
        closed = ClosedLevels(device, pool_groups, num_pool_groups)
        assert (closed.has_disks, ClosedLevels(device, pool_groups[: 2 * num_pool_groups], num_pool_groups).has_disks) == (True, False)
        reasons: dict[int, str] = {}
        for step in range(12):
            kind = choices.random()
            if kind < 0.5:
                index = choices.randrange(len(pool_groups))
                device.failures.setdefault(int(choices.choice(pool_groups[index].base_addresses)), f"failure {step}")
            elif kind < 0.6:
                level = choices.randrange(1, len(TIERS))
                closed.close_for_writing(level)
                reasons[level] = "it is read-only"
            else:
                closed.look()
                for index, group in enumerate(pool_groups):
                    failures = [device.failures[address] for address in group.base_addresses if address in device.failures]
                    if failures and group.tier == CacheTier.DISK:
                        reasons.setdefault(index // num_pool_groups, str(StorageIOError(failures[0])))
            assert closed.first == min(reasons, default=len(TIERS))
            for level in range(len(TIERS)):
                assert closed.is_closed(level) == (level in reasons)
                assert closed.reason(level) == reasons.get(level)
                assert closed.has_failed(level) == ("failure" in reasons.get(level, ""))
        for group in pool_groups:
            group.close()
