"""A durable level may lie on several disks: its pages are spread over them slot by slot, the next process finds them on the same paths,
and paths that are missing, foreign, too many or in another order are refused with their names, nothing changed."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from durable_models import PROMPTS, Process, durable_config, next_process
from lossy_files import LossyDisk, LossyFiles

from kv_cache_manager_v2 import DiskCacheTierConfig, KVCacheManagerConfig, LogicError, ModelId, OutOfMemoryError, ReuseScope, StorageIOError
from kv_cache_manager_v2.replay.cli import main as kvcm


def make_paths(tmp_path: Path, *names: str) -> list[str]:
    for name in names:
        (tmp_path / name).mkdir(exist_ok=True)
    return [str(tmp_path / name) for name in names]


def config_on(paths: list[str], **settings: Any) -> KVCacheManagerConfig:
    return durable_config(paths[0], more_paths=paths[1:], **settings)


def serve(config: KVCacheManagerConfig) -> list[int]:
    process = Process(config)
    reused = [process.run(prompt) for prompt in PROMPTS]
    process.end()
    return reused


def data_bytes(path: str) -> int:
    return sum(file.stat().st_size for file in Path(path).glob("kvcm-*/data-*"))


def contents_of(paths: list[str]) -> dict[str, bytes]:
    files = [file for path in paths for file in sorted(Path(path).rglob("*")) if file.is_file() and file.name != "lock"]
    return {str(file): file.read_bytes() for file in files}


@pytest.mark.parametrize("num_paths", [2, 3])
def test_the_next_process_finds_it(num_paths: int, tmp_path: Path) -> None:
    paths = make_paths(tmp_path, *"abc"[:num_paths])
    config = config_on(paths)
    serve(config)
    assert all(data_bytes(path) > 0 for path in paths)
    assert all(reused > 0 for reused in serve(config))
    # Also with more room or less.
    assert all(reused > 0 for reused in serve(config_on(paths, disk_slots=90)))
    assert all(reused > 0 for reused in serve(config_on(paths, disk_slots=48)))


def test_paths_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    paths = make_paths(tmp_path, "a", "b", "c", "d")
    serve(config_on(paths[:2]))
    serve(config_on(paths[2:], model_id=ModelId("another model")))
    other = make_paths(tmp_path, "e", "f")
    serve(config_on(other))
    before = contents_of(paths + other)  # but for the locks: the number of the process that has tried
    refused: list[tuple[list[str], str]] = [
        ([paths[1], paths[0]], f"part 2 of a durable level on the paths {paths[0]}, {paths[1]}.*in that order"),
        (paths[:1], f"made with 2 paths, {paths[0]}, {paths[1]}, and 1 is given"),
        (paths[1:2], "part 2 of a durable level"),
        ([paths[0], paths[1], paths[3]], "made with 2 paths.*and 3 are given"),
        ([paths[0], paths[2]], f"part 2 of 2 is not in {paths[2]}.*mount the disk"),
        ([paths[0], other[1]], f"{other[1]}.* is a part of another durable level, on the paths {other[0]}"),
        ([paths[0], str(tmp_path / "nowhere")], "nowhere.*create it first, or mount"),
    ]
    for given, reason in refused:
        with pytest.raises(ValueError, match=reason):
            Process(config_on(given))
    assert contents_of(paths + other) == before
    assert all(reused > 0 for reused in serve(config_on(paths[:2])))


def test_a_level_of_one_path_does_not_get_another(tmp_path: Path) -> None:
    paths = make_paths(tmp_path, "a", "b")
    serve(config_on(paths[:1]))
    with pytest.raises(ValueError, match=f"made with one path, and 2 are given: give {paths[0]} alone"):
        Process(config_on(paths))
    with pytest.raises(ValueError, match="belongs to another durable level"):
        Process(config_on([paths[1], paths[0]]))
    assert os.listdir(paths[1]) == [], "nothing is changed"


def test_parts_out_of_order_are_refused(tmp_path: Path) -> None:
    paths = make_paths(tmp_path, "a", "b", "c")
    serve(config_on(paths))
    with pytest.raises(ValueError, match=f"is its part 3, and is given as path 2: give the paths in the order {paths[0]}, {paths[1]}"):
        Process(config_on([paths[0], paths[2], paths[1]]))


def test_one_manager_at_a_time(tmp_path: Path) -> None:
    paths = make_paths(tmp_path, "a", "b")
    process = Process(config_on(paths))
    with pytest.raises(LogicError, match=f"in use by process {os.getpid()}"):
        Process(config_on(paths))
    process.end()


class _FullFiles(LossyFiles):
    """A disk whose files below one folder cannot grow, or be read and written, or locked."""

    def __init__(self, disk: LossyDisk, folder: str) -> None:
        super().__init__(disk)
        self._folder = folder
        self._names: dict[int, str] = {}
        self.is_lost = False
        self.is_read_only = False

    def lock(self, path: str) -> int:
        if self.is_read_only and path.startswith(self._folder):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return super().lock(path)

    def open_named(self, path: str, is_direct: bool) -> int:
        file = super().open_named(path, is_direct)
        self._names[file] = path
        return file

    def grow(self, file: int, offset: int, num_bytes: int) -> None:
        if self._names.get(file, "").startswith(self._folder) and not self.is_lost:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().grow(file, offset, num_bytes)

    def transfer(self, file: int, is_write: bool, addresses: Any, sizes: Any, offset: int) -> int:
        if self.is_lost and "/data-" in self._names.get(file, "") and self._names[file].startswith(self._folder):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().transfer(file, is_write, addresses, sizes, offset)


def test_a_read_only_path_is_named(tmp_path: Path) -> None:
    paths = make_paths(tmp_path, "a", "b")
    files = _FullFiles(LossyDisk(), paths[1])
    files.is_read_only = True
    with pytest.raises(StorageIOError, match=f"Read-only file system.*{paths[1]}.*check the folder's permissions"):
        Process(config_on(paths), files)


def test_a_full_path_is_named(tmp_path: Path) -> None:
    paths = make_paths(tmp_path, "a", "b")
    with pytest.raises(OutOfMemoryError, match=f"no room for .* in {paths[1]}.*lower the tier's quota"):
        Process(config_on(paths), _FullFiles(LossyDisk(), paths[1]))


def test_a_path_that_is_lost_costs_the_level_and_not_the_service(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = make_paths(tmp_path, "a", "b")
    config = config_on(paths)
    disk = LossyDisk()
    first, _files = next_process(disk, config)
    for prompt in PROMPTS:
        first.run(prompt)
    first.end()
    files = _FullFiles(disk, paths[1])
    files.is_lost = True
    second = Process(config, files)
    # Every other page is on the lost path: what has one fails to load, and other prompts are served.
    outcomes = [second.run(prompt) for prompt in PROMPTS for _time in range(2)]
    assert -1 in outcomes
    second.settle()
    assert second.run([9000 + position for position in range(24)]) == 0
    second.settle()
    second.end()
    assert f"{paths[1]}/kvcm-" in caplog.text and "takes no more pages" in caplog.text


def test_the_command_knows_all_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = make_paths(tmp_path, "a", "b")
    serve(config_on(paths))
    assert kvcm(["cache", "ls", paths[0]]) == 0
    assert f"on 2 paths: {paths[0]}, {paths[1]}" in capsys.readouterr().out
    assert kvcm(["cache", "verify", "--quiet", paths[0]]) == 0
    assert "all as they were written" in capsys.readouterr().out
    data = next(Path(paths[1]).glob("kvcm-*/data-0-0"))
    content = bytearray(data.read_bytes())
    content[:] = bytes(len(content))
    data.write_bytes(content)
    assert kvcm(["cache", "verify", "--quiet", paths[0]]) == 1
    assert f"{data}" in capsys.readouterr().out
    assert kvcm(["cache", "rm", "--yes", paths[0]]) == 0
    assert contents_of(paths) == {}


@pytest.mark.parametrize("action", [["ls"], ["verify", "--quiet"], ["rm", "--yes"]], ids=" ".join)
def test_the_command_asks_for_the_first_path(action: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A further path alone is no level; removed, it would take the pages of the others with it."""
    paths = make_paths(tmp_path, "a", "b")
    serve(config_on(paths))
    before = contents_of(paths)
    assert kvcm(["cache", *action, paths[1]]) == 3
    assert f"part 2 of a durable level on the paths {paths[0]}, {paths[1]}" in capsys.readouterr().err
    assert contents_of(paths) == before
    assert all(reused > 0 for reused in serve(config_on(paths)))


def test_a_part_without_its_level_can_be_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = make_paths(tmp_path, "a", "b")
    serve(config_on(paths))
    shutil.rmtree(paths[0])
    make_paths(tmp_path, "a")
    serve(durable_config(paths[0]))  # of the same name, and another level
    assert kvcm(["cache", "rm", "--yes", paths[1]]) == 0
    assert "removed" in capsys.readouterr().out and contents_of(paths[1:]) == {}
    assert all(reused > 0 for reused in serve(durable_config(paths[0])))


def test_the_command_names_a_path_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = make_paths(tmp_path, "a", "b")
    serve(config_on(paths))
    Path(paths[1]).rename(tmp_path / "elsewhere")
    assert kvcm(["cache", "ls", paths[0]]) == 0
    assert f"part 2 of 2 is not in {paths[1]}" in capsys.readouterr().out
    assert kvcm(["cache", "verify", "--quiet", paths[0]]) == 3
    assert f"part 2 of 2 is not in {paths[1]}" in capsys.readouterr().err


def move(tmp_path: Path, paths: list[str]) -> list[str]:
    moved = [str(tmp_path / Path(path).name.upper()) for path in paths]
    for path, other in zip(paths, moved, strict=True):
        Path(path).rename(other)
    return moved


def test_a_manager_notes_where_its_level_has_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that only reads notes nothing; what is noted is found by the command, and named in refusals."""
    paths = make_paths(tmp_path, "a", "b", "c")
    serve(config_on(paths))
    moved = move(tmp_path, paths)
    before = contents_of(moved)
    reader = Process(config_on(moved, read_only=True))
    assert reader.run(PROMPTS[0]) > 0
    reader.end()
    assert contents_of(moved) == before
    assert all(reused > 0 for reused in serve(config_on(moved)))
    assert kvcm(["cache", "ls", moved[0]]) == 0
    assert f"on 3 paths: {', '.join(moved)}\n" in capsys.readouterr().out
    assert kvcm(["cache", "verify", "--quiet", moved[0]]) == 0
    assert kvcm(["cache", "verify", "--quiet", moved[2]]) == 3
    assert f"part 3 of a durable level on the paths {', '.join(moved)}" in capsys.readouterr().err
    assert kvcm(["cache", "rm", "--yes", moved[0]]) == 0
    assert contents_of(moved) == {} and [list(Path(path).iterdir()) for path in moved] == [[]] * 3
    assert serve(config_on(moved))[0] == 0


@pytest.mark.parametrize("kill_at", range(0, 40, 3))
def test_a_manager_that_dies_as_it_notes_the_paths_has_lost_nothing(kill_at: int, tmp_path: Path) -> None:
    paths = make_paths(tmp_path, "a", "b")
    disk = LossyDisk()
    first, _files = next_process(disk, config_on(paths))
    for prompt in PROMPTS:
        first.run(prompt)
    first.end()
    moved = make_paths(tmp_path, "A", "B")
    for path, other in zip(paths, moved, strict=True):
        for name in disk.paths(path):
            disk.files[other + name.removeprefix(path)] = disk.files.pop(name)
    process, files = next_process(disk, config_on(moved), kill_at)
    files.kill()
    process.end()
    disk.fail_power(kill_at)
    last, _files = next_process(disk, config_on(moved))
    assert all(last.run(prompt) > 0 for prompt in PROMPTS)
    last.end()


@pytest.mark.parametrize("action", [["ls"], ["verify", "--quiet"], ["rm", "--yes"], ["rm", "--yes", "--salt", "x"]], ids=" ".join)
def test_the_command_takes_paths_that_have_moved(action: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before any manager has had the level there. Without all of them `rm` removes nothing."""
    paths = make_paths(tmp_path, "a", "b", "c")
    process = Process(config_on(paths))
    process.run(PROMPTS[0], ReuseScope(salt="x"))
    process.end()
    moved = move(tmp_path, paths)
    before = contents_of(moved)
    for given in ([moved[0]], moved[:2]):
        assert kvcm(["cache", *action, *given]) == (0 if action == ["ls"] else 3)
        said = capsys.readouterr()
        assert f"part 3 of 3 is not in {paths[2]}" in said.out + said.err and "refuse" not in said.err
        assert contents_of(moved) == before
    assert kvcm(["cache", *action, str(tmp_path / "none")]) == 3
    # In any order behind the first: each part says what it is.
    assert kvcm(["cache", *action, moved[0], moved[2], moved[1]]) == 0
    assert "part " not in capsys.readouterr().out
    if action == ["rm", "--yes"]:
        assert contents_of(moved) == {}


def test_what_is_found_is_removed_when_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = make_paths(tmp_path, "a", "b", "c")
    serve(config_on(paths))
    moved = move(tmp_path, paths)
    assert kvcm(["cache", "rm", "--yes", "--incomplete", *moved[:2]]) == 0
    assert f"part 3 of 3 is not in {paths[2]}" in capsys.readouterr().out
    assert contents_of(moved[:2]) == {} and contents_of(moved[2:]) != {}
    assert kvcm(["cache", "rm", "--yes", moved[2]]) == 0
    assert contents_of(moved) == {}


def test_wrong_paths_are_refused_by_the_configuration(tmp_path: Path) -> None:
    model = ModelId("a model")
    with pytest.raises(ValueError, match="more_paths has 1 paths and durable is False"):
        DiskCacheTierConfig(1 << 20, "/a", more_paths=("/b",))
    with pytest.raises(ValueError, match="each must be another folder"):
        DiskCacheTierConfig(1 << 20, "/a", durable=True, model_id=model, more_paths=("/a/",))
    with pytest.raises(TypeError, match="more_paths"):
        DiskCacheTierConfig(1 << 20, "/a", durable=True, model_id=model, more_paths="/b")  # type: ignore[arg-type]
    assert DiskCacheTierConfig(1 << 20, "/a", durable=True, model_id=model, more_paths=["/b"]).paths == ("/a", "/b")  # type: ignore[arg-type]
