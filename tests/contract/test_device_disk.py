"""The disk tier in the order of streams: events behind copies from and to it, on every device."""

import select

import pytest

from kv_cache_manager_v2.base.errors import LogicError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.port import CopyBatch
from kv_cache_manager_v2.device.wakeup import Wakeup

from .device_under_test import DISK, GPU, HOST, DeviceUnderTest

SIZE = 64 << 10


def copy(bench: DeviceUnderTest, stream: int, dst_tier: CacheTier, dst: int, src_tier: CacheTier, src: int) -> None:
    batch = CopyBatch(dst_tier, src_tier, SIZE)
    batch.add(dst, src)
    bench.device.copy_batch(stream, batch)


def test_down_and_up_again_on_one_stream(bench: DeviceUnderTest) -> None:
    """A slot that is filled, written to the disk, and filled anew at once; eight times."""
    device = bench.device
    gpu, disk = bench.memory(GPU, SIZE), bench.memory(DISK, 8 * SIZE)
    back = bench.memory(HOST, 8 * SIZE)
    stream = device.create_stream()
    for value in range(8):
        device.fill(stream, gpu, SIZE, value)
        copy(bench, stream, DISK, disk + value * SIZE, GPU, gpu)
    for value in range(8):
        copy(bench, stream, HOST, back + value * SIZE, DISK, disk + value * SIZE)
    device.synchronize_stream(stream)
    bench.check(HOST, back, b"".join(bytes([value]) * SIZE for value in range(8)))
    device.destroy_stream(stream)


def test_streams_pass_pages_on_through_the_disk(bench: DeviceUnderTest) -> None:
    """One writes, the other reads, and neither overtakes; the host waits for nothing but the end."""
    device = bench.device
    gpu, disk = bench.memory(GPU, 2 * SIZE), bench.memory(DISK, SIZE)
    writer, reader = device.create_stream(), device.create_stream()
    for value in range(10):
        device.fill(writer, gpu, SIZE, value)
        copy(bench, writer, DISK, disk, GPU, gpu)
        written = device.record_event(writer)
        device.wait_event(reader, written)
        device.release_event(written)
        copy(bench, reader, GPU, gpu + SIZE, DISK, disk)
        read = device.record_event(reader)
        device.wait_event(writer, read)
        device.release_event(read)
    device.synchronize_stream(reader)
    bench.check(GPU, gpu + SIZE, b"\x09" * SIZE)
    device.synchronize_stream(writer)
    device.destroy_stream(writer)
    device.destroy_stream(reader)


def test_kernels_that_run_at_once_find_a_settled_stream(bench: DeviceUnderTest) -> None:
    """Whatever the device, `settle_stream` may be called at any time; where kernels run at once, everything before it is done."""
    device = bench.device
    gpu, disk = bench.memory(GPU, SIZE), bench.memory(DISK, SIZE)
    writer, reader = device.create_stream(), device.create_stream()
    for value in range(5):
        device.fill(writer, gpu, SIZE, value)
        copy(bench, writer, DISK, disk, GPU, gpu)
        copy(bench, writer, GPU, gpu, DISK, disk)
        written = device.record_event(writer)
        device.wait_event(reader, written)
        device.settle_stream(reader)
        if device.runs_kernels_at_once:
            assert device.is_event_done(written)
            bench.check(GPU, gpu, bytes([value]) * SIZE)
        device.release_event(written)
        device.settle_stream(reader)
    for stream in (writer, reader):
        device.synchronize_stream(stream)
        device.destroy_stream(stream)
    device.settle_stream(writer)  # perhaps postponed until the stream was destroyed


def test_polling_ends_behind_the_disk(bench: DeviceUnderTest) -> None:
    device = bench.device
    gpu, disk = bench.memory(GPU, 2 * SIZE), bench.memory(DISK, SIZE)
    stream = device.create_stream()
    device.fill(stream, gpu, SIZE, 6)
    copy(bench, stream, DISK, disk, GPU, gpu)
    copy(bench, stream, GPU, gpu + SIZE, DISK, disk)
    event = device.record_event(stream)
    for _ in range(10_000_000):
        if device.is_event_done(event):
            break
    else:
        raise AssertionError("an event behind the disk never got done")
    bench.check(GPU, gpu + SIZE, b"\x06" * SIZE)
    device.release_event(event)
    device.destroy_stream(stream)


def test_a_destroyed_stream_finishes_its_copies(bench: DeviceUnderTest) -> None:
    device = bench.device
    gpu, disk = bench.memory(GPU, 2 * SIZE), bench.memory(DISK, SIZE)
    stream = device.create_stream()
    device.fill(stream, gpu, SIZE, 3)
    copy(bench, stream, DISK, disk, GPU, gpu)
    copy(bench, stream, GPU, gpu + SIZE, DISK, disk)
    event = device.record_event(stream)
    device.destroy_stream(stream)
    device.synchronize_event(event)
    device.release_event(event)
    bench.check(GPU, gpu + SIZE, b"\x03" * SIZE)


def test_a_disk_that_works_has_no_failure(bench: DeviceUnderTest) -> None:
    device = bench.device
    disk, host = bench.memory(DISK, SIZE), bench.memory(HOST, SIZE)
    bench.write(DISK, disk, b"\x01" * SIZE)
    assert device.disk_failure(disk) is None
    assert device.disk_failure(disk + SIZE - 1) is None
    with pytest.raises(LogicError):
        device.disk_failure(host)


def test_a_thread_in_select_is_woken_behind_the_disk(bench: DeviceUnderTest) -> None:
    device = bench.device
    wakeup = Wakeup()
    gpu, disk = bench.memory(GPU, SIZE), bench.memory(DISK, SIZE)
    stream = device.create_stream()
    for _ in range(2):
        device.fill(stream, gpu, SIZE, 6)
        copy(bench, stream, DISK, disk, GPU, gpu)
        is_told = device.wake_after(stream, wakeup)
        device.synchronize_stream(stream)
        assert (select.select([wakeup.file_descriptor], [], [], 60 if is_told else 0)[0] != []) is is_told
        wakeup.take()
    # Of a device that only runs its streams when it is asked, no thread waits in `select`.
    assert is_told is not device.name.startswith("simulated")
    device.wake_after(stream, wakeup)
    device.forget_wakeup(wakeup)
    wakeup.close()
    device.fill(stream, gpu, SIZE, 7)
    device.synchronize_stream(stream)
    device.destroy_stream(stream)
