"""The simulation's histories on a `CudaDevice` over the strict fake driver: the same decisions, every byte right, no call refused.

The fake engine's kernels are compiled for the processor and run when the fake's streams reach them. Scenarios that plan failures of
the simulated device, or whose memory is the engine's, are left out.
"""

from pathlib import Path

import pytest
from every_call import EveryCall, config_of_every_kind

from kv_cache_manager_v2 import KVCacheManager
from kv_cache_manager_v2.base.errors import CudaError, KVCacheManagerError
from kv_cache_manager_v2.testing.simulation.history import run_history
from kv_cache_manager_v2.testing.simulation.scenario import Scenario
from kv_cache_manager_v2.testing.simulation.simulated_run import SimulatedRun

from .cuda_over_fake import import_fake, make_cuda_device, require_clean

NUM_ACTIONS = 200
SEEDS = [seed for seed in range(60) if (world := Scenario(seed, 1)).fault_share == 0.0 and not world.config.is_external][:12]

pytestmark = pytest.mark.skipif(
    import_fake("kernels_on_host").COMPILER is None, reason="no C++ compiler to run the CUDA source on the processor"
)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_history_makes_the_same_decisions(seed: int) -> None:
    expected = run_history(Scenario(seed, NUM_ACTIONS))
    assert expected.error is None
    device, driver = make_cuda_device(seed)
    history = run_history(Scenario(seed, NUM_ACTIONS), device=device)
    if history.error is not None:
        raise AssertionError(f"seed {seed}, at action {history.position}, {history.action}") from history.error
    assert history.digest == expected.digest
    assert "cuLaunchKernel" in driver.calls
    require_clean(driver)


def test_the_seeds_reach_all_tiers_and_paces() -> None:
    configs = [Scenario(seed, 1).config for seed in SEEDS]
    assert {tier.tier.name for config in configs for tier in config.cache_tiers} == {"GPU_MEM", "HOST_MEM", "DISK"}
    assert {make_cuda_device(seed)[1].eager for seed in SEEDS} == {True, False, None}


def test_a_planned_failure_needs_the_simulated_device() -> None:
    seed = next(seed for seed in range(60) if Scenario(seed, 1).fault_share > 0.0)
    device, driver = make_cuda_device(0)
    with pytest.raises(ValueError, match="fail"):
        SimulatedRun(Scenario(seed, 1), device)
    device.close()
    require_clean(driver)


@pytest.mark.parametrize("seed", range(4))
def test_a_fault_of_the_gpu_is_told_and_nothing_hangs(tmp_path: Path, seed: int) -> None:
    """An illegal address, in another kernel of the process as it may be: every call says so from then on."""
    device, driver = make_cuda_device(seed)
    manager = KVCacheManager(config_of_every_kind(False, str(tmp_path)), device=device)
    calls = EveryCall(manager, seed)
    calls.run(600)
    driver.break_context()
    with pytest.raises(KVCacheManagerError):
        calls.run(600)
    for stream in [device.default_stream(), *sorted(driver.streams)]:
        with pytest.raises(CudaError, match="700"):
            device.synchronize_stream(stream)
    driver.heal()  # only so that this test leaves nothing behind
    try:
        calls.finish()
    except KVCacheManagerError as error:
        assert "700" in str(error)
    manager.shutdown()
    device.close()
    assert driver.live() == {}
