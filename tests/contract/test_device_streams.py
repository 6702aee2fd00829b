"""Streams and events: order on a stream, order between streams, handles that belong to the caller and are recycled."""

import random

import pytest

from kv_cache_manager_v2.base.errors import LogicError
from kv_cache_manager_v2.device.port import NO_TIMER, STILL_RUNNING, CopyBatch

from .device_under_test import GPU, HOST, DeviceUnderTest

SIZE = 64 << 10


def copy(bench: DeviceUnderTest, stream: int, dst: int, src: int, num_bytes: int = SIZE) -> None:
    """Level 0 to level 0."""
    batch = CopyBatch(GPU, GPU, num_bytes)
    batch.add(dst, src)
    bench.device.copy_batch(stream, batch)


def test_work_on_one_stream_runs_in_order(bench: DeviceUnderTest) -> None:
    device = bench.device
    a = bench.memory(GPU, 5 * SIZE)
    stream = device.create_stream()
    for value in range(4):
        device.fill(stream, a, SIZE, value)
        copy(bench, stream, a + (1 + value) * SIZE, a)
    device.synchronize_stream(stream)
    bench.check(GPU, a, b"".join(bytes([value]) * SIZE for value in (3, 0, 1, 2, 3)))
    device.destroy_stream(stream)


def test_the_default_stream_is_a_stream(bench: DeviceUnderTest) -> None:
    device = bench.device
    a = bench.memory(GPU, 2 * SIZE)
    stream = device.default_stream()
    device.fill(stream, a, SIZE, 9)
    event = device.record_event(stream)
    device.wait_event(stream, event)
    copy(bench, stream, a + SIZE, a)
    device.synchronize_stream(stream)
    device.release_event(event)
    bench.check(GPU, a, b"\x09" * (2 * SIZE))
    with pytest.raises(LogicError):
        device.destroy_stream(stream)


def test_handles_of_streams_are_told_from_others(bench: DeviceUnderTest) -> None:
    """A device that cannot tell, since streams of others are welcome too, takes any handle."""
    device = bench.device
    stream = device.create_stream()
    device.require_stream(stream)
    device.require_stream(device.default_stream())
    device.destroy_stream(stream)
    if device.is_software:
        with pytest.raises(LogicError, match=str(stream)):
            device.require_stream(stream)


def test_a_waiting_stream_runs_behind_the_event(bench: DeviceUnderTest) -> None:
    device = bench.device
    a = bench.memory(GPU, 3 * SIZE)
    first, second = device.create_stream(), device.create_stream()
    for round_number in range(10):
        device.fill(first, a, SIZE, round_number)
        filled = device.record_event(first)
        device.wait_event(second, filled)
        device.release_event(filled)
        copy(bench, second, a + SIZE, a)
        copied = device.record_event(second)
        # The next fill may not overtake the copy that reads.
        device.wait_event(first, copied)
        device.release_event(copied)
        copy(bench, second, a + 2 * SIZE, a + SIZE)
    device.synchronize_stream(second)
    bench.check(GPU, a, b"\x09" * (3 * SIZE))
    device.synchronize_stream(first)
    device.destroy_stream(first)
    device.destroy_stream(second)


def test_a_wait_holds_after_the_event_was_released_and_its_handle_reused(bench: DeviceUnderTest) -> None:
    device = bench.device
    a = bench.memory(GPU, 2 * SIZE)
    producer, consumer, other = (device.create_stream() for _ in range(3))
    device.fill(producer, a, SIZE, 5)
    event = device.record_event(producer)
    device.wait_event(consumer, event)
    device.release_event(event)
    # Whatever the device recycles is now recorded on a stream with nothing on it.
    for _ in range(5):
        device.release_event(device.record_event(other))
    copy(bench, consumer, a + SIZE, a)
    device.synchronize_stream(consumer)
    bench.check(GPU, a + SIZE, b"\x05" * SIZE)
    for stream in (producer, consumer, other):
        device.synchronize_stream(stream)
        device.destroy_stream(stream)


def test_waits_pass_order_on(bench: DeviceUnderTest) -> None:
    """A -> B -> C -> D, each stream waiting for the one before only."""
    device = bench.device
    a = bench.memory(GPU, 5 * SIZE)
    streams = [device.create_stream() for _ in range(4)]
    device.fill(streams[0], a, SIZE, 77)
    events: list[int] = []
    for index, stream in enumerate(streams):
        if index > 0:
            device.wait_event(stream, events[-1])
        copy(bench, stream, a + (index + 1) * SIZE, a + index * SIZE)
        events.append(device.record_event(stream))
    device.synchronize_event(events[-1])
    # The last event is behind all the others.
    assert all(device.is_event_done(event) for event in events)
    bench.check(GPU, a, b"\x4d" * (5 * SIZE))
    for event, stream in zip(events, streams, strict=True):
        device.release_event(event)
        device.destroy_stream(stream)


def test_an_event_is_done_once_synchronised_and_stays_done(bench: DeviceUnderTest) -> None:
    device = bench.device
    a = bench.memory(GPU, SIZE)
    stream = device.create_stream()
    early = device.record_event(stream)
    device.fill(stream, a, SIZE, 1)
    event = device.record_event(stream)
    device.synchronize_event(event)
    assert device.is_event_done(event) and device.is_event_done(early)
    # A fresh wait on an event that is done is legal and costs nothing.
    device.wait_event(stream, event)
    device.fill(stream, a, SIZE, 2)
    device.synchronize_stream(stream)
    assert device.is_event_done(event)
    bench.check(GPU, a, b"\x02" * SIZE)
    device.release_event(early)
    device.release_event(event)
    device.destroy_stream(stream)


def test_polling_ends(bench: DeviceUnderTest) -> None:
    device = bench.device
    a = bench.memory(GPU, SIZE)
    stream = device.create_stream()
    device.fill(stream, a, SIZE, 3)
    event = device.record_event(stream)
    for _ in range(1_000_000):
        if device.is_event_done(event):
            break
    else:
        raise AssertionError("an event that all callers poll for was never done")
    bench.check(GPU, a, b"\x03" * SIZE)
    device.release_event(event)
    device.destroy_stream(stream)


def test_event_handles_are_distinct_while_held_and_recycled_for_ever(bench: DeviceUnderTest) -> None:
    device = bench.device
    stream = device.create_stream()
    generator = random.Random(7)
    held: list[int] = []
    for _ in range(3000):
        if held and generator.random() < 0.45:
            event = held.pop(generator.randrange(len(held)))
            device.release_event(event)
            with pytest.raises(LogicError):
                device.is_event_done(event)
        else:
            held.append(device.record_event(stream))
            assert len(set(held[-50:])) == len(held[-50:])
    assert len(set(held)) == len(held)
    device.synchronize_stream(stream)
    assert all(device.is_event_done(event) for event in held)
    for event in held:
        device.release_event(event)
    if bench.fake_driver is not None:
        # Pooled: never more driver events than handles were held at once.
        assert len(bench.fake_driver.events) < 1000
    device.destroy_stream(stream)


def test_misuse_of_events(bench: DeviceUnderTest) -> None:
    device = bench.device
    stream = device.create_stream()
    event = device.record_event(stream)
    device.release_event(event)
    for use in (
        lambda: device.release_event(event),
        lambda: device.wait_event(stream, event),
        lambda: device.is_event_done(event),
        lambda: device.synchronize_event(event),
        lambda: device.release_event(123456789),
        lambda: device.wait_event(stream, 0),
        lambda: device.is_event_done(-1),
    ):
        with pytest.raises(LogicError):
            use()
    # Recycled by now or not, the old handle stays dead.
    fresh = device.record_event(stream)
    if fresh != event:
        with pytest.raises(LogicError):
            device.release_event(event)
    device.synchronize_event(fresh)
    device.release_event(fresh)
    device.destroy_stream(stream)


def test_work_enqueued_before_a_stream_is_destroyed_still_runs(bench: DeviceUnderTest) -> None:
    device = bench.device
    a = bench.memory(GPU, 2 * SIZE)
    stream = device.create_stream()
    for value in range(5):
        device.fill(stream, a, SIZE, value)
    copy(bench, stream, a + SIZE, a)
    event = device.record_event(stream)
    device.destroy_stream(stream)
    with pytest.raises(LogicError):
        device.destroy_stream(stream)
    device.synchronize_event(event)
    assert device.is_event_done(event)
    device.release_event(event)
    bench.check(GPU, a, b"\x04" * (2 * SIZE))


def test_many_streams(bench: DeviceUnderTest) -> None:
    device = bench.device
    count = 20
    a = bench.memory(GPU, count * 4096)
    host = bench.memory(HOST, count * 4096)
    streams = [device.create_stream() for _ in range(count)]
    assert len(set(streams)) == count
    for index, stream in enumerate(streams):
        device.fill(stream, a + index * 4096, 4096, index)
        batch = CopyBatch(HOST, GPU, 4096)
        batch.add(host + index * 4096, a + index * 4096)
        device.copy_batch(stream, batch)
    for index, stream in enumerate(streams):
        device.synchronize_stream(stream)
        bench.check(HOST, host + index * 4096, bytes([index]) * 4096)
        device.destroy_stream(stream)


def test_timers_are_for_figures_only(bench: DeviceUnderTest) -> None:
    device = bench.device
    a = bench.memory(GPU, 2 * SIZE)
    stream = device.create_stream()
    handles: set[int] = set()
    for _ in range(3):
        timer = device.start_timer(stream)
        if timer == NO_TIMER:
            assert "simulated" in device.name, "only what looks at no clock cannot time"
            break
        handles.add(timer)
        copy(bench, stream, a + SIZE, a)
        # Never stopped: it goes back all the same.
        device.release_timer(device.start_timer(stream))
        device.stop_timer(stream, timer)
        seconds = device.read_timer(timer)
        assert seconds == STILL_RUNNING or seconds >= 0
        device.synchronize_stream(stream)
        seconds = device.read_timer(timer)
        assert 0 <= seconds < 60 and device.read_timer(timer) == seconds
        device.release_timer(timer)
        with pytest.raises(LogicError):
            device.read_timer(timer)
        with pytest.raises(LogicError):
            device.release_timer(timer)
    device.destroy_stream(stream)
