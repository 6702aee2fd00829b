"""A disk that fails under `HostDevice`, and under `CudaDevice` over a driver whose streams run late: it is told, and nothing is lost."""

import ctypes
import errno
import logging
import os
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from kv_cache_manager_v2.base.errors import StorageIOError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.memory_range import MemoryRange

from . import test_cuda_disk, test_host_disk
from .disk_bench import DISK, GPU, HOST

Bench: TypeAlias = test_cuda_disk.Bench | test_host_disk.Bench

MAKERS: dict[str, Callable[[], Bench]] = {
    "host": test_host_disk.Bench, **{f"cuda-{seed}": lambda seed=seed: test_cuda_disk.Bench(seed) for seed in range(4)}
}  # fmt: skip


@pytest.fixture(params=MAKERS)
def make_bench(request: pytest.FixtureRequest) -> Callable[[], Bench]:
    return MAKERS[request.param]


@pytest.fixture
def bench(make_bench: Callable[[], Bench]) -> Iterator[Bench]:
    bench = make_bench()
    yield bench
    bench.close()


def test_a_failed_read_is_told_once_behind_it_and_nowhere_else(bench: Bench) -> None:
    device = bench.device
    stream, other, third = (device.create_stream() for _ in range(3))
    bench.copy(stream, DISK, HOST, [(0, 3), (1, 4)])
    device.synchronize_stream(stream)
    before = device.record_event(stream)
    bench.files.fail(errno.EIO, reads=True)
    bench.copy(stream, GPU, DISK, [(0, 1)])
    device.fill(stream, bench.address(GPU, 1), bench.slot_bytes, 50)
    behind = device.record_event(stream)
    device.wait_event(other, behind)
    device.fill(other, bench.address(GPU, 2), bench.slot_bytes, 51)
    far_behind = device.record_event(other)
    device.synchronize_event(before)
    device.synchronize_stream(third)
    with pytest.raises(StorageIOError) as caught:
        device.synchronize_event(far_behind)
    error = caught.value
    assert (error.path, error.address, error.num_bytes, error.is_write) == ("/nowhere", bench.address(DISK, 1), bench.slot_bytes, False)
    assert os.strerror(errno.EIO) in str(error) and "DISK" in str(error)
    # The caller has been told of the failed read, which can still be asked for, once.
    assert list(device.take_failed_reads()) == [error]
    assert list(device.take_failed_reads()) == []
    # The streams went on, and no later call reports it.
    for event in (before, behind, far_behind):
        assert device.is_event_done(event)
    device.synchronize_stream(stream)
    device.synchronize_stream(other)
    assert (bench.value(GPU, 1), bench.value(GPU, 2)) == (50, 51)
    # A read that fails says nothing of writes, and the next one works.
    assert device.disk_failure(bench.address(DISK, 0)) is None
    bench.files.fail(errno.EIO)
    bench.copy(stream, GPU, DISK, [(0, 0)])
    bench.copy(stream, HOST, GPU, [(9, 0)])
    device.synchronize_stream(stream)
    assert bench.value(HOST, 9) == 3


def test_a_failed_read_that_no_call_raised_is_logged_at_close(make_bench: Callable[[], Bench], caplog: pytest.LogCaptureFixture) -> None:
    bench = make_bench()
    bench.files.fail(errno.EIO, reads=True)
    bench.copy(bench.device.default_stream(), GPU, DISK, [(0, 0)])
    if isinstance(bench, test_cuda_disk.Bench):
        bench.driver.run_to_end()
    with caplog.at_level(logging.ERROR):
        bench.close()
    assert [record.levelname for record in caplog.records] == ["ERROR"] and os.strerror(errno.EIO) in caplog.text


@pytest.mark.parametrize("how", ["poll", "stream", "event"])
@pytest.mark.parametrize("dst", [GPU, HOST])
def test_every_way_to_ask_tells_of_a_failed_read(bench: Bench, dst: CacheTier, how: str) -> None:
    device = bench.device
    stream = device.create_stream()
    bench.files.fail(errno.EIO, reads=True)
    bench.copy(stream, dst, DISK, [(0, 0)])
    event = device.record_event(stream)
    with pytest.raises(StorageIOError):
        if how == "poll":
            while not device.is_event_done(event):
                pass
        elif how == "stream":
            device.synchronize_stream(stream)
        else:
            device.synchronize_event(event)
    assert device.is_event_done(event)
    device.synchronize_stream(stream)


def test_a_failed_write_loses_nothing_and_is_remembered(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    device = bench.device
    stream = device.create_stream()
    other_range = MemoryRange(device, DISK, bench.slot_bytes, "/elsewhere")
    bench.files.fail(errno.ENOSPC, writes=True)
    with caplog.at_level(logging.ERROR):
        bench.copy(stream, DISK, HOST, [(2, 6), (3, 7), (9, 8)])
        device.synchronize_stream(stream)
        bench.copy(stream, GPU, HOST, [(0, 9)])
        bench.copy(stream, DISK, GPU, [(4, 0)])
        event = device.record_event(stream)
        device.synchronize_event(event)
    assert len(caplog.records) == 1 and "/nowhere" in caplog.text and os.strerror(errno.ENOSPC) in caplog.text
    failure = device.disk_failure(bench.address(DISK, 15))
    assert failure is not None and failure.is_write and failure.path == "/nowhere"
    assert device.disk_failure(other_range.address) is None
    other_range.close()
    # Other pages have the source slots by now; the bytes come from memory.
    device.fill(stream, bench.address(GPU, 0), bench.slot_bytes, 0)
    for page in (6, 7, 8, 9):
        ctypes.memset(bench.address(HOST, page), 0, bench.slot_bytes)
    bench.files.fail(errno.EIO, writes=True, reads=True)
    bench.copy(stream, GPU, DISK, [(1, 3), (2, 2), (3, 9), (4, 4)])
    device.synchronize_stream(stream)
    assert [bench.value(GPU, page) for page in (1, 2, 3, 4)] == [7, 6, 8, 9]
    # From disk to disk as well: what cannot be written is kept.
    bench.copy(stream, DISK, DISK, [(12, 3)])
    bench.copy(stream, GPU, DISK, [(5, 12)])
    device.synchronize_stream(stream)
    assert bench.value(GPU, 5) == 7
