"""`make gpu` itself, where there is no card: every case runs over the fake drivers, and no figure of a fake is ever written down."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kv_cache_manager_v2.device.cuda_driver import find_cuda_obstacle

from .first_minutes import CASES
from .gpu_figures import MEASUREMENTS, Figure
from .gpu_report import ALL_CASES, FAILED, HEADING, PASSED, PERFORMANCE, ROOT, SKIPPED, Outcome, append_figures, names_of_all, run_case
from .gpu_report import find_unused_tiers, outcome_of_case, outcome_of_replay, table_of
from .gpu_setting import Card, Setting, find_card, import_fake

NEEDS_MORE_THAN_A_FAKE = {"rdma", "views_of_torch", "views_of_cupy", "mps"}
HAS_CARD = find_card() is not None
without_a_card = pytest.mark.skipif(HAS_CARD, reason="this machine has a card; test_first_minutes runs there")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [name for name in ALL_CASES if name != "fork"])
def test_every_case_runs_over_the_strict_fake(tmp_path: Path, name: str, seed: int) -> None:
    setting = Setting(tmp_path, seed, num_devices=2)
    found = run_case(name, setting)
    if name in NEEDS_MORE_THAN_A_FAKE:
        assert found["status"] == SKIPPED and len(found["reason"]) > 10
        return
    if import_fake("kernels_on_host").COMPILER is None and found["status"] == SKIPPED:
        pytest.skip(found["reason"])
    assert found["status"] == PASSED
    assert len(found["figures"]) > 0 or name in CASES
    assert name not in MEASUREMENTS or all(figure["value"] > 0 for figure in found["figures"])
    if name not in ("illegal_address", "two_contexts"):  # the one breaks the driver, the other keeps a context
        assert setting.driver.live() == {} and setting.driver.refusals == []


def driver_in_host_memory(folder: Path) -> dict[str, str]:
    """The environment in which cuda-python finds it."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        pytest.skip("cuda-python is not installed")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no C compiler, or no Linux: the driver in host memory cannot be built")
    source = ROOT / "tests" / "unit" / "device" / "libcuda_in_host_memory.c"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(source)], check=True, timeout=60)
    paths = [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(path for path in paths if path)}


def run_the_command(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", str(ROOT / "tests" / "gpu" / "gpu_report.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=560)


@pytest.mark.slow
@without_a_card
def test_the_command_over_the_driver_in_host_memory(tmp_path: Path) -> None:
    before = PERFORMANCE.read_bytes()
    run = run_the_command(driver_in_host_memory(tmp_path))
    assert run.returncode == 0, run.stdout + run.stderr
    lines = run.stdout.splitlines()
    for name in names_of_all():
        assert any(f"  {name}" in line and line.startswith((PASSED, SKIPPED)) for line in lines), name
    for name in ("contract suite", "round_trip", "capture_global", "batches", "copies_beside_one_large", "resume_of_host_pages"):
        assert any(f"  {name}" in line and line.startswith(PASSED) for line in lines), run.stdout
    assert "no card: nothing was written" in run.stdout
    assert PERFORMANCE.read_bytes() == before


@pytest.mark.skipif(find_cuda_obstacle() == "", reason="there is CUDA")
def test_the_command_without_cuda_skips_all_by_name() -> None:
    before = PERFORMANCE.read_bytes()
    run = run_the_command(dict(os.environ))
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    for name in names_of_all():
        assert any(line.startswith(SKIPPED) and f"  {name}: no CUDA: " in line for line in lines), name
    assert PERFORMANCE.read_bytes() == before


@without_a_card
def test_a_case_that_hangs_or_dies_is_a_failure(tmp_path: Path) -> None:
    late = outcome_of_case("round_trip", tmp_path, limit_seconds=0.01)
    assert late.status == FAILED and "not through" in late.reason
    assert outcome_of_case("no_such_case", tmp_path).status == FAILED


def test_the_replay_reaches_every_tier_and_says_so() -> None:
    """On the host device, whose decisions are those of any other."""
    outcome = outcome_of_replay("host")
    assert outcome.status == PASSED, outcome.reason
    tiers = [{"tier": "gpu", "pages_in": 3, "pages_out": 4}, {"tier": "disk", "pages_in": 4, "pages_out": 0}]
    assert find_unused_tiers({"tiers": tiers}) == ["disk"]


def outcomes() -> list[Outcome]:
    figures = [Figure("copy", 95.0, "%", 90.0, True), Figure("map", 3.0, "s", 2.0), Figure("enqueue", 12.5, "ns")]
    return [Outcome("copies", PASSED, "", figures), Outcome("mps", SKIPPED, "no daemon | none")]


def test_the_table_says_what_was_met_and_what_was_skipped() -> None:
    assert table_of(outcomes())[2:] == [
        "| copy | 95 % | >= 90 % | met |",
        "| map | 3 s | <= 2 s | missed |",
        "| enqueue | 12.5 ns |  |  |",
        "| mps | | | skipped: no daemon / none |",
    ]


def test_figures_are_written_with_their_card_only(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("# How fast\n")
    no_card_name: Any = None
    for no_card in (no_card_name, "NVIDIA H200", find_card() if not HAS_CARD else None):
        with pytest.raises(TypeError):
            append_figures(page, no_card, outcomes())
    assert page.read_text() == "# How fast\n"
    for date in ("2026-01-02", "2026-01-03"):
        append_figures(page, Card("GPU of a test", "CUDA 13.0", date), outcomes())
    text = page.read_text()
    assert text.count(HEADING) == 1 and text.count("| map | 3 s |") == 2
    assert text.index("GPU of a test, CUDA 13.0, 2026-01-02") < text.index("2026-01-03")
