"""`kvcm cache`: what durable levels have, whether it is whole, and its removal; bad input is one line and exit code 3."""

import errno
import io
import json
import os
import shutil
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from durable_models import SLOT_BYTES, TOKENS_PER_BLOCK, Process, durable_config
from lossy_files import LossyDisk, LossyFiles

from kv_cache_manager_v2 import ModelId, ReuseScope, StorageIOError
from kv_cache_manager_v2.device.os_files import OsFiles
from kv_cache_manager_v2.device.read_only_files import ReadOnlyFiles
from kv_cache_manager_v2.durable.folder_removal import remove_folder
from kv_cache_manager_v2.replay.folder_contents import FolderContents, find_folders, remove_scopes
from kv_cache_manager_v2.replay.bad_input import BadInputError
from kv_cache_manager_v2.replay.cache_command import run_cache_command
from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.stored_index import list_stored_pages

TEXT = list(range(100, 112))
TENANTS = (None, "one", 2)


class KilledFiles(LossyFiles):
    """The system's files, of a process that is killed before it removes another one."""

    def __init__(self, num_removed: int) -> None:
        super().__init__(LossyDisk())
        self.system = OsFiles()
        self.num_left = num_removed

    def lock(self, path: str) -> int:
        return self.system.lock(path)

    def names(self, path: str) -> list[str]:
        return self.system.names(path)

    def open_named(self, path: str, is_direct: bool) -> int:
        return self.system.open_named(path, is_direct)

    def length(self, file: int) -> int:
        return self.system.length(file)

    def transfer(self, file: int, is_write: bool, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> int:
        return self.system.transfer(file, is_write, addresses, sizes, offset)

    def close_file(self, file: int) -> None:
        self.system.close_file(file)

    def remove(self, path: str) -> None:
        if self.num_left == 0:
            raise OSError("killed")
        self.num_left -= 1
        self.system.remove(path)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fill(folder: Path, **settings: Any) -> str:
    """Each tenant has a text of three blocks; returns the sub-folder."""
    process = Process(durable_config(str(folder), **settings))
    for salt in TENANTS:
        assert process.run(TEXT, ReuseScope(salt=salt)) == 0
    process.end()
    return find_folders(ReadOnlyFiles(), str(folder))[0]


def found_by(folder: Path) -> list[int]:
    process = Process(durable_config(str(folder)))
    found = [process.manager.probe_reuse(ReuseScope(salt=salt), TEXT) for salt in TENANTS]
    process.end()
    return found


def files_of(folder: str) -> dict[str, bytes]:
    return {name: (Path(folder) / name).read_bytes() for name in os.listdir(folder)}


def test_it_lists_scopes_with_their_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fill(tmp_path, model_id=ModelId("a model", "r7", details={"rope": "yarn"}, heads=(0, 4)))
    before = files_of(path)
    assert main(["cache", "ls", str(tmp_path), "--json", "--salts"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["identity"]["revision"] == "r7" and listed["in_use_by"] is None
    assert listed["file_bytes"] == sum(len(data) for data in before.values())
    num_blocks = len(TEXT) // TOKENS_PER_BLOCK
    for salt, scope in zip(TENANTS, listed["scopes"], strict=True):
        wanted = {"salt": salt, "blocks": num_blocks, "tokens": len(TEXT), "pages": num_blocks, "bytes": num_blocks * SLOT_BYTES}
        assert scope == wanted
    for more in ([], ["--json"]):
        assert main(["cache", "ls", path, *more]) == 0
        hidden = capsys.readouterr().out
        assert "one" not in hidden.replace("None", "") and "hidden 1" in hidden and "hidden 2" in hidden
    assert main(["cache", "ls", path, "--salts"]) == 0
    text = capsys.readouterr().out
    for words in ("a model, revision r7", "rope yarn", "heads 0 to 4", "without salt", "salt 'one'", "salt 2"):
        assert words in text
    assert files_of(path) == before


def test_digests_are_tokens_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = Process(durable_config(str(tmp_path)))
    tokens: list[int | bytes] = [b"an image", 7, 8, 9]
    with process.manager.create_kv_cache(None, tokens) as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(4)
        kv_cache.commit(tokens)
    process.end()
    assert main(["cache", "ls", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["scopes"][0]["tokens"] == 4


def test_it_finds_each_damaged_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fill(tmp_path)
    assert main(["cache", "verify", str(tmp_path)]) == 0
    assert f"{path}: 9 pages of" in capsys.readouterr().out
    slots = sorted(slot for _group, slot in list_stored_pages(FolderContents(ReadOnlyFiles(), path).state))
    data = Path(path) / "data-0-0"
    content = bytearray(data.read_bytes())
    content[slots[1] * SLOT_BYTES] ^= 1
    content[slots[4] * SLOT_BYTES + 5] ^= 128
    data.write_bytes(content)
    assert main(["cache", "verify", path, "--json", "--quiet"]) == 1
    (result,) = json.loads(capsys.readouterr().out)
    assert [fault.partition(":")[0] for fault in result["faults"]] == [f"pool group 0, slot {slots[number]}" for number in (1, 4)]
    data.write_bytes(content[: slots[-1] * SLOT_BYTES])
    assert main(["cache", "verify", path]) == 1
    assert "data-0-0 ends before its slot" in capsys.readouterr().out
    data.unlink()
    assert main(["cache", "verify", path, "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)[0]["faults"]) == 9


def test_it_removes_scopes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    assert main(["cache", "rm", str(tmp_path), "--salt", "one", "--salt", "three", "--yes"]) == 3
    assert "no scope has the salt 'three'" in capsys.readouterr().err
    assert main(["cache", "rm", str(tmp_path), "--salt", "2", "--yes"]) == 0
    assert found_by(tmp_path) == [len(TEXT), 0, 0]
    assert main(["cache", "rm", str(tmp_path), "--salt", "one", "--yes"]) == 3
    assert "no scope there has the salt 'one'" in capsys.readouterr().err


def test_it_removes_folders_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fill(tmp_path)
    other = tmp_path / "mine"
    other.write_text("keep")
    assert main(["cache", "rm", str(tmp_path), "--yes"]) == 0
    assert os.listdir(tmp_path) == ["mine"]
    assert main(["cache", "rm", str(tmp_path), "--yes"]) == 3
    assert "no kvcm-... folder" in capsys.readouterr().err
    fill(tmp_path)
    (Path(path) / "notes").write_text("keep")
    before = files_of(path)
    assert main(["cache", "rm", str(tmp_path), "--yes"]) == 3
    assert files_of(path) == before
    error = capsys.readouterr().err
    assert f"{path}: it has notes, which no manager has made" in error and "remove the folder by hand" in error


def options_of(folder: Path, **changes: Any) -> Namespace:
    given = {"cache_action": "rm", "folder": str(folder), "more_paths": [], "salt": [], "incomplete": False, "yes": False}
    return Namespace(**{**given, **changes})


def test_it_asks_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fill(tmp_path)
    with pytest.raises(BadInputError, match="say --yes"):
        run_cache_command(options_of(tmp_path), io.StringIO("y\n"))
    for answer in ("\n", "", "n\n", "maybe\n"):
        assert run_cache_command(options_of(tmp_path), Terminal(answer)) == 0
        assert run_cache_command(options_of(tmp_path, salt=["one"]), Terminal(answer)) == 0
        assert found_by(tmp_path) == [len(TEXT)] * 3
    capsys.readouterr()
    assert run_cache_command(options_of(tmp_path, salt=["one"]), Terminal("Yes\n")) == 0
    assert f"{path}: salt 'one', 3 blocks\nremove this for good? [y/N]" in capsys.readouterr().out
    assert found_by(tmp_path) == [len(TEXT), 0, len(TEXT)]
    assert run_cache_command(options_of(tmp_path), Terminal("y\n")) == 0
    assert os.listdir(tmp_path) == []


def test_folders_in_use_are_listed_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fill(tmp_path)
    process = Process(durable_config(str(tmp_path)))
    process.settle()
    before = files_of(path)
    assert main(["cache", "ls", str(tmp_path)]) == 0
    assert f"in use by process {os.getpid()}" in capsys.readouterr().out
    for arguments in (["verify"], ["rm", "--yes"], ["rm", "--salt", "one", "--yes"]):
        assert main(["cache", *arguments, str(tmp_path)]) == 3
        error = capsys.readouterr().err
        assert f"process {os.getpid()}" in error and error.count("\n") == 1 and error.count(path) == 1
    assert files_of(path) == before
    process.end()
    assert found_by(tmp_path) == [len(TEXT)] * 3


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b"[]", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b'{"format": 99}', "format 99"),
        (b'{"format": 2, "identity": {}}', "no layout"),
        (b'{"format": 2, "identity": {}, "layout": {"slots": [[0]]}}', "how large"),
        (b'{"format": 2, "identity": {}, "layout": {"slots": 5}}', "how large"),
        (None, "no identity.json"),
    ],
)
def test_foreign_folders_are_named(tmp_path: Path, content: bytes | None, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside a good one: that one is listed. The foreign one is removed only where the caller says so."""
    good = fill(tmp_path)
    foreign = tmp_path / "kvcm-0000000000000001"
    shutil.copytree(good, foreign)
    if content is None:
        (foreign / "identity.json").unlink()
    else:
        (foreign / "identity.json").write_bytes(content)
    assert main(["cache", "ls", str(tmp_path)]) == 3
    captured = capsys.readouterr()
    assert reason in captured.err and captured.err.count("\n") == 1 and good in captured.out
    for arguments in (["verify"], ["rm", "--salt", "one", "--yes"]):
        assert main(["cache", *arguments, str(tmp_path)]) == 3
        assert reason in capsys.readouterr().err
    with pytest.raises(BadInputError):
        run_cache_command(options_of(tmp_path), io.StringIO())
    remove_folder(OsFiles(), str(foreign))
    assert os.listdir(tmp_path) == [os.path.basename(good)]


def test_copies_under_another_name_keep_their_scopes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A scope is removed by a record, and the managers find it only where the folder has the identity's name."""
    good = fill(tmp_path)
    os.rename(good, tmp_path / "kvcm-0000000000000001")
    assert main(["cache", "rm", str(tmp_path), "--salt", "one", "--yes"]) == 3
    assert os.path.basename(good) in capsys.readouterr().err
    assert main(["cache", "verify", str(tmp_path)]) == 0


def test_paths_that_are_none_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for path, reason in ((tmp_path / "nowhere", "no such folder"), (tmp_path / "file", "that is a file"), (tmp_path, "no kvcm-")):
        assert main(["cache", "ls", str(path)]) == 3
        error = capsys.readouterr().err
        assert reason in error and error.count("\n") == 1


def test_interrupted_removals_never_bring_back_what_was_cleared(tmp_path: Path) -> None:
    """Killed after any number of files: what is found again is no more than before."""
    fill(tmp_path)
    process = Process(durable_config(str(tmp_path)))
    process.manager.invalidate_reuse_scope(ReuseScope(salt="one"))
    process.end()
    (path,) = find_folders(ReadOnlyFiles(), str(tmp_path))
    whole = files_of(path)
    for number in range(len(whole)):
        with pytest.raises(OSError, match="killed"):
            remove_folder(KilledFiles(number), path)
        if (Path(path) / "identity.json").exists():
            found = found_by(tmp_path)
            assert found[1] == 0, number
            assert number > 0 or found == [len(TEXT), 0, len(TEXT)]
        shutil.rmtree(path)
        os.mkdir(path, 0o700)
        for name, data in whole.items():
            (Path(path) / name).touch(0o600)
            (Path(path) / name).write_bytes(data)
    remove_folder(OsFiles(), path)


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Path]:
    """Two good folders, the first and the last by name, and one of each kind that refuses between them."""
    folder = tmp_path / "level"
    folder.mkdir()
    held = Process(durable_config(str(folder), model_id=ModelId("held")))
    held.settle()
    (tmp_path / "made").mkdir()
    good = fill(tmp_path / "made")
    shutil.copytree(good, folder / "kvcm-00")
    shutil.copytree(good, folder / "kvcm-zz")
    shutil.copytree(good, folder / "kvcm-mixed")
    (folder / "kvcm-mixed" / "data-0-1").mkdir()
    (folder / "kvcm-backup").mkdir()
    (folder / "kvcm-backup" / "notes").write_text("keep")
    (folder / "kvcm-link").symlink_to(good)
    shutil.copytree(good, folder / "kvcm-unreadable")
    (folder / "kvcm-unreadable" / "identity.json").unlink()
    (folder / "kvcm-unreadable" / "identity.json").symlink_to("identity.json")
    shutil.copytree(good, folder / "kvcm-unlockable")
    (folder / "kvcm-unlockable" / "lock").unlink()
    (folder / "kvcm-unlockable" / "lock").symlink_to("lock")
    yield folder
    held.end()


def states_of(folder: Path) -> dict[str, dict[str, bytes]]:
    states: dict[str, dict[str, bytes]] = {}
    for path in sorted(folder.iterdir()):
        files = [one for one in path.iterdir() if one.is_file() and not one.is_symlink()]
        states[path.name] = {one.name: one.read_bytes() for one in files}
    return states


def test_a_folder_that_refuses_does_not_keep_the_others(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In use, mixed, foreign, a link, unreadable: each has its line, the others are done, and the exit code says so."""
    before = states_of(hostile)
    (in_use,) = [name for name in before if name[5:7] not in ("00", "zz", "mi", "ba", "li", "un")]
    assert main(["cache", "verify", str(hostile), "--json", "--quiet"]) == 3
    captured = capsys.readouterr()
    verified = {os.path.basename(entry["folder"]): entry["pages"] for entry in json.loads(captured.out)}
    assert verified == {"kvcm-00": 9, "kvcm-zz": 9, "kvcm-mixed": 9}
    for name in (in_use, "kvcm-backup", "kvcm-link", "kvcm-unlockable", "kvcm-unreadable"):
        assert captured.err.count(str(hostile / name)) == 1
    assert captured.err.count("\n") == 5
    assert main(["cache", "rm", str(hostile), "--salt", "none has it", "--yes"]) == 3
    assert main(["cache", "rm", str(hostile), "--yes"]) == 3
    captured = capsys.readouterr()
    assert captured.out == "".join(f"removed {hostile / name}\n" for name in ("kvcm-00", "kvcm-zz"))
    after = states_of(hostile)
    kept = [in_use, "kvcm-backup", "kvcm-link", "kvcm-mixed", "kvcm-unlockable", "kvcm-unreadable"]
    for name in kept:
        assert str(hostile / name) in captured.err
        assert after[name] == before[name], name
    assert "by hand" in captured.err


def test_scopes_of_other_folders_are_removed_where_one_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = fill(tmp_path)
    (tmp_path / "kvcm-000").mkdir()
    assert main(["cache", "rm", str(tmp_path), "--salt", "one", "--yes"]) == 3
    captured = capsys.readouterr()
    assert captured.out == f"removed 1 scopes of {good}\n"
    assert captured.err.startswith(f"kvcm: {tmp_path / 'kvcm-000'}: there is no identity.json") and captured.err.count("\n") == 1
    assert found_by(tmp_path) == [len(TEXT), 0, len(TEXT)]


class FullFiles(KilledFiles):
    """The system's files on a disk that is full after so many writes."""

    def __init__(self, num_writes: int) -> None:
        super().__init__(1 << 60)
        self.num_writes_left = num_writes

    def transfer(self, file: int, is_write: bool, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> int:
        if is_write:
            if self.num_writes_left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.num_writes_left -= 1
        return super().transfer(file, is_write, addresses, sizes, offset)

    def discard(self, file: int, offset: int, num_bytes: int, is_last: bool) -> None:
        self.system.discard(file, offset, num_bytes, is_last)

    def sync(self, file: int) -> None:
        self.system.sync(file)

    def sync_folder(self, path: str) -> None:
        self.system.sync_folder(path)

    def make_folder(self, path: str) -> None:
        self.system.make_folder(path)


def test_a_full_disk_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    path = fill(tmp_path)
    before = {name: data for name, data in files_of(path).items() if name != "lock"}
    for num_writes in range(3):
        # The holder of the lock, the beginning of a log, the record.
        with pytest.raises((StorageIOError, OSError)):
            remove_scopes(FullFiles(num_writes), FolderContents(ReadOnlyFiles(), path), ["one"])
        assert {name: data for name, data in files_of(path).items() if name != "lock"} == before, num_writes
    assert found_by(tmp_path) == [len(TEXT)] * 3
    remove_scopes(FullFiles(3), FolderContents(ReadOnlyFiles(), path), ["one"])
    assert found_by(tmp_path) == [len(TEXT), 0, len(TEXT)]


def test_a_disk_that_refuses_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lock is a link, as no disk can be filled here: the same errors as of one that is full or read-only."""
    path = fill(tmp_path)
    lock = Path(path) / "lock"
    lock.unlink()
    assert main(["cache", "rm", str(tmp_path), "--salt", "one", "--yes"]) == 0
    lock.unlink()
    os.symlink("nowhere/lock", lock)
    capsys.readouterr()
    assert main(["cache", "rm", str(tmp_path), "--salt", "2", "--yes"]) == 3
    error = capsys.readouterr().err
    assert error.startswith(f"kvcm: {path}: ") and "symbolic link to 'nowhere/lock'" in error


def test_a_level_of_which_one_part_refuses_stays_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a file that no manager has made, or in use: nothing of any part is removed."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    path = fill(first, more_paths=(str(second),))
    part = str(second / os.path.basename(path))
    (Path(part) / "notes").write_text("keep")
    before = [files_of(path), files_of(part)]
    assert main(["cache", "rm", str(first), "--yes"]) == 3
    error = capsys.readouterr().err
    assert error.startswith(f"kvcm: {path}: its part in {part}: it has notes") and error.count("\n") == 1
    assert [files_of(path), files_of(part)] == before
    (Path(part) / "notes").unlink()
    files = OsFiles()
    lock = files.lock(os.path.join(part, "lock"))
    before = [files_of(path), files_of(part)]
    assert main(["cache", "rm", str(first), "--yes"]) == 3
    assert f"{part} is in use by process" in capsys.readouterr().err
    assert [files_of(path), files_of(part)] == before
    files.close_file(lock)
    assert main(["cache", "rm", str(first), "--yes"]) == 0
    assert os.listdir(first) == os.listdir(second) == []


def test_a_refused_folder_counts_more_than_a_damaged_page(tmp_path: Path) -> None:
    path = fill(tmp_path)
    (Path(path) / "data-0-0").unlink()
    assert main(["cache", "verify", str(tmp_path)]) == 1
    for name in ("kvcm-000", "kvcm-zzz"):
        (tmp_path / name).mkdir()
        assert main(["cache", "verify", str(tmp_path)]) == 3
        (tmp_path / name).rmdir()
