"""The cases of `make gpu` on a card, each in a process of its own; skipped where there is none."""

from pathlib import Path

import pytest

from kv_cache_manager_v2.device.cuda_driver import find_cuda_obstacle

from .first_minutes import CASES
from .gpu_figures import MEASUREMENTS
from .gpu_report import FAILED, SKIPPED, outcome_of_case
from .gpu_setting import is_fake_library

_OBSTACLE = find_cuda_obstacle() or ("the driver is the one in host memory" if is_fake_library() else "")
pytestmark = pytest.mark.skipif(_OBSTACLE != "", reason=f"no CUDA: {_OBSTACLE}")


@pytest.mark.parametrize("name", [*CASES, *MEASUREMENTS])
def test_case(tmp_path: Path, name: str) -> None:
    outcome = outcome_of_case(name, tmp_path)
    if outcome.status == SKIPPED:
        pytest.skip(f"{name}: {outcome.reason}")
    assert outcome.status != FAILED, outcome.reason
