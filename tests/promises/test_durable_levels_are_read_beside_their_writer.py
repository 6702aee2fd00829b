"""A manager whose durable level is read_only finds what the folder has at that moment, while the manager that writes it goes on: it never
writes or locks anything there, and a page that was overwritten since is a miss with a cause, never a wrong byte."""

import stat
from pathlib import Path
from typing import Any

import pytest
from durable_models import PROMPTS, Process, durable_config

from kv_cache_manager_v2 import DiskCacheTierConfig, HostDevice, KVCacheManager, KVCacheManagerConfig, LogicError, StorageIOError
from kv_cache_manager_v2.testing.journal_rerun import rerun


def reading(path: Path, **settings: Any) -> KVCacheManagerConfig:
    return durable_config(str(path), read_only=True, **settings)


def contents_of(path: Path) -> dict[str, tuple[bytes, int]]:
    return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in sorted(path.rglob("*")) if file.is_file()}


def serve(process: Process, prompts: list[list[int]] = PROMPTS) -> list[int]:
    return [process.run(prompt) for prompt in prompts]


@pytest.mark.parametrize("host_slots", [0, 6])
def test_it_reads_what_is_there_and_writes_nothing(host_slots: int, tmp_path: Path) -> None:
    writer = Process(durable_config(str(tmp_path)))
    serve(writer)
    writer.settle()
    before = contents_of(tmp_path)
    reader = Process(reading(tmp_path, host_slots=host_slots, gpu_slots=10))
    # All five prompts do not fit on the levels above: what came from the disk is found there again, time and again.
    for _round in range(3):
        assert all(reused > 0 for reused in serve(reader))
        reader.manager.check_invariants()
    fresh = [9000 + position for position in range(20)]
    assert reader.run(fresh) == 0
    (counts,) = reader.manager.get_storage_statistics(len(reader.manager.cache_tier_list) - 1)
    assert not counts.is_closed, "an alert on this would call for a new disk, and none has failed"
    assert "it is read-only" in str(reader.manager.describe()["levels"])
    reader.end()
    assert contents_of(tmp_path) == before
    # The writer was not locked out, nor disturbed.
    assert writer.run(fresh) == 0
    writer.end()
    again = Process(reading(tmp_path))
    assert again.run(fresh) > 0
    again.end()


def test_it_sees_the_moment_at_which_it_was_made(tmp_path: Path) -> None:
    writer = Process(durable_config(str(tmp_path)))
    writer.run(PROMPTS[0])
    writer.settle()
    reader = Process(reading(tmp_path))
    late = [7000 + position for position in range(20)]
    writer.run(late)
    writer.settle()
    assert reader.run(PROMPTS[0]) > 0
    assert reader.run(late) == 0
    reader.end()
    writer.end()


def test_overwritten_pages_are_misses(tmp_path: Path) -> None:
    """The engine of `Process` compares every byte that it reads: a wrong one fails the test."""
    writer = Process(durable_config(str(tmp_path), disk_slots=24))
    serve(writer)
    writer.settle()
    reader = Process(reading(tmp_path, disk_slots=24))
    for number in range(20):
        writer.run([5000 + 100 * number + position for position in range(24)])
    writer.settle()
    outcomes = serve(reader) + serve(reader)
    assert -1 in outcomes
    assert outcomes[-1] >= 0
    (counts,) = reader.manager.get_storage_statistics(1)
    assert counts.damaged_pages > 0
    reader.manager.check_invariants()
    reader.end()
    writer.end()


def test_a_folder_that_may_not_be_written_is_read(tmp_path: Path) -> None:
    first = Process(durable_config(str(tmp_path)))
    serve(first)
    first.end()
    places = [tmp_path, *tmp_path.rglob("*")]
    modes = {place: stat.S_IMODE(place.stat().st_mode) for place in places}
    try:
        for place in places:
            place.chmod(0o500 if place.is_dir() else 0o400)
        second = Process(reading(tmp_path))
        assert all(reused > 0 for reused in serve(second))
        second.end()
    finally:
        for place, mode in modes.items():
            place.chmod(mode)


def test_several_paths_are_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    more = [str(tmp_path / "b")]
    writer = Process(durable_config(str(tmp_path / "a"), more_paths=more))
    serve(writer)
    writer.settle()
    reader = Process(reading(tmp_path / "a", more_paths=more))
    assert all(reused > 0 for reused in serve(reader))
    reader.end()
    writer.end()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no process has made it yet: start the manager that writes it first"):
        Process(reading(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="read_only is True and durable is False"):
        DiskCacheTierConfig(1 << 20, "/a", read_only=True)
    writer = Process(durable_config(str(tmp_path)))
    with pytest.raises(LogicError, match="in use by process"):
        Process(durable_config(str(tmp_path)))
    writer.end()
    for data in tmp_path.rglob("data-0-0"):
        data.unlink()
    with pytest.raises(StorageIOError, match="data-0-0"):
        Process(reading(tmp_path))


def test_clearing_forgets_in_this_process_alone(tmp_path: Path) -> None:
    writer = Process(durable_config(str(tmp_path)))
    serve(writer)
    writer.settle()
    reader = Process(reading(tmp_path))
    reader.manager.keep_restored(reader.manager.restored())
    reader.manager.clear_reusable_blocks()
    assert reader.run(PROMPTS[0]) == 0
    reader.end()
    again = Process(reading(tmp_path))
    assert again.run(PROMPTS[0]) > 0
    again.end()
    writer.end()


def test_its_journal_runs_again(tmp_path: Path) -> None:
    (tmp_path / "level").mkdir()
    writer = Process(durable_config(str(tmp_path / "level")))
    serve(writer)
    writer.settle()
    device = HostDevice()
    manager = KVCacheManager(reading(tmp_path / "level", gpu_slots=10), device=device, journal=str(tmp_path / "journal"))
    for prompt in PROMPTS * 2:
        kv_cache = manager.create_kv_cache(None, prompt)
        assert kv_cache.resume() and kv_cache.num_committed_tokens > 0
        kv_cache.close()
    manager.shutdown()
    device.close()
    writer.end()
    again = HostDevice()
    assert rerun(tmp_path / "journal", again).num_calls > 0
    again.close()
