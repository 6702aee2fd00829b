"""A durable level that cannot be used is a named error at the start; one that fails later costs durability, and no call an exception.

Each failure is said in the log, and in the metrics.
"""

import dataclasses
import errno
import logging
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from durable_models import PROMPTS, SLOT_BYTES, TOKENS_PER_BLOCK, Process, durable_config, next_process
from lossy_files import LossyDisk, LossyFiles

from kv_cache_manager_v2 import (
    BufferConfig, DiskCacheTierConfig, GpuCacheTierConfig, HostDevice, KVCacheManager, KVCacheManagerConfig, LoadFailed, LogicError,
    OutOfMemoryError, ReuseScope, StorageIOError,
)  # fmt: skip
from kv_cache_manager_v2.metrics.metric_samples import take_samples
from kv_cache_manager_v2.testing.journal_rerun import rerun

TENANT = ReuseScope(salt="tenant-7")


def metric_of(process: Process, name: str) -> float:
    """Of the disk tier, over its pool groups."""
    (metric,) = [metric for metric in take_samples(process.manager) if metric.name == name]
    return sum(value for labels, value in metric.samples if labels[0] == "disk")


class StubbornFiles(LossyFiles):
    """The named calls fail with an error number."""

    def __init__(self, disk: LossyDisk, **failures: int) -> None:
        super().__init__(disk)
        self.failures = failures

    def _fail(self, call: str, path: str) -> None:
        if call in self.failures:
            raise OSError(self.failures[call], os.strerror(self.failures[call]), path)

    def make_folder(self, path: str) -> None:
        self._fail("make_folder", path)

    def free_bytes(self, path: str) -> int:
        return 0 if "full" in self.failures else super().free_bytes(path)

    def open_named(self, path: str, is_direct: bool) -> int:
        self._fail("open_direct" if is_direct else "open_named", path)
        return super().open_named(path, is_direct)

    def rename(self, path: str, new_path: str) -> None:
        self._fail("rename", path)
        super().rename(path, new_path)


# -- at the start --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "error", "reason"),
    [
        ({"make_folder": errno.EROFS}, StorageIOError, "Read-only file system.*check the folder's permissions"),
        ({"make_folder": errno.EACCES}, StorageIOError, "Permission denied.*give another path"),
        ({"make_folder": errno.ENOSPC}, StorageIOError, "No space left.*free space"),
        ({"open_named": errno.EROFS}, StorageIOError, "Read-only file system"),
        ({"full": 1}, OutOfMemoryError, "no room for .* bytes of the DISK tier"),
    ],
    ids=["read-only", "no permission", "full", "read-only files", "no room for its slots"],
)
def test_disks_that_refuse_are_named(tmp_path: object, failures: dict[str, int], error: type[Exception], reason: str) -> None:
    disk = LossyDisk()
    with pytest.raises(error, match=reason):
        Process(durable_config(str(tmp_path)), StubbornFiles(disk, **failures))
    assert disk.locked == set(), "the folder is free again"
    process, _files = next_process(disk, durable_config(str(tmp_path)))
    process.end()


MIB = 1 << 20


def config_of_large_slots(paths: list[Path], num_slots: int) -> KVCacheManagerConfig:
    """Slots of a mebibyte: more of them than any disk has room for are still few."""
    first, *more = [str(path) for path in paths]
    config = durable_config(first, more_paths=more)
    layer = dataclasses.replace(config.layers[0], buffers=[BufferConfig("key", MIB // 2), BufferConfig("value", MIB // 2)])
    gpu, disk = config.cache_tiers
    assert isinstance(gpu, GpuCacheTierConfig) and isinstance(disk, DiskCacheTierConfig)
    tiers: list[Any] = [dataclasses.replace(gpu, quota=16 * MIB), dataclasses.replace(disk, quota=num_slots * MIB)]
    return dataclasses.replace(config, layers=[layer], cache_tiers=tiers)


@pytest.mark.parametrize("num_paths", [1, 2])
def test_a_quota_larger_than_the_disk_leaves_nothing_behind(tmp_path: Path, num_paths: int) -> None:
    """What was made for it is removed again; what there was of an earlier manager stays, and serves the next one."""
    paths = [tmp_path / f"disk{number}" for number in range(num_paths)]
    for path in paths:
        path.mkdir()
    too_large = config_of_large_slots(paths, num_paths * (shutil.disk_usage(tmp_path).total // MIB + 1000))
    for _attempt in range(2):
        with pytest.raises(OutOfMemoryError, match="lower the tier's quota"):
            Process(too_large)
        assert [list(path.iterdir()) for path in paths] == [[]] * num_paths
    process = Process(config_of_large_slots(paths, 16))
    process.run(PROMPTS[0])
    process.end()
    found = [sorted(path.rglob("data-*")) for path in paths]
    assert all(found)
    with pytest.raises(OutOfMemoryError):
        Process(too_large)
    assert [sorted(path.rglob("data-*")) for path in paths] == found
    process = Process(config_of_large_slots(paths, 16))
    assert process.run(PROMPTS[0]) > 0
    process.end()


@pytest.mark.parametrize(("quota", "text"), [(1 << 50, "no room for .* lower the tier's quota"), (1 << 60, "cannot reserve .* addresses")])
def test_nor_does_that_of_a_level_that_is_not_durable(tmp_path: Path, quota: int, text: str) -> None:
    config = durable_config(str(tmp_path))
    tiers: list[Any] = [config.cache_tiers[0], DiskCacheTierConfig(quota, str(tmp_path))]
    with pytest.raises(OutOfMemoryError, match=text):
        KVCacheManager(dataclasses.replace(config, cache_tiers=tiers), device=HostDevice())
    assert list(tmp_path.iterdir()) == []


def test_a_quota_larger_than_the_memory_of_its_slot_table_leaves_nothing_behind(tmp_path: Path) -> None:
    """The folder is free again, too."""
    with pytest.raises(OutOfMemoryError, match=r"cache_tiers\[1\] has more slots than memory can list: lower the tier's quota, \d+ bytes"):
        Process(durable_config(str(tmp_path), disk_slots=1 << 40))
    assert list(tmp_path.iterdir()) == []
    process = Process(durable_config(str(tmp_path)))
    process.end()


def test_another_process_is_named(tmp_path: object) -> None:
    config = durable_config(str(tmp_path))
    process = Process(config)
    program = "import sys\nsys.path.insert(0, sys.argv[2])\nfrom durable_models import *\nProcess(durable_config(sys.argv[1]))"
    tests = str(Path(__file__).resolve().parents[1])
    done = subprocess.run([sys.executable, "-P", "-c", program, str(tmp_path), tests], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and LogicError.__name__ in done.stderr and f"in use by process {os.getpid()}" in done.stderr, done.stderr
    assert process.run(PROMPTS[0]) == 0
    process.end()


def test_file_systems_without_direct_transfers_will_do(tmp_path: object) -> None:
    disk = LossyDisk()
    config = durable_config(str(tmp_path))
    for restart in range(2):
        process = Process(config, StubbornFiles(disk, open_direct=errno.EINVAL))
        assert [process.run(text + [7 + restart]) for text in PROMPTS] == ([0, 20, 20, 20, 20] if restart == 0 else [32] * 5)
        process.end()


# -- later ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_made_anew", [False, True], ids=["it is gone", "another process has begun there"])
def test_a_folder_may_vanish_while_in_use(tmp_path: Path, is_made_anew: bool, caplog: pytest.LogCaptureFixture) -> None:
    """What was open stays open; the log says so once, and a metric; the next process begins anew."""
    folder = tmp_path / "cache"
    folder.mkdir()
    config = durable_config(str(folder))
    process = Process(config)
    assert process.run(PROMPTS[0]) == 0
    process.settle()
    assert metric_of(process, "kvcm_durable_failed") == 0
    shutil.rmtree(folder)
    if is_made_anew:
        folder.mkdir()
        Process(config).end()
    with caplog.at_level(logging.ERROR):
        for text in PROMPTS:
            assert process.run(text) == (32 if text is PROMPTS[0] else 20)
            process.settle()
    assert len([record for record in caplog.records if "vanished while they were in use" in record.message]) == 1
    assert metric_of(process, "kvcm_durable_failed") == 1 and metric_of(process, "kvcm_level_closed") == 0
    process.end()
    if not is_made_anew:
        with pytest.raises(ValueError, match="create it first"):
            KVCacheManager(config)
        folder.mkdir()
    again = Process(config)
    assert again.run(PROMPTS[0]) == 0
    again.end()


def _lose_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def _rename_path(folder: Path) -> None:
    folder.parent.rename(folder.parent.with_name("elsewhere"))


def _lose_data(folder: Path) -> None:
    for data in folder.glob("data-*"):
        data.unlink()


def _lose_part(folder: Path) -> None:
    (folder / "part.json").unlink()


def _begin_anew(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    other = durable_config(str(folder.parent / "aside"), more_paths=[str(folder.parent)])
    (folder.parent / "aside").mkdir()
    Process(other).end()


@pytest.mark.parametrize(
    ("number", "lose"),
    [(1, _lose_folder), (1, _rename_path), (1, _lose_data), (1, _lose_part), (1, _begin_anew), (2, _lose_data), (0, _lose_data)],
    ids=["folder", "its path is another", "data", "part.json", "another level has begun there", "data of the third", "data of the first"],
)
def test_a_further_path_may_vanish_while_in_use(
    number: int, lose: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As with the first path: what was open stays open, the log names what is gone, once, and a metric says it."""
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path in paths:
        path.mkdir()
    config = durable_config(str(paths[0]), more_paths=[str(path) for path in paths[1:]])
    process = Process(config)
    assert process.run(PROMPTS[0]) == 0
    process.settle()
    assert metric_of(process, "kvcm_durable_failed") == 0
    (folder,) = paths[number].glob("kvcm-*")
    lose(folder)
    with caplog.at_level(logging.ERROR):
        for text in PROMPTS:
            assert process.run(text) == (32 if text is PROMPTS[0] else 20)
            process.settle()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "records nothing more" in said and "vanished while they were in use" in said and str(folder) in said, said
    assert metric_of(process, "kvcm_durable_failed") == 1 and metric_of(process, "kvcm_level_closed") == 0
    process.end()


def test_an_index_that_is_refused_costs_what_comes_now(tmp_path: object, caplog: pytest.LogCaptureFixture) -> None:
    disk = LossyDisk()
    config = durable_config(str(tmp_path))
    process, files = next_process(disk, config)
    process.run(PROMPTS[0])
    process.settle()
    assert metric_of(process, "kvcm_durable_failed") == 0
    files.failing_writes = errno.EIO
    with caplog.at_level(logging.ERROR):
        assert [process.run(text) for text in PROMPTS[1:]] == [20] * 4
        process.settle()
    assert [record.levelno for record in caplog.records if "records nothing more" in record.message] == [logging.ERROR]
    assert metric_of(process, "kvcm_durable_failed") == 1 and metric_of(process, "kvcm_level_closed") == 1
    assert min([process.run(text) for text in PROMPTS]) >= 20, "serving goes on, with what fits above the disk"
    process.end()
    again, _files = next_process(disk, config)
    assert again.manager.probe_reuse(None, PROMPTS[0]) == 32 and again.manager.probe_reuse(None, PROMPTS[1]) == 20
    assert metric_of(again, "kvcm_restored_pages") == 8
    again.end()


def _invalidate(manager: KVCacheManager) -> None:
    manager.invalidate_reuse_scope(TENANT)


def _clear(manager: KVCacheManager) -> None:
    manager.clear_reusable_blocks()


@pytest.mark.parametrize("forget", [_invalidate, _clear])
@pytest.mark.parametrize("fails_before", [True, False], ids=["it has failed before", "it fails in this call"])
def test_what_cannot_be_forgotten_on_the_disk_is_said(
    forget: Callable[[KVCacheManager], None], fails_before: bool, tmp_path: Path
) -> None:
    """This process forgets, and serves on; the error says what the next one may find, and a call after a restart is enough."""
    disk = LossyDisk()
    config = durable_config(str(tmp_path))
    process, files = next_process(disk, config)
    process.run(PROMPTS[0], TENANT)
    process.settle()
    files.failing_writes = errno.EIO
    if fails_before:
        process.run(PROMPTS[1])
        process.settle()
        assert metric_of(process, "kvcm_durable_failed") == 1
    for _time in range(2):
        with pytest.raises(StorageIOError, match="next manager may find these tokens again") as failed:
            forget(process.manager)
    for words in ("records nothing more since OSError", str(tmp_path), "kvcm cache rm", "after a restart"):
        assert words in str(failed.value)
    assert failed.value.path.startswith(str(tmp_path)) and metric_of(process, "kvcm_durable_failed") == 1
    assert process.manager.probe_reuse(TENANT, PROMPTS[0]) == 0
    assert process.run(PROMPTS[0], TENANT) == 0
    process.end()
    again, _files = next_process(disk, config)
    assert again.manager.probe_reuse(TENANT, PROMPTS[0]) == 32
    forget(again.manager)
    again.end()
    last, _files = next_process(disk, config)
    assert last.manager.probe_reuse(TENANT, PROMPTS[0]) == 0
    last.end()


def test_a_path_that_is_back_has_what_was_not_forgotten(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.mkdir()
    config = durable_config(str(paths[0]), more_paths=[str(paths[1])])
    process = Process(config, journal=str(tmp_path / "journal"))
    process.run(PROMPTS[0], TENANT)
    process.settle()
    paths[1].rename(tmp_path / "away")
    process.run(PROMPTS[1])
    process.settle()
    with pytest.raises(StorageIOError, match="vanished while they were in use"):
        process.manager.invalidate_reuse_scope(TENANT)
    digest = process.manager.state_digest()
    process.end()
    assert rerun(tmp_path / "journal", HostDevice()).digest == digest, "the call is in the journal"
    (tmp_path / "away").rename(paths[1])
    again = Process(config)
    assert again.manager.probe_reuse(TENANT, PROMPTS[0]) == 32
    again.end()


def test_a_snapshot_that_is_refused_keeps_the_old_index(tmp_path: object, caplog: pytest.LogCaptureFixture) -> None:
    disk = LossyDisk()
    config = durable_config(str(tmp_path))
    first, _files = next_process(disk, config)
    first.run(PROMPTS[0])
    first.end()
    with caplog.at_level(logging.WARNING):
        second = Process(config, StubbornFiles(disk, rename=errno.EIO))
        assert [second.run(text) for text in PROMPTS] == [32, 20, 20, 20, 20]
        second.end()
    assert len([record for record in caplog.records if "keeps its old index" in record.message]) == 1
    third, _files = next_process(disk, config)
    assert [third.manager.probe_reuse(None, text) for text in PROMPTS] == [32] * 5
    third.end()


def test_damaged_pages_are_said_once_and_counted(tmp_path: object, caplog: pytest.LogCaptureFixture) -> None:
    disk = LossyDisk()
    config = durable_config(str(tmp_path))
    first, _files = next_process(disk, config)
    first.run(PROMPTS[0])
    first.end()
    (data,) = disk.paths("/data-")
    for position in range(0, len(disk.files[data].content), SLOT_BYTES):
        disk.files[data].content[position] ^= 1
    again, _files = next_process(disk, config)
    assert metric_of(again, "kvcm_restored_pages") == 8
    kv_cache = again.manager.create_kv_cache(None, PROMPTS[0])
    with caplog.at_level(logging.WARNING), pytest.raises(LoadFailed, match="are not what was written, and are lost") as failed:
        kv_cache.resume()
    assert "tried again" not in str(failed.value)
    kv_cache.close()
    assert len([record for record in caplog.records if "not what was written there; each is lost" in record.message]) == 1
    assert metric_of(again, "kvcm_damaged_pages") == 8
    again.end()


@pytest.mark.parametrize("seed", range(16))
def test_a_fuzzed_index_is_no_data(seed: int, tmp_path: object) -> None:
    """Bytes of the index are changed, cut off and added: the next process starts, and reads no wrong byte."""
    choices = random.Random(seed)
    disk = LossyDisk()
    config = durable_config(str(tmp_path))
    process, _files = next_process(disk, config)
    for text in PROMPTS:
        process.run(text)
    process.end()
    for path in disk.paths("/log-") + disk.paths("/snapshot-"):
        content = disk.files[path].content
        for _change in range(choices.randrange(4)):
            kind = choices.randrange(3)
            if kind == 0 and len(content) > 0:
                content[choices.randrange(len(content))] ^= 1 << choices.randrange(8)
            elif kind == 1:
                del content[choices.randrange(len(content) + 1) :]
            else:
                content.extend(choices.randbytes(choices.randrange(1, 40)))
    again, _files = next_process(disk, config)
    found = [again.manager.probe_reuse(None, text) for text in PROMPTS]
    assert all(number % TOKENS_PER_BLOCK == 0 and number <= 32 for number in found)
    assert [again.run(text) for text in PROMPTS][0] == found[0]
    again.end()
