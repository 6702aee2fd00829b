"""However long a manager runs, the index of its durable level stays in proportion to what it has; readers beside it, processes after it and
full disks notice nothing of the snapshots that are made meanwhile, and no call waits for them."""

import errno
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from durable_models import PROMPTS, SYSTEM, Process, durable_config
from lossy_files import LossyDisk, LossyFiles

from kv_cache_manager_v2 import EvictionPolicy
from kv_cache_manager_v2.durable.record_format import encode_weights
from kv_cache_manager_v2.metrics.metric_samples import take_samples

LEAST_BYTES = 2000
"""Of a log that a snapshot is made for; a mebibyte by default."""
GPU_SLOTS, DISK_SLOTS = 16, 64
SNAPSHOT_BYTES = (GPU_SLOTS + DISK_SLOTS) * (22 + 16) + DISK_SLOTS * (33 + 8) + 200
"""At most: a node of 4 tokens for each page, a page with one checksum for each slot of the disk; frames, a root and an end."""


def start(parent: object, files: LossyFiles | None = None) -> Process:
    process = Process(durable_config(str(parent), gpu_slots=GPU_SLOTS, disk_slots=DISK_SLOTS), files)
    durable = process.manager._shared.storage.durable
    assert durable is not None
    durable.writer.least_log_bytes = LEAST_BYTES
    return process


def prompt_of(number: int) -> list[int]:
    return SYSTEM + [10_000 + 100 * number + position for position in range(12)]


def count_index_bytes(disk: LossyDisk) -> int:
    return sum(len(disk.files[path].content) for path in disk.paths("/log-") + disk.paths("/snapshot-"))


def test_it_does_not_grow(tmp_path: object) -> None:
    """500 prompts with 3 blocks of their own, some 300 bytes each; there is room for 64 pages."""
    disk = LossyDisk()
    files = LossyFiles(disk)
    process = start(tmp_path, files)
    most = 0
    for number in range(500):
        assert process.run(prompt_of(number)) == (20 if number > 0 else 0)
        process.settle()
        most = max(most, count_index_bytes(disk))
    # A log of 4 times a snapshot, the next log meanwhile, the snapshot and the next one.
    assert most <= 2 * (4 * SNAPSHOT_BYTES + LEAST_BYTES) + 2 * SNAPSHOT_BYTES < 500 * 3 * (38 + 41) * 9 // 10
    expected = [process.manager.probe_reuse(None, prompt_of(number)) for number in range(500)]
    assert sum(expected) > 500 * 20
    files.kill()
    again = start(tmp_path, LossyFiles(disk))
    found = [again.manager.probe_reuse(None, prompt_of(number)) for number in range(500)]
    assert all(number >= least for number, least in zip(found, expected, strict=True))
    assert again.run(prompt_of(499)) == expected[499], "and its bytes are right"
    process.end()
    again.end()


def test_what_policies_learn_is_recorded_once_in_4096_pages(tmp_path: object) -> None:
    """It takes 31 KB. All counts of pages since the last record come up, from many batches of a few pages."""
    disk = LossyDisk()
    config = durable_config(str(tmp_path), gpu_slots=GPU_SLOTS, disk_slots=DISK_SLOTS, policy=EvictionPolicy.LEARNED)
    process = Process(config, LossyFiles(disk))
    storage = process.manager._shared.storage
    record = encode_weights(storage.save_weights())
    durable = storage.durable
    assert durable is not None and len(record) > 30_000

    def count_records() -> int:
        return sum(bytes(disk.files[path].content).count(record[:5]) for path in disk.paths("/log-"))

    for number in range(40):
        process.run(prompt_of(number))
    process.settle()
    num_written = durable.take_generations(0) - 1
    assert num_written > 60 and count_records() == 0
    durable.take_generations(4096 - num_written - 30)
    for number in range(40, 80):
        process.run(prompt_of(number))
    process.settle()
    assert count_records() == 1
    process.end()


def test_readers_beside_it_see_each_moment(tmp_path: Path) -> None:
    writer = start(tmp_path)
    for number in range(60):
        writer.run(prompt_of(number))
        writer.settle()
        writer.run(prompt_of(number + 1))  # its pages are being recorded while the reader begins
        reader = Process(durable_config(str(tmp_path), read_only=True))
        assert reader.run(prompt_of(number)) == 32
        reader.end()
    writer.end()


class SnapshotFiles(LossyFiles):
    """Writes to snapshots are refused while ``is_full``, and wait for ``gate``."""

    def __init__(self, disk: LossyDisk) -> None:
        super().__init__(disk)
        self.is_full = False
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.snapshots: set[int] = set()

    def open_named(self, path: str, is_direct: bool) -> int:
        file = super().open_named(path, is_direct)
        if "/snapshot-" in path:
            self.snapshots.add(file)
        return file

    def transfer(self, file: int, is_write: bool, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> int:
        if is_write and file in self.snapshots:
            self.begun.set()
            self.gate.wait()
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().transfer(file, is_write, addresses, sizes, offset)


def test_a_disk_that_has_no_room_for_it_costs_nothing(tmp_path: object, caplog: pytest.LogCaptureFixture) -> None:
    """The log grows on, and a warning says so each time that it has doubled; once there is room the index is small again."""
    disk = LossyDisk()
    files = SnapshotFiles(disk)
    process = start(tmp_path, files)
    process.settle()
    files.is_full = True
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            assert process.run(prompt_of(number)) == (20 if number > 0 else 0)
            process.settle()
    refused = [record for record in caplog.records if "keeps its old index, which grows" in record.message]
    assert 1 <= len(refused) <= 5, "at 2,000 bytes, 4,000, 8,000, ..."
    assert disk.paths(".new") == []
    (failed,) = [sample for sample in take_samples(process.manager) if sample.name == "kvcm_durable_failed"]
    assert all(value == 0 for _labels, value in failed.samples)
    grown = count_index_bytes(disk)
    files.is_full = False
    for number in range(100, 400):
        process.run(prompt_of(number))
        process.settle()
    assert count_index_bytes(disk) < grown + 300 * 3 * (38 + 41) // 2
    expected = [process.manager.probe_reuse(None, prompt_of(number)) for number in range(400)]
    files.kill()
    again = start(tmp_path, LossyFiles(disk))
    found = [again.manager.probe_reuse(None, prompt_of(number)) for number in range(400)]
    assert all(number >= least for number, least in zip(found, expected, strict=True))
    process.end()
    again.end()


def test_no_call_waits_for_it(tmp_path: object) -> None:
    """The disk answers no more while the snapshot is written: prompts are served all the same."""
    disk = LossyDisk()
    files = SnapshotFiles(disk)
    process = start(tmp_path, files)
    process.settle()
    files.begun.clear()
    files.gate.clear()
    for number in range(1000):
        process.run(prompt_of(number))
        if files.begun.is_set():
            break
    assert files.begun.is_set(), "a snapshot is written"
    for text in PROMPTS:
        assert process.run(text) == 20
    files.gate.set()
    process.settle()
    expected = [process.manager.probe_reuse(None, text) for text in PROMPTS]
    files.kill()
    again = start(tmp_path, LossyFiles(disk))
    assert [again.manager.probe_reuse(None, text) for text in PROMPTS] == expected
    process.end()
    again.end()
