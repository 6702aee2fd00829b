"""`CudaDevice` and its disk, over a driver whose streams run late: nothing waits, nothing leaks, failures are told."""

import errno
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kv_cache_manager_v2.base.errors import CudaError, KVCacheManagerError, StorageIOError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.cuda_device import CudaDevice
from kv_cache_manager_v2.device.disk_extent import DiskExtent
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.port import CopyBatch

from .async_cuda_driver import AsyncCudaDriver
from .disk_bench import DISK, GPU, HOST, PAGE, TierBench
from .fake_files import FakeFiles

MIB = 1 << 20
SLOT = 256 << 10


class Bench(TierBench):
    def __init__(self, seed: int = 0, *, can_wait: bool = True, staging_bytes: int = 2 * MIB, **options: Any) -> None:
        self.driver = AsyncCudaDriver(seed)
        self.driver.can_wait_for_values = can_wait
        files = FakeFiles()
        self.device = CudaDevice(driver=self.driver, granularity_bytes=PAGE, files=files, staging_bytes=staging_bytes, **options)
        super().__init__(self.device, files, SLOT)

    def copy(self, stream: int, dst: CacheTier, src: CacheTier, pairs: list[tuple[int, int]]) -> None:
        self.device.copy_batch(stream, self.batch(dst, src, pairs))

    def values(self, tier: CacheTier, slots: list[int]) -> list[int]:
        return [self.value(tier, slot) for slot in slots]

    def close(self) -> None:
        super().close()
        self.device.close()
        assert self.driver.live() == {}
        assert self.files.contents == {}


@pytest.fixture(params=range(4))
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(request.param)
    yield bench
    bench.close()


ALL = list(range(16))


def test_from_the_gpu_to_the_disk_and_back_through_two_staging_slots(bench: Bench) -> None:
    device = bench.device
    stream = device.create_stream()
    bench.copy(stream, GPU, HOST, [(slot, 15 - slot) for slot in ALL])
    # Scattered on both sides: every copy a piece of its own.
    bench.copy(stream, DISK, GPU, [(5 * slot % 16, slot) for slot in ALL])
    device.fill(stream, bench.address(GPU, 0), 16 * SLOT, 99)
    bench.copy(stream, GPU, DISK, [(slot, 5 * slot % 16) for slot in ALL])
    device.synchronize_stream(stream)
    assert bench.values(GPU, ALL) == [15 - slot for slot in ALL]


def test_the_host_waits_for_nothing_and_events_are_open(bench: Bench) -> None:
    device = bench.device
    stream = device.create_stream()
    bench.copy(stream, DISK, HOST, [(slot, slot) for slot in ALL])
    device.synchronize_stream(stream)
    bench.files.hold()
    before = device.record_event(stream)
    # More than the staging holds.
    bench.copy(stream, GPU, DISK, [(slot, slot) for slot in ALL])
    behind = device.record_event(stream)
    bench.copy(stream, HOST, GPU, [(slot, 15 - slot) for slot in ALL])
    bench.copy(stream, DISK, GPU, [(slot, slot) for slot in ALL])
    device.synchronize_event(before)
    bench.files.wait_until_held(1)
    for _ in range(200):
        assert not device.is_event_done(behind)
    bench.files.let_go()
    device.synchronize_stream(stream)
    assert device.is_event_done(behind)
    assert bench.values(HOST, ALL) == [15 - slot for slot in ALL]


def test_a_worker_waits_for_the_stream(bench: Bench) -> None:
    """The fake's streams stand still while no call needs them; so no byte may reach the disk."""
    device = bench.device
    stream = device.create_stream()
    for value in range(30):
        device.fill(stream, bench.address(GPU, 0), SLOT, value)
    bench.copy(stream, DISK, GPU, [(3, 0)])
    device.synchronize_stream(stream)
    content = next(iter(bench.files.contents.values()))
    assert set(content[3 * SLOT : 4 * SLOT]) == {29}


def test_where_streams_cannot_wait_the_copy_does(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        bench = Bench(1, can_wait=False)
    assert "block" in caplog.text and "NOT_SUPPORTED" in caplog.text
    stream = bench.device.create_stream()
    bench.copy(stream, GPU, HOST, [(slot, 15 - slot) for slot in ALL])
    bench.copy(stream, DISK, GPU, [(5 * slot % 16, slot) for slot in ALL])
    bench.copy(stream, GPU, DISK, [(15 - slot, 5 * slot % 16) for slot in ALL])
    bench.device.synchronize_stream(stream)
    assert bench.values(GPU, ALL) == ALL
    bench.close()


def test_no_stream_waits_for_a_disk_where_it_is_not_to() -> None:
    """Then what an engine enqueues behind a copy is never behind a disk."""
    bench = Bench(1, streams_wait_for_disk=False)
    stream = bench.device.create_stream()
    bench.driver.calls.clear()
    bench.copy(stream, GPU, HOST, [(slot, 15 - slot) for slot in ALL])
    bench.copy(stream, DISK, GPU, [(5 * slot % 16, slot) for slot in ALL])
    bench.copy(stream, GPU, DISK, [(15 - slot, 5 * slot % 16) for slot in ALL])
    assert "cuStreamWaitValue32" not in bench.driver.calls and "cuStreamWriteValue32" in bench.driver.calls
    bench.device.synchronize_stream(stream)
    assert bench.values(GPU, ALL) == ALL
    bench.close()
    with pytest.raises(TypeError, match="streams_wait_for_disk"):
        CudaDevice(driver=AsyncCudaDriver(0), streams_wait_for_disk=1)


def test_launches_with_the_lock_held_behind_a_disk() -> None:
    """2,000 launches fill the queue of a stream; an extension that holds the interpreter's lock meanwhile would keep the worker from
    raising the flag. With ``streams_wait_for_disk=False`` there is no flag to raise."""
    own = Bench(3, streams_wait_for_disk=False)
    stream = own.device.create_stream()
    own.copy(stream, DISK, HOST, [(slot, slot) for slot in ALL])
    own.device.synchronize_stream(stream)
    own.driver.holds_gil = True
    own.files.hold()
    is_through = threading.Event()

    def let_go() -> None:
        own.files.wait_until_held(1)
        # Not before all is launched, unless the copy below blocks, as it is to: then that never comes.
        is_through.wait(1.0)
        own.files.let_go()

    helper = threading.Thread(target=let_go)
    helper.start()
    try:
        own.copy(stream, GPU, DISK, [(slot, slot) for slot in ALL])
        for _ in range(2000):
            own.device.fill(stream, own.address(GPU, 0), SLOT, 0)
    finally:
        is_through.set()
        helper.join()
    own.device.synchronize_stream(stream)
    own.close()


@pytest.mark.parametrize("waits", [True, False])
def test_more_pieces_than_there_are_flags(waits: bool) -> None:
    """One copy of 600 staging slots' worth takes two flags a slot, and there are 1,024 words. Where the copy itself waits for each job,
    all of them are done when the words run out; the jobs after that are still known: the last one fails, and that is told."""
    driver = AsyncCudaDriver(3, eager=True)
    files = FakeFiles()
    device = CudaDevice(
        driver=driver, granularity_bytes=PAGE, files=files, staging_bytes=2 * MIB if waits else MIB, streams_wait_for_disk=waits
    )
    ranges = {tier: MemoryRange(device, tier, 4 * MIB, "/nowhere" if tier == DISK else None) for tier in (GPU, DISK)}
    for memory in ranges.values():
        memory.resize(4 * MIB)
    stream = device.create_stream()
    device.fill(stream, ranges[GPU].address, MIB, 7)

    def answer(is_write: bool, offset: int, num_bytes: int) -> int:
        if not is_write and offset >= MIB:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return num_bytes

    files.answer = answer
    for dst, src in ((DISK, GPU), (GPU, DISK)):
        batch = CopyBatch(dst, src, MIB)
        for number in range(600):
            offset = MIB if number == 599 else 0
            batch.add(ranges[dst].address + offset, ranges[src].address + offset)
        device.copy_batch(stream, batch)
    with pytest.raises(StorageIOError):
        device.synchronize_stream(stream)
    for memory in ranges.values():
        memory.close()
    device.close()
    assert driver.live() == {}


def test_every_call_of_the_driver_may_fail() -> None:
    """Whatever fails while a disk is in use is raised; nothing leaks, no call waits for ever, and the next copy works."""
    num_failed = 0
    for nth in range(1, 400):
        bench = Bench(nth, staging_bytes=MIB)
        stream = bench.device.create_stream()
        bench.driver.fail_call(nth)
        try:
            bench.copy(stream, GPU, HOST, [(0, 5)])
            bench.copy(stream, DISK, GPU, [(slot, 0) for slot in range(0, 12, 2)])
            bench.copy(stream, GPU, DISK, [(slot, slot) for slot in range(0, 12, 2)])
            bench.device.synchronize_stream(stream)
        except (CudaError, StorageIOError) as error:
            assert bench.driver.failed_call in str(error)
        is_over = bench.driver.failed_call == ""
        num_failed += not is_over
        if bench.driver.failed_call == "cuCtxPopCurrent":
            # Logged and left as it is; the real driver would have left the context current as well.
            bench.driver.context_stack.pop()
        bench.driver.fail_call(0)
        while True:
            try:
                bench.device.synchronize_stream(stream)
                break
            except KVCacheManagerError:
                pass
        bench.copy(stream, DISK, HOST, [(1, 3)])
        bench.copy(stream, GPU, DISK, [(1, 1)])
        bench.device.synchronize_stream(stream)
        assert bench.values(GPU, [1]) == [3]
        bench.close()
        if is_over:
            break
    assert num_failed > 20


def test_what_a_broken_context_kept_from_the_disk_is_lost_and_never_read(caplog: pytest.LogCaptureFixture) -> None:
    """The stream never comes to where it says that the bytes are there."""
    bench = Bench(5)
    bench.driver.eager = False
    device = bench.device
    stream = device.create_stream()
    bench.copy(stream, DISK, HOST, [(1, 1)])
    device.synchronize_stream(stream)
    with bench.driver.stopped_streams():
        bench.copy(stream, DISK, HOST, [(3, 7)])
        bench.driver.break_context()
    with caplog.at_level(logging.ERROR):
        # Waits for the workers, and for nothing else.
        bench.ranges[DISK].resize(8 * SLOT)
    failure = device.disk_failure(bench.address(DISK, 0))
    assert failure is not None and "never written" in str(failure) and "ILLEGAL_ADDRESS" in str(failure)
    assert "these bytes are lost" in caplog.text
    transfers = device._disk._workers.transfers
    with_lost, without = (DiskExtent(device._disk_ranges.file_of(bench.address(DISK, slot)), bench.address(DISK, slot)) for slot in (3, 1))
    for extent in (with_lost, without):
        extent.add(bench.address(HOST, 0), SLOT)
        extent.make_ready()
    error = transfers.read(with_lost)
    assert error is not None and "never written" in str(error)
    assert transfers.read(without) is None and bench.values(HOST, [0]) == [1]
    bench.driver.heal()
    bench.close()


def test_staging_is_taken_with_the_first_range_only() -> None:
    driver = AsyncCudaDriver(0, pinnable_bytes=MIB)
    device = CudaDevice(driver=driver, files=FakeFiles())
    assert driver.registrations == {}
    with pytest.raises(KVCacheManagerError, match="pin"):
        device.reserve_disk_range("/nowhere", 2 * MIB)
    assert driver.registrations == {}
    driver.pinnable_bytes = 1 << 30
    for _ in range(3):
        device.release_range(DISK, device.reserve_disk_range("/nowhere", 2 * MIB), 2 * MIB)
    assert sum(driver.registrations.values()) == (32 * MIB) + PAGE
    device.close()
    assert driver.live() == {}


def test_staging_is_whole_slots() -> None:
    for wrong in (0, MIB - 1, MIB + PAGE):
        with pytest.raises(ValueError):
            CudaDevice(driver=AsyncCudaDriver(0), staging_bytes=wrong)
    with pytest.raises(ValueError):
        CudaDevice(driver=AsyncCudaDriver(0), num_disk_threads=0)
