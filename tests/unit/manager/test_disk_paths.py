"""A disk level's relative path leads from the working folder in which the manager was made, wherever the process goes later."""

import os
from pathlib import Path

import pytest
from durable_models import PROMPTS, Process, durable_config
from tiered_models import Bench, tiered_config

from kv_cache_manager_v2 import DiskCacheTierConfig, HostDevice, ModelId
from kv_cache_manager_v2.manager.durable_opening import list_absolute_paths


def make_folders(parent: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The process is in one, with two for a level; returns another one, which is empty."""
    for name in ("start/a", "start/b", "elsewhere"):
        (parent / name).mkdir(parents=True)
    monkeypatch.chdir(parent / "start")
    return parent / "elsewhere"


@pytest.mark.parametrize("path", ["a", "./a", ".", "b/../a"])
def test_a_level_goes_on_where_it_was_made(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """6 sequences of 2 blocks, 2 slots on the GPU: their pages go to the disk, which grows after the move."""
    elsewhere = make_folders(tmp_path, monkeypatch)
    with Bench(tiered_config(2, [("disk", 16)], path), HostDevice()) as bench:
        os.chdir(elsewhere)
        sequences = [bench.suspended(number, 8) for number in range(6)]
        assert bench.manager.resize(1, 1 << 23)
        for kv_cache in sequences:
            assert kv_cache.resume()
            bench.check(kv_cache)
            kv_cache.close()


@pytest.mark.parametrize("paths", [["a"], ["a", "b"], ["./a", "../start/b"]])
def test_a_durable_level_goes_on_where_it_was_made(paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = make_folders(tmp_path, monkeypatch)
    start = tmp_path / "start"
    relative = durable_config(paths[0], more_paths=paths[1:])
    process = Process(relative)
    os.chdir(elsewhere)
    for text in PROMPTS:
        process.run(text)
        process.settle()
    assert process.manager.describe()["levels"][1]["failure"] is None
    process.end()
    assert list(elsewhere.iterdir()) == []
    absolute = durable_config(str(start / "a"), more_paths=[str(start / "b")] * (len(paths) - 1))
    again = Process(absolute)
    assert [again.run(text) for text in PROMPTS] == [32] * 5
    again.end()
    os.chdir(start)
    reader = Process(durable_config(paths[0], more_paths=paths[1:], read_only=True))
    os.chdir(elsewhere)
    assert [reader.run(text) for text in PROMPTS] == [32] * 5
    reader.end()


def test_errors_have_the_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folders(tmp_path, monkeypatch)
    for config in (durable_config("nowhere"), tiered_config(2, [("disk", 16)], "nowhere")):
        with pytest.raises(ValueError, match=f"there is no folder '{tmp_path}/start/nowhere'"):
            Process(config)


def test_absolute_paths_stay_as_they_are() -> None:
    tier = DiskCacheTierConfig(1 << 20, "/a/../b/", durable=True, model_id=ModelId("a model"), more_paths=("/c",))
    assert list_absolute_paths(tier) == ["/a/../b/", "/c"]
