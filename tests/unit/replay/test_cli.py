"""The command line: exit codes, bad lines, JSON, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from unit.replay.serving import SilentConsole, request_of

from kv_cache_manager_v2.replay.cli import main, replay_main
from kv_cache_manager_v2.replay.plan import ReplayPlan
from kv_cache_manager_v2.replay.presets import PRESETS
from kv_cache_manager_v2.replay.replay_command import exit_code
from kv_cache_manager_v2.replay.replayer import run_replay
from kv_cache_manager_v2.replay.tally import Tally
from kv_cache_manager_v2.replay.workload import ListedWorkload

GOOD = b'{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}'
BAD = b'{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0]}'


def write_trace(folder: Path, *lines: bytes) -> str:
    path = folder / "trace.jsonl"
    path.write_bytes(b"\n".join(lines))
    return str(path)


def test_a_made_workload_is_served_and_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    arguments = ["replay", "--limit", "4", "--verify", "--device", "host", "--model", "gpt-oss-20b"]
    assert main([*arguments, "--json", str(report)]) == 0
    values = json.loads(report.read_text())
    assert values["requests"] == 4
    assert values["mismatches"] == 0
    assert values["verified"] is True
    assert "tokens read back, all right" in capsys.readouterr().out


def test_a_trace_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", write_trace(tmp_path, GOOD, GOOD), "--max-running", "1", "--json", "-"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["requests"] == 2
    assert values["hit_tokens"] == 599


def test_bad_lines_are_reported_and_nothing_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path, GOOD, BAD, GOOD)
    assert main(["replay", path]) == 3
    captured = capsys.readouterr()
    assert f"{path}:2: " in captured.err
    assert captured.out == ""


def test_bad_lines_can_be_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path, GOOD, BAD, GOOD)
    assert main(["replay", path, "--skip-bad", "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert f"{path}:2: " in captured.err
    values = json.loads(captured.out)
    assert (values["requests"], values["skipped_lines"]) == (2, 1)


def test_the_module_without_a_command_replays(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay_main(["--limit", "2", "--json", "-", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 2


@pytest.mark.parametrize("command", ["replay", "rerun", "plan", "inspect", "compare-policies", "convert", "selftest"])
def test_every_command_is_one_of_the_module(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Else it would be taken for the name of a trace."""
    for call in ([], ["--help"]):
        assert main(call) == 0
        assert f"\n    {command}" in capsys.readouterr().out
    assert replay_main([command, "--help"]) == 0
    assert f"usage: kvcm {command} " in capsys.readouterr().out


class InterruptingConsole(SilentConsole):
    """Presses Ctrl-C at the first update."""

    def update(self, tally: Tally, used_shares: list[float]) -> None:
        super().update(tally, used_shares)
        if self.calls.count("update") == 1:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_ends_with_the_report_so_far() -> None:
    # Far more than could be done by the second update, which comes 0.2 s after the first.
    requests = [request_of(id, [(id, 100)], 1_000) for id in range(10_000)]
    plan = ReplayPlan(workload=ListedWorkload("long", requests), model=PRESETS["llama-3-8b"])
    before = signal.getsignal(signal.SIGINT)
    report = run_replay(plan, InterruptingConsole())
    assert report.interrupted
    assert 0 <= report.requests < 10_000
    assert report.steps > 0
    assert exit_code(report) == 130
    assert signal.getsignal(signal.SIGINT) is before


# -- the first lines ----------------------------------------------------------------------------------------------------------


def test_the_package_is_the_same_program() -> None:
    ran = [
        subprocess.run([sys.executable, "-P", "-m", module, "plan", "--gpu-memory", "1g"], capture_output=True, text=True, timeout=120)
        for module in ("kv_cache_manager_v2", "kv_cache_manager_v2.replay")
    ]
    assert ran[0].returncode == 0 and ran[0].stdout == ran[1].stdout != ""


def test_selftest_has_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["version", "packages", "device", "replay", "verdict"]
    assert "8 requests" in lines[3] and "read back, all right" in lines[3] and "all is well" in lines[4]
