"""Every odd file and full disk is one line that names it: no traceback, nothing lost. (Wrong options: `test_wrong_usage.py`.)"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from small_models import config_of

from kv_cache_manager_v2 import HostDevice, KVCacheManager
from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.result_file import write_result

SMALL = ["replay", "--limit", "2", "--quiet"]
GOOD_LINE = '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}\n'


def test_a_trace_without_requests_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("\n\n")
    for command in ("replay", "compare-policies"):
        assert main([command, str(path)]) == 3
        assert f"{path}: there is no request in it" in capsys.readouterr().err
    path.write_text("bad\n")
    assert main(["replay", str(path), "--skip-bad"]) == 3


def test_a_file_that_is_no_state_is_said_to_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state"
    none = "neither a journal nor the JSON of describe()"
    for content, reason in ((b"\xff\xfe\x00", none), (b"{} {}", none), (b"{}", none), (b"", "it is empty")):
        path.write_bytes(content)
        assert main(["inspect", str(path)]) == 3
        assert f"{path}: {reason}" in capsys.readouterr().err


def test_files_that_cannot_be_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = str(tmp_path / "none")
    for arguments in (["inspect", absent], ["rerun", absent], ["inspect", str(tmp_path)], ["rerun", str(tmp_path)]):
        assert main(arguments) == 3
        error = capsys.readouterr().err
        assert error.startswith(f"kvcm: {arguments[1]}: ")
        assert "Errno" not in error


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full, a disk that is always full")
@pytest.mark.parametrize("option", ["--json", "--report"])
def test_a_full_disk_costs_the_file_and_not_the_report(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, option, "/dev/full"]) == 3
    captured = capsys.readouterr()
    assert "prompt tokens" in captured.out
    assert captured.err.startswith("kvcm: /dev/full: No space left on device; ")
    assert "bytes were to be written" in captured.err


@pytest.mark.parametrize("older", [None, "older"])
def test_no_half_of_a_result_is_left(older: str | None, tmp_path: Path) -> None:
    """A file may grow to one block here: a report has more. What was written goes, an older one stays, the numbers are said."""
    path = tmp_path / "report.json"
    if older is not None:
        path.write_text(older)
    program = f"import sys; from kv_cache_manager_v2.replay.cli import main; sys.exit(main({[*SMALL, '--json', str(path)]!r}))"
    command = ["sh", "-c", 'ulimit -f 1; exec "$0" -P -c "$1"', sys.executable, program]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert result.returncode == 3, result
    assert "prompt tokens" in result.stdout
    found = re.fullmatch(rf"kvcm: {path}: File too large; ([\d,]+) bytes were to be written: .*`ulimit -f`\n", result.stderr)
    assert found is not None and int(found[1].replace(",", "")) > 1024, result.stderr
    assert [file.read_text() for file in tmp_path.iterdir()] == ([] if older is None else [older])


def test_a_file_that_may_not_be_written_is_named_alone(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    with pytest.raises(OSError, match="File name too long") as refused:
        write_result(str(path), "text")
    assert refused.value.filename == str(path) and ";" not in str(refused.value.strerror)


@pytest.mark.parametrize(
    ("command", "code", "is_written"),
    [
        (["convert", "{log}", "-"], 0, True), (["nosuch"], 3, False),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)  # fmt: skip
def test_a_closed_error_stream_costs_its_lines_only(command: list[str], code: int, is_written: bool, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(GOOD_LINE)
    words = [sys.executable, "-P", "-m", "kv_cache_manager_v2.replay", *[word.format(log=log) for word in command]]
    done = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *words], stdout=subprocess.PIPE, check=False)
    assert (done.returncode, len(done.stdout) > 0) == (code, is_written)


def test_an_empty_journal_is_said_to_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "calls.journal"
    path.touch()
    assert main(["rerun", str(path)]) == 3
    assert capsys.readouterr().err.startswith(f"kvcm: {path}: it is empty: ")


def test_a_journal_without_a_digest_was_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "journal"
    with KVCacheManager(config_of(), device=HostDevice(), journal=path) as manager:
        manager.probe_reuse(None, [1, 2, 3])
    assert main(["rerun", str(path)]) == 0
    assert "equal at the one point of comparison" in capsys.readouterr().out
    # The last record is the digest: its number and 8 bytes.
    path.write_bytes(path.read_bytes()[:-9])
    assert main(["rerun", str(path)]) == 0
    said = capsys.readouterr().out
    assert "1 calls" in said and "before its first digest" in said


def test_bytes_are_divided_as_far_as_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    """The report says by how much, and not by how much was asked."""
    reports = []
    for shrink in ("max", "100000"):
        assert main([*SMALL, "--shrink", shrink, "--json", "-"]) == 0
        values = json.loads(capsys.readouterr().out)
        reports.append((values["shrink"], values["pool_groups"][0]["slot_bytes"]))
    assert reports[0] == reports[1]


def test_a_run_that_serves_no_request_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """1000 beams write into one block each: more than there is, even for one request alone."""
    assert main([*SMALL, "--beams", "1000", "--memory", "1GiB"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("kvcm: none of 2 requests was served") and "slots asked for" in error
    assert len(error.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full, a disk that is always full")
@pytest.mark.parametrize(
    ("arguments", "output", "unbuffered"),
    [(["--help"], ">&-", ""), (["replay", "--help"], "> /dev/full", "1"), (["--version"], "> /dev/full", "")],
)
def test_an_output_that_takes_nothing_is_an_error(arguments: list[str], output: str, unbuffered: str) -> None:
    """Where argparse writes. (Commands, also at once: `test_command_walks.py`.)"""
    program = f"import sys; from kv_cache_manager_v2.replay.cli import main; sys.exit(main({arguments!r}))"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = ["sh", "-c", f'"$0" -P -c "$1" {output}', sys.executable, program]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 3, result
    assert result.stderr.startswith("kvcm: ") and len(result.stderr.splitlines()) == 1
