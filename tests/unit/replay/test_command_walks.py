"""Every command of `kvcm`, walked: outputs that refuse, closed pipes, narrow encodings, pipes as inputs, huge numbers.

Each walk begins with a call of every command that works; what it changes must be refused by name, with a documented exit code.
"""

import argparse
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from durable_models import Process, durable_config
from unit.models.published_models import CATALOGUE

from kv_cache_manager_v2 import GpuCacheTierConfig, HostDevice, KVCacheManager, config_from_model
from kv_cache_manager_v2.replay.cli import COMMANDS, main
from kv_cache_manager_v2.replay.compare_command import add_compare_options
from kv_cache_manager_v2.replay.convert_command import add_convert_options
from kv_cache_manager_v2.replay.exit_codes import EXIT_BAD_INPUT, EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE
from kv_cache_manager_v2.replay.inspect_command import add_inspect_options
from kv_cache_manager_v2.replay.plan_command import add_plan_options
from kv_cache_manager_v2.replay.replay_command import add_replay_options

LINE = '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}\n'
OPTIONS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "replay": add_replay_options, "plan": add_plan_options, "inspect": add_inspect_options, "compare-policies": add_compare_options,
    "convert": add_convert_options,
}  # fmt: skip
HUGE = ("9" * 18, str(2**40 + 1))
"""The longest that is read, and one more than the manager takes of most things."""
NEEDS_FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full, a disk that is always full")
SMALL_OPTIONS = {"--report": ["--report-sizes", "none"], "--workload-block": ["--workload", "chat"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace, a journal, a state dump and a durable level."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "t.jsonl").write_text(LINE * 3)
    config = config_from_model({"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 8}, [GpuCacheTierConfig(1 << 20)], 4)
    with KVCacheManager(config, device=HostDevice(), journal=folder / "calls.journal") as manager:
        with manager.create_kv_cache(input_tokens=[1, 2]):
            pass
        (folder / "state.json").write_text(json.dumps(manager.describe()))
    (folder / "level").mkdir()
    process = Process(durable_config(str(folder / "level")))
    process.run(list(range(12)))
    process.end()
    return folder


def calls_of(folder: Path) -> dict[str, list[str]]:
    """A call of every command that works and writes to the output."""
    trace = str(folder / "t.jsonl")
    calls = {
        "replay": ["replay", trace, "--quiet"], "convert": ["convert", trace, "-", "--quiet"],
        "rerun": ["rerun", str(folder / "calls.journal"), "--quiet"], "plan": ["plan", "--gpu-memory", "40g"],
        "inspect": ["inspect", str(folder / "state.json"), "--quiet"],
        "compare-policies": ["compare-policies", trace, "--blocks", "5", "--policies", "lru", "--quiet"],
        "learn": ["learn", trace, "-o", "-", "--quiet"], "cache": ["cache", "ls", str(folder / "level")], "selftest": ["selftest"],
    }  # fmt: skip
    assert set(calls) == set(COMMANDS), "a new command has no call here"
    return calls


# -- the output -------------------------------------------------------------------------------------------------------------


def test_a_closed_pipe_ends_every_command_quietly(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = [*calls_of(folder).values(), ["replay", "--help"], ["cache", "verify", "--quiet", str(folder / "level")]]
    for call in calls:
        for is_direct in (False, True):
            if is_direct and "--help" in call:
                # argparse keeps silent about it.
                continue
            # Written at once, and at the flush.
            reading, writing = os.pipe()
            os.close(reading)
            with redirect_stdout(io.TextIOWrapper(io.BufferedWriter(io.FileIO(writing, "w"), 1 << 16), write_through=is_direct)):
                assert main(call) == EXIT_BROKEN_PIPE, call
            assert capsys.readouterr().err == "", call


def test_a_closed_pipe_is_a_signal_to_the_shell(folder: Path) -> None:
    call = f"{shlex.quote(sys.executable)} -P -m kv_cache_manager_v2.replay plan --gpu-memory 40g | true; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", call], capture_output=True, text=True, timeout=120)
    # Python ignores SIGPIPE, number 13.
    assert (ran.returncode, ran.stderr) == (128 + 13, "")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_names_outside_the_encoding_are_escaped(folder: Path, tmp_path: Path, encoding: str) -> None:
    odd = tmp_path / "t\u00fc\u2603\udcff"
    shutil.copytree(folder, odd)
    for command, call in calls_of(odd).items():
        if command == "selftest":
            continue  # it names no file
        output = io.BytesIO()
        with redirect_stdout(io.TextIOWrapper(output, encoding=encoding)):
            assert main(call) == EXIT_OK, call
            assert output.getvalue() != b"", call


def test_pages_escape_names_that_are_no_text(tmp_path: Path) -> None:
    trace = tmp_path / "t\udcff.jsonl"
    trace.write_text(LINE)
    page = tmp_path / "page.html"
    assert main(["replay", str(trace), "--report", str(page), "--report-sizes", "none", "--quiet"]) == EXIT_OK
    assert "t\\udcff.jsonl" in page.read_text("utf-8")


# -- files that are written -------------------------------------------------------------------------------------------------


def outputs_of(folder: Path) -> list[tuple[list[str], str]]:
    """Each command with each option that writes a file: the call up to the file's name, and the option."""
    calls = calls_of(folder)
    found: list[tuple[list[str], str]] = []
    for command, add_options in OPTIONS.items():
        parser = argparse.ArgumentParser()
        add_options(parser)
        for action in parser._actions:
            if action.metavar == "FILE" and action.option_strings and "tokenizer" not in action.dest:
                option = action.option_strings[0]
                found.append(([*calls[command], *SMALL_OPTIONS.get(option, []), option], option))
    found.append((calls["convert"][:2], "OUT"))
    found.append(([*calls["learn"][:2], "--quiet", "-o"], "--output"))
    assert {option for _call, option in found} == {"--json", "--report", "--save", "OUT", "--output"}
    return found


def test_the_output_as_a_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-` is the output, or refused by name; no file is called so."""
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        for call, option in outputs_of(folder):
            code = main([*call, "-"])
            captured = capsys.readouterr()
            if code == EXIT_USAGE:
                assert option in captured.err and "name a file" in captured.err, captured.err
            else:
                assert code == EXIT_OK and option in ("--json", "OUT", "--output") and len(captured.out) > 0, call
            assert os.listdir(tmp_path) == [], call
    finally:
        os.chdir(before)


@NEEDS_FULL
def test_full_disks_are_named_with_the_way_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for call, _option in outputs_of(folder):
        assert main([*call, "/dev/full"]) == EXIT_BAD_INPUT, call
        error = capsys.readouterr().err
        assert "kvcm: /dev/full: No space left on device; " in error and "name a file elsewhere" in error, (call, error)
    long = folder / "long.jsonl"
    long.write_text(LINE.replace("600", "5120").replace("[0, 1]", str(list(range(10)))) * 20)
    # Lines of 5120 and of 80 ids, over and under what is buffered: the disk is full in the middle.
    for block in ("1", "64"):
        assert main(["convert", str(long), "/dev/full", "--quiet", "--block", block]) == EXIT_BAD_INPUT
        assert capsys.readouterr().err.startswith("kvcm: /dev/full: No space left on device; ")
    for call in calls_of(folder).values():
        for is_direct in (False, True):
            # Written at once, and at the flush.
            with redirect_stdout(io.TextIOWrapper(io.BufferedWriter(io.FileIO("/dev/full", "w")), write_through=is_direct)):
                assert main(call) == EXIT_BAD_INPUT, call
            assert capsys.readouterr().err.splitlines()[0].startswith("kvcm: standard output: No space left on device"), call


def test_an_input_is_never_replaced(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the same name, a link, and a symbolic link."""
    for call, option in outputs_of(folder):
        if call[0] == "plan":
            # Its model may be a file or a folder, and what it saved before: the next test.
            continue
        source = tmp_path / "source"
        shutil.copyfile(call[1], source)
        os.link(source, tmp_path / "link")
        (tmp_path / "symbolic").symlink_to(source)
        before = source.read_bytes()
        for name in ("source", "link", "symbolic"):
            assert main([call[0], str(source), *call[2:], str(tmp_path / name)]) == EXIT_USAGE, (call, option)
            error = capsys.readouterr().err
            assert f"{option} {tmp_path / name}" in error and "input" in error, error
        assert source.read_bytes() == before
        for path in tmp_path.iterdir():
            path.unlink()


def test_a_model_is_replaced_by_a_configuration_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CATALOGUE[0].config))
    before = config.read_bytes()
    for model in (tmp_path, config):
        for option in ("--json", "--save"):
            assert main(["plan", str(model), "--gpu-memory", "40g", option, str(config)]) == EXIT_USAGE
            assert f"{option} {config}: that is the input" in capsys.readouterr().err
    assert config.read_bytes() == before
    saved = tmp_path / "saved.json"
    assert main(["plan", str(tmp_path), "--gpu-memory", "40g", "--save", str(saved)]) == EXIT_OK
    first = saved.read_bytes()
    assert main(["plan", str(saved), "--json", str(saved)]) == EXIT_USAGE
    assert saved.read_bytes() == first
    # The saved one, with more memory.
    assert main(["plan", str(saved), "--gpu-memory", "80g", "--save", str(saved)]) == EXIT_OK
    assert saved.read_bytes() != first


# -- what is read -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.jsonl", "calls.journal", "state.json"])
def test_pipes_as_inputs_are_read_or_refused_by_name(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = (folder / name).read_bytes()
    assert len(data) < 1 << 16, "it must fit in a pipe"
    num_refused = 0
    for call in calls_of(folder).values():
        if str(folder / name) not in call and not (call[0] == "inspect" and name == "calls.journal"):
            continue
        reading, writing = os.pipe()
        os.write(writing, data)
        os.close(writing)
        code = main([call[0], f"/dev/fd/{reading}", *call[2:]])
        os.close(reading)
        error = capsys.readouterr().err
        if code != EXIT_OK:
            num_refused += 1
            assert code == EXIT_BAD_INPUT, call
            assert error.startswith(f"kvcm: /dev/fd/{reading}: ") and "is a pipe" in error and "write it to a file first" in error, error
    assert num_refused == {"t.jsonl": 4, "calls.journal": 1, "state.json": 0}[name]


def test_errors_begin_with_the_name_of_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.jsonl").write_text("")
    for command, call in calls_of(tmp_path).items():
        if command in ("plan", "selftest"):
            continue  # they read no file
        assert main(call) == EXIT_BAD_INPUT, call
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("kvcm: "), line


# -- numbers ----------------------------------------------------------------------------------------------------------------


def test_huge_numbers_are_served_or_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused where the options are read: exit code 2, in words."""
    for command, add_options in OPTIONS.items():
        parser = argparse.ArgumentParser()
        add_options(parser)
        given = calls_of(folder)[command]
        if command == "inspect":
            given = ["inspect", str(folder / "calls.journal")]
        for action in parser._actions:
            if action.type is None or not action.option_strings:
                continue
            option = action.option_strings[0]
            for huge in HUGE:
                code = main([*given, *SMALL_OPTIONS.get(option, []), option, huge])
                captured = capsys.readouterr()
                # The trace's own blocks are shorter, and the journal has fewer calls.
                is_of_input = option in ("--trace-block", "--call") and code == EXIT_BAD_INPUT
                assert code in (EXIT_OK, EXIT_USAGE) or is_of_input, (command, option, captured.err)
                if code == EXIT_USAGE:
                    assert "kvcm" in captured.err, (command, option)


def test_limits_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for call, words in (
        (["replay", "--beams", "65537"], "at most 65536 beams"),
        (["replay", "--speculate", "4097"], "at most 4096 drafts"),
        (["replay", "--memory", "4194304TiB"], "under 4194304TiB"),
        (["replay", "--tiers", "gpu=1g,host=4194304TiB"], "under 4194304TiB"),
        (["plan", "--gpu-memory", "8388607TiB"], "under 4194304TiB"),
    ):
        assert main(call) == EXIT_USAGE
        assert words in capsys.readouterr().err, call


# -- help -------------------------------------------------------------------------------------------------------------------


def test_every_command_says_its_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """1 only where the command ends with it, and what it means there."""
    wrong = {
        "replay": "a wrong byte", "rerun": "went another way", "plan": "does not fit", "cache": "a damaged page",
        "selftest": "a wrong byte",
    }  # fmt: skip
    calls = [[command] for command in COMMANDS] + [["cache", action] for action in ("ls", "verify", "rm")]
    for call in calls:
        assert main([*call, "--help"]) == EXIT_OK
        text = " ".join(capsys.readouterr().out.split())
        codes = text[text.index("exit codes: 0 ") :]
        assert ("; 1 " in codes) == (call[0] in wrong) and wrong.get(call[0], "") in codes, codes
        for code in (EXIT_USAGE, EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE):
            assert f"; {code} " in codes, codes


def test_token_ids_have_a_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "ids.jsonl"
    most = 2**62 - 1
    log.write_text(json.dumps({"prompt_token_ids": [most, -most, 0], "output_tokens": 2}) + "\n")
    assert main(["convert", str(log), "-", "--quiet"]) == EXIT_OK
    for token in (most + 1, -most - 1):
        log.write_text(json.dumps({"prompt_token_ids": [token], "output_tokens": 2}) + "\n")
        assert main(["convert", str(log), "-", "--quiet"]) == EXIT_BAD_INPUT
        assert "from -(2**62 - 1) to 2**62 - 1" in capsys.readouterr().err
