"""Says once, rather than for every test of the suite, why the suite did not run on a GPU."""

import pytest

from kv_cache_manager_v2.device.cuda_driver import find_cuda_obstacle


def test_the_suite_ran_on_cuda() -> None:
    obstacle = find_cuda_obstacle()
    if obstacle:
        pytest.skip(f"no CUDA device, so this suite ran on the others: {obstacle}")
