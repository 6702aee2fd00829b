"""`HostDevice` while a disk takes its time, and when it fails (on every device: `test_failing_disks.py`). The disk is a fake
whose transfers the test holds back."""

import ctypes
import errno
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kv_cache_manager_v2.base.errors import LogicError, OutOfMemoryError, StorageIOError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.port import STILL_RUNNING, CopyBatch, HostKernel, MemoryAccess
from kv_cache_manager_v2.stats.statistics_clock import StatisticsClock

from .disk_bench import DISK, GPU, HOST, PAGE, TierBench
from .fake_files import FakeFiles


class Bench(TierBench):
    """16 pages of each tier; page ``n`` of the GPU's and the host's begins as bytes ``n``."""

    def __init__(self, num_disk_threads: int = 2, clock: StatisticsClock | None = None) -> None:
        files = FakeFiles()
        self.device = HostDevice(PAGE, files=files, num_disk_threads=num_disk_threads, clock=clock)
        super().__init__(self.device, files)
        for page in range(16):
            ctypes.memset(self.address(GPU, page), page, PAGE)

    def copy(self, stream: int, dst: CacheTier, src: CacheTier, pairs: Sequence[tuple[int, int]], num_bytes: int = PAGE) -> None:
        batch = self.batch(dst, src, pairs, num_bytes)
        self.device.copy_batch(stream, batch)
        batch.clear()
        batch.add(1, 1)

    def close(self) -> None:
        super().close()
        self.device.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


class Note(HostKernel):
    def __init__(self, bench: Bench, tier: CacheTier, page: int) -> None:
        self.bench, self.tier, self.page = bench, tier, page
        self.seen = -1

    def accesses(self) -> Sequence[MemoryAccess]:
        return [MemoryAccess(self.bench.address(self.tier, self.page), PAGE, False)]

    def run(self) -> None:
        self.seen = self.bench.value(self.tier, self.page)


def test_nothing_waits_for_the_disk_but_events_are_open(bench: Bench) -> None:
    device = bench.device
    stream = device.create_stream()
    bench.files.hold()
    before = device.record_event(stream)
    bench.copy(stream, DISK, GPU, [(0, 5), (1, 6)])
    behind = device.record_event(stream)
    # What is enqueued behind it waits for its turn, and the batch was the caller's again at once.
    device.fill(stream, bench.address(GPU, 5), PAGE, 77)
    bench.copy(stream, HOST, GPU, [(0, 5)])
    assert device.is_event_done(before)
    for _ in range(10):
        assert not device.is_event_done(behind)
    assert bench.value(GPU, 5) == 5 and bench.value(HOST, 0) == 0
    # Another stream goes on.
    device.fill(device.default_stream(), bench.address(GPU, 9), PAGE, 99)
    assert bench.value(GPU, 9) == 99
    bench.files.let_go()
    device.synchronize_event(behind)
    assert device.is_event_done(behind)
    device.synchronize_stream(stream)
    assert bench.value(GPU, 5) == 77 and bench.value(HOST, 0) == 77
    bench.copy(stream, HOST, DISK, [(2, 0), (3, 1)])
    device.synchronize_stream(stream)
    assert (bench.value(HOST, 2), bench.value(HOST, 3)) == (5, 6)


def test_copies_beside_the_caller_are_another_threads() -> None:
    bench = Bench(num_disk_threads=1)
    device = bench.device
    disk, aside, user = device.create_stream(), device.create_stream(), device.create_stream()
    bench.files.hold()
    bench.copy(disk, DISK, GPU, [(0, 5)])
    bench.files.wait_until_held(1)  # the only thread is busy
    batch = CopyBatch(HOST, GPU, PAGE)
    batch.add(bench.address(HOST, 0), bench.address(GPU, 5))
    batch.add(bench.address(HOST, 7), bench.address(GPU, 6))
    device.copy_beside(aside, batch)
    batch.clear()
    batch.add(1, 1)
    copied = device.record_event(aside)
    device.wait_event(user, copied)
    device.fill(user, bench.address(GPU, 5), PAGE, 99)  # the next user of the page
    assert not device.is_event_done(copied)
    assert (bench.value(HOST, 0), bench.value(HOST, 7), bench.value(GPU, 5)) == (0, 7, 5)
    bench.files.let_go()
    device.synchronize_stream(user)
    assert device.is_event_done(copied)
    assert (bench.value(HOST, 0), bench.value(HOST, 7), bench.value(GPU, 5)) == (5, 6, 99)
    bench.close()


def test_copies_beside_the_caller_are_refused_as_others_are(bench: Bench) -> None:
    device = bench.device
    stream = device.create_stream()
    good = CopyBatch(HOST, GPU, PAGE)
    good.add(bench.address(HOST, 0), bench.address(GPU, 5))
    to_disk = CopyBatch(DISK, GPU, PAGE)
    to_disk.add(bench.address(DISK, 0), bench.address(GPU, 5))
    with pytest.raises(ValueError, match="copy_batch"):
        device.copy_beside(stream, to_disk)
    with pytest.raises(ValueError, match="positive"):
        device.copy_beside(stream, CopyBatch(HOST, GPU, 0))
    outside = CopyBatch(HOST, GPU, PAGE)
    outside.add(bench.address(HOST, 16), bench.address(GPU, 5))
    with pytest.raises(LogicError, match="not all of the 4096 bytes of HOST_MEM"):
        device.copy_beside(stream, outside)
    with pytest.raises(LogicError, match="stream"):
        device.copy_beside(stream + 1000, good)
    device.copy_beside(stream, CopyBatch(HOST, GPU, PAGE))  # nothing
    device.synchronize_stream(stream)
    assert bench.value(HOST, 0) == 0


def test_polling_finishes_what_is_queued(bench: Bench) -> None:
    device = bench.device
    stream, other = device.create_stream(), device.create_stream()
    bench.copy(stream, DISK, HOST, [(page, 15 - page) for page in range(16)])
    written = device.record_event(stream)
    device.wait_event(other, written)
    bench.copy(other, GPU, DISK, [(page, page) for page in range(16)])
    read = device.record_event(other)
    for _ in range(10_000_000):
        if device.is_event_done(read):
            break
    assert [bench.value(GPU, page) for page in range(16)] == list(range(15, -1, -1))


def test_a_wait_for_an_open_event_holds_back_the_other_stream(bench: Bench) -> None:
    device = bench.device
    stream, other = device.create_stream(), device.create_stream()
    bench.copy(stream, DISK, HOST, [(0, 3)])
    device.synchronize_stream(stream)
    bench.files.hold()
    bench.copy(stream, GPU, DISK, [(1, 0)])
    arrived = device.record_event(stream)
    device.wait_event(other, arrived)
    device.release_event(arrived)
    # The handle is given out again, for something that is done.
    for _ in range(20):
        device.release_event(device.record_event(device.default_stream()))
    bench.copy(other, GPU, GPU, [(2, 1)])
    assert bench.value(GPU, 2) == 2
    bench.files.let_go()
    device.synchronize_stream(other)
    assert bench.value(GPU, 2) == 3


def test_a_kernel_waits_for_what_is_before_it(bench: Bench) -> None:
    device = bench.device
    stream = device.create_stream()
    bench.copy(stream, DISK, HOST, [(0, 8)])
    bench.copy(stream, GPU, DISK, [(1, 0)])
    kernel = Note(bench, GPU, 1)
    device.launch(stream, kernel)
    assert kernel.seen == 8


def test_several_jobs_of_one_stream_are_under_way_at_once(bench: Bench) -> None:
    device = bench.device
    bench.files.hold()
    bench.copy(0, DISK, HOST, [(0, 0)])
    event = device.record_event(0)
    bench.copy(0, DISK, GPU, [(1, 1)])
    # Nobody calls the device meanwhile.
    bench.files.wait_until_held(2)
    bench.files.let_go()
    device.synchronize_event(event)
    device.synchronize_stream(0)


def test_jobs_that_touch_the_same_bytes_run_in_order_without_the_callers_help(bench: Bench) -> None:
    device = bench.device
    bench.files.hold()
    for source in range(8):
        bench.copy(0, DISK, HOST, [(0, source)])
        bench.copy(0, DISK, DISK, [(1 + source, 0)])
    bench.files.let_go()
    bench.copy(0, GPU, DISK, [(page, page) for page in range(1, 9)])
    device.synchronize_stream(0)
    assert [bench.value(GPU, page) for page in range(1, 9)] == list(range(8))


def test_neighbours_on_the_disk_are_one_transfer_wherever_they_are_in_memory(bench: Bench) -> None:
    bench.copy(0, DISK, HOST, [(page, 7 * page % 16) for page in range(16)])
    bench.device.synchronize_stream(0)
    assert bench.files.transfers == [(True, 0, 16 * PAGE, 16)]
    bench.copy(0, GPU, DISK, [(3 * page % 16, page) for page in (5, 4, 3, 9, 10, 0)])
    bench.device.synchronize_stream(0)
    assert sorted(bench.files.transfers[1:]) == [(False, 0, PAGE, 1), (False, 3 * PAGE, 3 * PAGE, 3), (False, 9 * PAGE, 2 * PAGE, 2)]
    for page in (5, 4, 3, 9, 10, 0):
        assert bench.value(GPU, 3 * page % 16) == 7 * page % 16


def test_work_of_a_destroyed_stream_still_runs(bench: Bench) -> None:
    device = bench.device
    stream = device.create_stream()
    bench.files.hold()
    bench.copy(stream, DISK, HOST, [(0, 4)])
    bench.copy(stream, GPU, DISK, [(0, 0)])
    event = device.record_event(stream)
    device.destroy_stream(stream)
    with pytest.raises(LogicError):
        device.synchronize_stream(stream)
    assert not device.is_event_done(event)
    bench.files.let_go()
    device.synchronize_event(event)
    assert bench.value(GPU, 0) == 4


@pytest.mark.parametrize("is_busy", [False, True])
def test_nothing_is_kept_of_a_destroyed_stream(bench: Bench, is_busy: bool) -> None:
    """Also if all that it had is done by then."""
    anything: Any = bench.device
    stream = bench.device.create_stream()
    bench.files.hold()
    bench.copy(stream, DISK, HOST, [(0, 4)])
    assert len(anything._pending._streams) == 1
    if not is_busy:
        bench.files.let_go()
        bench.device.synchronize_stream(stream)
    assert anything._pending.is_busy == is_busy
    bench.device.destroy_stream(stream)
    assert len(anything._pending._streams) == 0


def test_settling_waits_and_leaves_failures_to_be_raised(bench: Bench) -> None:
    device = bench.device
    assert device.runs_kernels_at_once and not HostDevice(calls_wait_for_disk=False).runs_kernels_at_once
    bench.files.fail(errno.EIO, reads=True)
    stream, other = device.create_stream(), device.create_stream()
    bench.copy(stream, DISK, GPU, [(0, 5)])
    bench.copy(stream, GPU, DISK, [(2, 0)])
    behind = device.record_event(stream)
    device.wait_event(other, behind)
    device.fill(other, bench.address(GPU, 7), PAGE, 70)
    device.settle_stream(other)
    assert bench.value(GPU, 7) == 70
    with pytest.raises(StorageIOError):
        device.synchronize_stream(other)
    device.synchronize_stream(stream)
    assert device.is_event_done(behind)


def test_a_launch_tells_of_a_failed_read(bench: Bench) -> None:
    bench.files.fail(errno.EIO, reads=True)
    bench.copy(0, GPU, DISK, [(0, 0)])
    with pytest.raises(StorageIOError):
        bench.device.launch(0, Note(bench, GPU, 0))
    bench.device.synchronize_stream(0)


def test_an_event_recorded_after_the_failure_is_behind_it_too(bench: Bench) -> None:
    device = bench.device
    bench.files.fail(errno.EIO, reads=True)
    bench.copy(0, GPU, DISK, [(0, 0)])
    first = device.record_event(0)
    other = device.create_stream()
    device.wait_event(other, first)
    device.release_event(first)
    bench.copy(other, HOST, GPU, [(0, 0)])
    device.destroy_stream(other)
    while bench.files.transfers == []:
        pass
    late = device.record_event(0)
    with pytest.raises(StorageIOError):
        device.synchronize_event(late)


def test_unmapping_ends_the_rescue(bench: Bench) -> None:
    device = bench.device
    bench.files.fail(errno.EIO, writes=True)
    bench.copy(0, DISK, HOST, [(12, 6), (2, 5)])
    device.synchronize_stream(0)
    bench.ranges[DISK].resize(8 * PAGE)
    bench.ranges[DISK].resize(16 * PAGE)
    bench.copy(0, GPU, DISK, [(0, 12), (1, 2)])
    device.synchronize_stream(0)
    assert bench.value(GPU, 0) == 0, "a fresh file reads as zeros"
    assert bench.value(GPU, 1) == 5


def test_a_full_disk_is_an_error_when_mapping_and_changes_nothing() -> None:
    files = FakeFiles(room_bytes=20 * PAGE)
    device = HostDevice(PAGE, files=files)
    memory = MemoryRange(device, DISK, 64 * PAGE, "/nowhere")
    memory.resize(16 * PAGE)
    with pytest.raises(OutOfMemoryError) as caught:
        memory.resize(21 * PAGE)
    text = str(caught.value)
    assert "/nowhere" in text and f"{5 * PAGE} bytes" in text and f"{4 * PAGE} are free" in text and "quota" in text
    assert memory.mapped_bytes == 16 * PAGE
    memory.resize(20 * PAGE)
    memory.close()
    device.close()
    assert files.used_bytes == 0 and files.contents == {}


def test_two_folders_are_two_files(bench: Bench) -> None:
    device = bench.device
    second = MemoryRange(device, DISK, 4 * PAGE, "/elsewhere")
    second.resize(4 * PAGE)
    assert len(bench.files.contents) == 2
    bench.copy(0, DISK, HOST, [(0, 3)])
    batch = CopyBatch(DISK, DISK, PAGE)
    batch.add(second.address + PAGE, bench.address(DISK, 0))
    device.copy_batch(0, batch)
    batch = CopyBatch(HOST, DISK, PAGE)
    batch.add(bench.address(HOST, 1), second.address + PAGE)
    device.copy_batch(0, batch)
    device.synchronize_stream(0)
    assert bench.value(HOST, 1) == 3
    second.close()


def test_misuse_of_the_disk(bench: Bench) -> None:
    device = bench.device
    disk, host = bench.address(DISK, 0), bench.address(HOST, 0)
    for dst_tier, dst, src_tier, src in (
        (DISK, disk + 16 * PAGE, HOST, host),
        (HOST, host, DISK, disk + 16 * PAGE - 1),
        (DISK, host, HOST, host),
        (GPU, disk, DISK, disk),
    ):
        batch = CopyBatch(dst_tier, src_tier, PAGE)
        batch.add(dst, src)
        with pytest.raises(LogicError):
            device.copy_batch(0, batch)
    with pytest.raises(LogicError):
        device.fill(0, disk, PAGE, 1)
    with pytest.raises(LogicError):
        device.disk_failure(host)
    with pytest.raises(ValueError):
        HostDevice(num_disk_threads=0)
    with pytest.raises(LogicError):
        device.close()
    assert bench.files.transfers == []


class StepClock(StatisticsClock):
    def __init__(self) -> None:
        self.now = 100.0

    def seconds(self) -> float:
        return self.now


def test_a_timer_stops_when_the_disk_is_through() -> None:
    clock = StepClock()
    bench = Bench(clock=clock)
    device = bench.device
    first, second = device.create_stream(), device.create_stream()
    bench.files.hold()
    timers = []
    for pages in ([(0, 5)], [(1, 6), (9, 7)]):
        timer = device.start_timer(first)
        bench.copy(first, DISK, GPU, pages)
        device.stop_timer(first, timer)
        timers.append(timer)
        clock.now += 10
    # What waits for that stream begins behind it, whenever it was enqueued.
    event = device.record_event(first)
    device.wait_event(second, event)
    timer = device.start_timer(second)
    bench.copy(second, HOST, GPU, [(0, 5)])
    device.stop_timer(second, timer)
    timers.append(timer)
    assert [device.read_timer(timer) for timer in timers] == [STILL_RUNNING] * 3
    clock.now += 30
    bench.files.let_go()
    # The workers finish at 150, and read the clock by themselves: that nobody looks until later is none of their time.
    bench.files.wait_for_transfers(3)
    device.synchronize_event(event)
    clock.now += 1000
    device.synchronize_stream(second)
    # Both of the first stream were done at 150. The first began at 100, the second behind it; the copy was not done before
    # somebody came for it.
    assert device.read_timer(timers[0]) == 50
    assert device.read_timer(timers[1]) == 0
    assert device.read_timer(timers[2]) >= 0
    for timer in timers:
        device.release_timer(timer)
    device.release_event(event)
    bench.close()


def test_a_timer_where_nothing_is_queued() -> None:
    clock = StepClock()
    bench = Bench(clock=clock)
    stream = bench.device.default_stream()
    timer = bench.device.start_timer(stream)
    bench.copy(stream, HOST, GPU, [(0, 5)])
    clock.now += 3
    bench.device.stop_timer(stream, timer)
    clock.now += 3
    assert bench.device.read_timer(timer) == 3
    bench.device.release_timer(timer)
    bench.close()


def test_a_timer_raises_no_failure(bench: Bench) -> None:
    device = bench.device
    stream = device.create_stream()
    bench.copy(stream, DISK, GPU, [(0, 5)])
    device.synchronize_stream(stream)
    bench.files.fail(errno.EIO, reads=True)
    timer = device.start_timer(stream)
    bench.copy(stream, HOST, DISK, [(0, 0)])
    device.stop_timer(stream, timer)
    event = device.record_event(stream)
    with pytest.raises(StorageIOError):
        device.synchronize_event(event)
    assert device.read_timer(timer) >= 0
    device.release_timer(timer)
    device.release_event(event)
