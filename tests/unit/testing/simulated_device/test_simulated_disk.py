"""The simulated device's disk: copies late and in any order, races seen, reads and writes that fail."""

import logging

import pytest

from kv_cache_manager_v2.base.errors import LogicError, OutOfMemoryError, StorageIOError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.port import CopyBatch
from kv_cache_manager_v2.testing.race_error import RaceError, RaceKind
from kv_cache_manager_v2.testing.simulated_device import SimulatedDevice

GPU, HOST, DISK = CacheTier.GPU_MEM, CacheTier.HOST_MEM, CacheTier.DISK
PAGE = 4096


class Bench:
    """Four written pages of host memory, four of a disk, four of the GPU."""

    def __init__(self, seed: int = 0, eager: bool | None = False) -> None:
        self.device = SimulatedDevice(seed, eager=eager)
        self.disk = self.device.reserve_disk_range("/somewhere", 4 * PAGE)
        self.host = self.device.reserve_range(HOST, 4 * PAGE)
        self.gpu = self.device.reserve_range(GPU, 4 * PAGE)
        for tier, address in ((DISK, self.disk), (HOST, self.host), (GPU, self.gpu)):
            self.device.map_memory(tier, address, 4 * PAGE)
        for page in range(4):
            self.device.host_write(self.host + page * PAGE, bytes([10 + page]) * PAGE)

    def copy(self, stream: int, dst_tier: CacheTier, src_tier: CacheTier, pairs: list[tuple[int, int]]) -> None:
        first = {DISK: self.disk, HOST: self.host, GPU: self.gpu}
        batch = CopyBatch(dst_tier, src_tier, PAGE)
        for dst, src in pairs:
            batch.add(first[dst_tier] + dst * PAGE, first[src_tier] + src * PAGE)
        self.device.copy_batch(stream, batch)


def test_a_copy_to_the_disk_waits_in_its_stream() -> None:
    bench = Bench()
    device = bench.device
    bench.copy(0, DISK, HOST, [(0, 1)])
    bench.copy(0, GPU, DISK, [(2, 0)])
    assert device.num_pending == 2
    device.synchronize_stream(0)
    assert device.host_read(bench.gpu + 2 * PAGE, PAGE) == b"\x0b" * PAGE


def test_a_race_on_the_disk_is_seen() -> None:
    bench = Bench()
    device = bench.device
    stream = device.create_stream()
    bench.copy(0, DISK, HOST, [(0, 1)])
    with pytest.raises(RaceError) as caught:
        bench.copy(stream, GPU, DISK, [(0, 0)])
    assert caught.value.kind == RaceKind.READ_AFTER_WRITE
    with pytest.raises(RaceError):
        bench.copy(stream, DISK, HOST, [(0, 2)])
    event = device.record_event(0)
    device.wait_event(stream, event)
    bench.copy(stream, DISK, HOST, [(0, 2)])
    with pytest.raises(RaceError) as caught:
        device.unmap_memory(DISK, bench.disk, PAGE)
    assert caught.value.kind == RaceKind.UNMAP_IN_USE


@pytest.mark.parametrize("how", ["poll", "stream", "event"])
def test_a_failed_read_is_raised_once_after_it(how: str) -> None:
    bench = Bench()
    device = bench.device
    other = device.create_stream()
    bench.copy(0, DISK, HOST, [(0, 0), (1, 1)])
    device.faults.fail("disk_read", 2, OSError(5, "planned"))
    bench.copy(0, GPU, DISK, [(0, 0), (1, 1)])
    before = device.record_event(0)
    bench.copy(0, GPU, DISK, [(2, 1), (3, 1)])
    behind = device.record_event(0)
    device.synchronize_event(before)
    device.synchronize_stream(other)
    with pytest.raises(StorageIOError) as caught:
        if how == "poll":
            while not device.is_event_done(behind):
                pass
        elif how == "stream":
            device.synchronize_stream(0)
        else:
            device.synchronize_event(behind)
    error = caught.value
    assert (error.path, error.address, error.num_bytes, error.is_write) == ("/somewhere", bench.disk + PAGE, PAGE, False)
    assert "planned" in str(error)
    # The caller has been told; the failed read can still be asked for, once: another object, as a traceback keeps what it met.
    asked = device.take_failed_reads()
    assert [(one.address, one.num_bytes, str(one)) for one in asked] == [(error.address, error.num_bytes, str(error))]
    assert list(device.take_failed_reads()) == []
    device.synchronize_stream(0)
    assert device.is_event_done(behind)
    assert device.disk_failure(bench.disk) is None
    # The first copy of the batch is the one that failed.
    assert device.host_read(bench.gpu + 2 * PAGE, PAGE) == b"\xe7" * PAGE
    assert device.host_read(bench.gpu + 3 * PAGE, PAGE) == b"\x0b" * PAGE


def test_a_write_that_fails_loses_nothing_and_is_remembered(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    device = bench.device
    device.faults.fail("disk_write", 1, OSError(28, "planned"))
    device.faults.fail("disk_write", 2, OSError(28, "planned again"))
    with caplog.at_level(logging.ERROR):
        bench.copy(0, DISK, HOST, [(0, 3)])
        bench.copy(0, DISK, HOST, [(1, 2)])
        assert device.disk_failure(bench.disk) is None
        device.synchronize_stream(0)
    assert len(caplog.records) == 1
    failure = device.disk_failure(bench.disk + 3 * PAGE)
    assert failure is not None and failure.is_write and failure.path == "/somewhere" and "planned" in str(failure)
    bench.copy(0, GPU, DISK, [(0, 0), (1, 1)])
    device.synchronize_stream(0)
    assert device.host_read(bench.gpu, 2 * PAGE) == b"\x0d" * PAGE + b"\x0c" * PAGE


def test_a_full_disk_and_misuse() -> None:
    bench = Bench()
    device = bench.device
    more = device.reserve_disk_range("/elsewhere", 8 * PAGE)
    device.set_memory_limit(DISK, 6 * PAGE)
    with pytest.raises(OutOfMemoryError):
        device.map_memory(DISK, more, 3 * PAGE)
    device.map_memory(DISK, more, 2 * PAGE)
    device.faults.fail("map", 1, OutOfMemoryError("planned"))
    device.set_memory_limit(DISK, 60 * PAGE)
    with pytest.raises(OutOfMemoryError):
        device.map_memory(DISK, more + 2 * PAGE, PAGE)
    with pytest.raises(ValueError):
        device.reserve_range(DISK, PAGE)
    with pytest.raises(ValueError):
        device.reserve_disk_range("/somewhere", PAGE + 1)
    with pytest.raises(LogicError):
        device.disk_failure(bench.gpu)
    with pytest.raises(RaceError):
        device.fill(0, bench.disk, PAGE, 1)
