"""Files that hold tokens, keys or values are their user's alone, whatever the umask, and no link or foreign file is taken for one."""

import ast
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from durable_models import PROMPTS, Process, durable_config
from small_models import config_of, run_prompt

import kv_cache_manager_v2
from kv_cache_manager_v2 import HostDevice, KVCacheManager, StorageIOError
from kv_cache_manager_v2.replay.cli import main

PACKAGE = Path(kv_cache_manager_v2.__file__).parent


def serve(process: Process) -> None:
    for prompt in PROMPTS:
        process.run(prompt)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def written_by_all(folder: Path) -> None:
    """Something of each kind that the package writes: see `test_every_place_that_makes_files_is_known`."""
    (folder / "disk").mkdir(mode=0o700)
    (folder / "more").mkdir(mode=0o700)
    serving = Process(durable_config(str(folder / "disk"), more_paths=[str(folder / "more")]))
    serve(serving)
    serving.settle()
    serving.end()
    journal = folder / "journal"
    journal.write_text("of an earlier run")
    for path in (journal, folder / "new journal"):
        with KVCacheManager(config_of(), device=HostDevice(), journal=str(path)) as manager:
            run_prompt(manager, range(20)).close()
            state = json.dumps(manager.describe())
    (folder / "state.json").touch(0o600)
    (folder / "state.json").write_text(state)
    log = folder / "log.jsonl"
    log.write_text('{"tokens": [1, 2, 3, 4], "output_length": 2}\n')
    log.chmod(0o600)
    assert main(["convert", str(log), str(folder / "converted.jsonl.gz")]) == 0


def test_all_that_is_written_is_for_its_user_alone(tmp_path: Path) -> None:
    with umask(0):
        written_by_all(tmp_path)
    places = sorted(tmp_path.rglob("*"))
    names = {place.name for place in places}
    assert {"data-0-0", "lock", "identity.json", "new journal", "converted.jsonl.gz"} <= names
    modes = {str(place.relative_to(tmp_path)): stat.S_IMODE(place.stat().st_mode) for place in places}
    assert modes == {str(place.relative_to(tmp_path)): 0o700 if place.is_dir() else 0o600 for place in places}


MAKERS = {
    # Each of these calls gives mode 600, or 700 to a folder, or makes no file that has a name: the test above has one of each.
    "device/os_files.py": ["os.open", "os.open", "os.makedirs"],
    "device/private_files.py": ["os.open"],
    "device/claimed_file.py": ["os.open"],
    "replay/result_file.py": ["open", "open", "os.open", "write_bytes"],
    "replay/kill_drill.py": ["os.makedirs"],
}
"""Calls that may make a file or a folder, by module. `write_bytes`: to a device."""


def test_every_place_that_makes_files_is_known() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name, shown = ast.unparse(node.func), ast.unparse(node)
            is_open = name == "open" and re.search(r"'[wax]b?t?\+?'", shown) and "devnull" not in shown and "/proc/" not in shown
            is_os_open = name == "os.open" and ("O_CREAT" in shown or "O_TMPFILE" in shown or "flags" in shown)
            if is_open or is_os_open or name in ("os.makedirs", "os.mkdir") or name.endswith((".write_bytes", ".write_text", ".mkdir")):
                called = name if name in ("open", "os.open", "os.makedirs", "os.mkdir") else name.rpartition(".")[2]
                found.setdefault(path.relative_to(PACKAGE).as_posix(), []).append(called)
    assert {name: sorted(calls) for name, calls in found.items()} == {name: sorted(calls) for name, calls in MAKERS.items()}


NAMES = ("lock", "identity.json", "data-0-0", "log-2", "snapshot-2.new")


def links(place: Path, victim: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(victim)


def is_open_to_others(place: Path, victim: Path) -> None:
    place.touch()
    place.chmod(0o666)


def is_a_pipe(place: Path, victim: Path) -> None:
    place.unlink(missing_ok=True)
    os.mkfifo(place, 0o600)


def is_another_users(place: Path, victim: Path) -> None:
    place.touch()
    os.chown(place, os.getuid() + 1, -1)


FAULTS: dict[str, Any] = {"link": links, "mode 666": is_open_to_others, "pipe": is_a_pipe}
if os.geteuid() == 0:
    FAULTS["another user's"] = is_another_users


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", NAMES)
def test_files_that_others_could_have_put_there_are_refused_by_name(tmp_path: Path, name: str, fault: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    folder = tmp_path / "disk"
    folder.mkdir()
    first = Process(durable_config(str(folder)))
    serve(first)
    first.end()
    (level,) = folder.iterdir()
    numbers = [int(place.name.partition("-")[2]) for place in level.glob("log-*")]
    place = level / name.replace("2", str(max(numbers) + 1))
    FAULTS[fault](place, victim)
    # An index that is not compacted at the start warns, and goes on: a snapshot is written later.
    if name == "snapshot-2.new":
        second = Process(durable_config(str(folder)))
        serve(second)
        second.end()
        assert fault != "link" or place.is_symlink() or not place.exists()
    else:
        with pytest.raises(StorageIOError, match=f"{place.name}"):
            Process(durable_config(str(folder)))
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("fault", [*FAULTS][:1] + [*FAULTS][3:])
@pytest.mark.parametrize("read_only", [False, True])
def test_folders_that_others_could_have_put_there_are_refused_by_name(tmp_path: Path, fault: str, read_only: bool) -> None:
    if read_only and fault == "another user's":
        return  # root reads every user's
    for name in ("elsewhere", "disk"):
        (tmp_path / name).mkdir()
    made = Process(durable_config(str(tmp_path / "elsewhere")))
    serve(made)
    made.end()
    (level,) = (tmp_path / "elsewhere").iterdir()
    if fault == "link":
        place = tmp_path / "disk" / level.name
        place.symlink_to(level)
    else:
        place = level.rename(tmp_path / "disk" / level.name)
        os.chown(place, os.getuid() + 1, -1)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(StorageIOError, match=level.name):
        Process(durable_config(str(tmp_path / "disk"), read_only=read_only))
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    made = Process(durable_config(str(tmp_path)))
    serve(made)
    made.end()
    (level,) = tmp_path.iterdir()
    level.chmod(0o777)
    for read_only in (False, True):
        with pytest.raises(StorageIOError, match="mode is 777.*chmod 700"):
            Process(durable_config(str(tmp_path), read_only=read_only))
    level.chmod(0o755)  # a copy for others to read
    for path in level.iterdir():
        path.chmod(0o644)
    reading = Process(durable_config(str(tmp_path), read_only=True))
    assert reading.run(PROMPTS[0]) > 0
    reading.end()
