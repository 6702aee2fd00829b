"""A sample of `make digests`, in one process: answers and decisions are the same on any device and when run again."""

from pathlib import Path

import pytest
from every_call import EveryCall, config_of_every_kind

from kv_cache_manager_v2 import HostDevice, KVCacheManager
from kv_cache_manager_v2.replay.rerun import rerun
from kv_cache_manager_v2.testing import SimulatedDevice

from .digests import drive, drive_cuda, journal_of

NUM_CALLS = 2500


@pytest.mark.parametrize("has_state", [False, True])
def test_devices_and_journals_agree(tmp_path: Path, has_state: bool) -> None:
    recorded = drive(HostDevice(), tmp_path, has_state, NUM_CALLS, journal_of(tmp_path, has_state))
    assert drive(SimulatedDevice(3), tmp_path, has_state, NUM_CALLS, None) == recorded
    assert drive_cuda(3, tmp_path, has_state, NUM_CALLS) == recorded
    result = rerun(journal_of(tmp_path, has_state), HostDevice(), check_invariants=False)
    assert result.num_digests >= 2


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_invariants_hold_after_every_call(tmp_path: Path, has_state: bool, seed: int) -> None:
    with KVCacheManager(config_of_every_kind(has_state, str(tmp_path), 60), device=SimulatedDevice(seed)) as manager:
        calls = EveryCall(manager, seed)
        for _ in range(250):
            calls.run(1)
            manager.check_invariants()
        # Most calls do something.
        assert calls.num_refused < 50
        calls.finish()
        manager.check_invariants()
        assert not manager.device.races if isinstance(manager.device, SimulatedDevice) else True
        manager.clear_reusable_blocks()
        for level in range(3):
            assert all(counts.free == counts.total for counts in manager.get_storage_statistics(level))
