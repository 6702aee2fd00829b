"""`kvcm replay --kill-at N`: a process is killed while it serves, and the next one reads what it has left; few hits are said, and fail."""

import json
from pathlib import Path

import pytest
from unit.replay.serving import BYTES_PER_BLOCK, FULL, TOKENS_PER_BLOCK, WINDOWED, request_of

from kv_cache_manager_v2.device.os_files import OsFiles
from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.kill_drill import KillDrillResult, run_kill_drill
from kv_cache_manager_v2.replay.plan import ReplayPlan
from kv_cache_manager_v2.replay.presets import ModelPreset
from kv_cache_manager_v2.replay.replayer import PlanError
from kv_cache_manager_v2.replay.serving_limits import ServingLimits
from kv_cache_manager_v2.replay.tier_option import LowerTier
from kv_cache_manager_v2.replay.workload import ListedWorkload

NUM_TEXTS = 6
SHARED = 16
OWN = 24


def plan_of(
    model: ModelPreset = FULL, is_durable: bool = True, folder: str | None = None, more_folders: tuple[str, ...] = ()
) -> ReplayPlan:
    """Six texts under one system prompt, and each of them once more."""
    requests = [request_of(number, [(1, SHARED), (100 + number % NUM_TEXTS, OWN)], 5) for number in range(2 * NUM_TEXTS)]
    return ReplayPlan(
        workload=ListedWorkload("texts", requests),
        model=model,
        tokens_per_block=TOKENS_PER_BLOCK,
        memory_bytes=30 * BYTES_PER_BLOCK,
        lower_tiers=(LowerTier("disk", 200 * BYTES_PER_BLOCK, folder, is_durable, more_folders),),
        limits=ServingLimits(2, 48, 24),
        verify=True,
        device="host",
    )


@pytest.mark.parametrize("kill_at", [1, 4, NUM_TEXTS])
@pytest.mark.parametrize("model", [FULL, WINDOWED], ids=["full", "windowed"])
def test_after_a_kill_every_byte_is_right(model: ModelPreset, kill_at: int, tmp_path: Path) -> None:
    result = run_kill_drill(plan_of(model, folder=str(tmp_path)), kill_at)
    assert (result.requests, result.prompt_tokens) == (2 * NUM_TEXTS - kill_at, (2 * NUM_TEXTS - kill_at) * (SHARED + OWN))
    # At the least what the first requests had in common with the later ones, whole blocks of which are there.
    assert result.hit_tokens_unkilled >= (2 * NUM_TEXTS - kill_at) * SHARED
    # How much was on its way to the disk is a matter of milliseconds here; with more requests it is little (`make drill-disk`).
    assert result.mismatches == 0
    assert result.hit_tokens >= (2 * NUM_TEXTS - kill_at - 1) * SHARED
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_a_level_on_several_paths_is_killed_as_a_whole(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    result = run_kill_drill(plan_of(folder=str(folders[0]), more_folders=(str(folders[1]),)), 4)
    assert result.mismatches == 0 and result.hit_tokens >= (2 * NUM_TEXTS - 4 - 1) * SHARED
    assert [list(folder.iterdir()) for folder in folders] == [[], []]
    with pytest.raises(PlanError, match="no folder .*nowhere"):
        run_kill_drill(plan_of(folder=str(folders[0]), more_folders=(str(tmp_path / "nowhere"),)), 4)


def test_without_a_durable_level_it_fails() -> None:
    """All that comes after the kill was served before it."""
    result = run_kill_drill(plan_of(is_durable=False), NUM_TEXTS)
    assert result.hit_tokens_unkilled >= NUM_TEXTS * (SHARED + OWN - TOKENS_PER_BLOCK)
    assert not result.has_passed and result.share < 0.5


def test_few_hits_and_wrong_bytes_fail() -> None:
    good = KillDrillResult(10, 500, 9000, 1000, 800, True, 0)
    assert good.has_passed and json.loads(good.to_json())["share"] == 0.8 and "80.0%" in good.to_text()
    assert not KillDrillResult(10, 500, 9000, 1000, 799, True, 0).has_passed
    assert not KillDrillResult(10, 500, 9000, 1000, 1000, True, 1).has_passed
    assert KillDrillResult(10, 500, 9000, 0, 0, True, 0).has_passed


def test_plans_that_cannot_be_played_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="none would come after"):
        run_kill_drill(plan_of(), 2 * NUM_TEXTS)
    with pytest.raises(PlanError, match="no folder"):
        run_kill_drill(plan_of(folder=str(tmp_path / "nowhere")), 3)


def test_a_second_replay_hits_what_the_first_has_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay", "--durable", "--tiers", f"gpu=256MiB,disk=512MiB:{tmp_path}", "--limit", "3", "--shrink", "max", "--json", "-"]
    hits = []
    for _run in range(2):
        assert main(arguments) == 0
        hits.append(json.loads(capsys.readouterr().out)["hit_tokens"])
    assert hits[1] > hits[0]


def test_a_second_replay_finds_what_lies_on_several_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        folder.mkdir()
    tiers = "gpu=256MiB,disk=512MiB:" + ":".join(str(folder) for folder in folders)
    arguments = ["replay", "--durable", "--tiers", tiers, "--limit", "3", "--shrink", "max", "--json", "-"]
    hits = []
    for _run in range(2):
        assert main(arguments) == 0
        hits.append(json.loads(capsys.readouterr().out)["hit_tokens"])
    assert hits[1] > hits[0]
    assert [len(list(folder.glob("kvcm-*/data-*"))) for folder in folders] == [len(list(folders[0].glob("kvcm-*/data-*")))] * 3
    assert main(["cache", "ls", str(folders[0])]) == 0
    assert "on 3 paths" in capsys.readouterr().out
    # One path of them alone is another level: refused, with all paths in order.
    assert main([*arguments[:3], f"gpu=256MiB,disk=512MiB:{folders[0]}", *arguments[4:]]) == 2
    assert f"made with 3 paths, {folders[0]}, {folders[1]}, {folders[2]}" in capsys.readouterr().err


def test_a_folder_in_use_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second replay on the folder, and the command that would remove it, name the process that has it."""
    arguments = ["--durable", "--tiers", f"gpu=2MiB,disk=32MiB:{tmp_path}", "--limit", "2", "--shrink", "max", "--device", "host"]
    assert main(["replay", "--quiet", *arguments]) == 0
    (folder,) = tmp_path.glob("kvcm-*")
    lock = OsFiles().lock(str(folder / "lock"))
    (folder / "lock").write_text("4711")
    capsys.readouterr()
    assert main(["replay", "--quiet", *arguments]) == 2
    assert main(["cache", "rm", "--yes", str(tmp_path)]) == 3
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "in use by process 4711" in line] == said and len(said) == 2
    OsFiles().close_file(lock)


def test_a_replay_goes_on_where_the_disk_has_other_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As after a kill between a write and its record: the pages are lost when they are read, and their tokens are computed again."""
    arguments = [
        "replay", "--quiet", "--workload", "chat", "--limit", "6", "--durable", "--verify", "--device", "host", "--tiers",
        f"gpu=2MiB,disk=32MiB:{tmp_path}",
    ]  # fmt: skip
    assert main(arguments) == 0
    for data in tmp_path.glob("kvcm-*/data-*"):
        data.write_bytes(bytes(data.stat().st_size))
    capsys.readouterr()
    assert main(arguments) == 0
    assert "Traceback" not in capsys.readouterr().err
