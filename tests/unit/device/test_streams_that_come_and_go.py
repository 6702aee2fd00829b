"""Timelines are recycled: streams that come and go cost nothing for ever, and waits still wait for enough."""

import random
import tracemalloc

import pytest
from small_models import config_of

from kv_cache_manager_v2 import CacheTier, KVCacheManager
from kv_cache_manager_v2.device.stream_order import NO_POINT, StreamOrder
from kv_cache_manager_v2.device.external_device import ExternalDevice
from kv_cache_manager_v2.testing import SimulatedDevice

NUM_KEPT = 3
NUM_SLOTS = 6
SLOT_BYTES = 8


@pytest.mark.parametrize("seed", range(30))
def test_no_race_between_streams_that_come_and_go(seed: int) -> None:
    """Slots are written on one stream after the other, each of which is destroyed at some time; the device sees every race."""
    rng = random.Random(seed)
    device = SimulatedDevice(seed)
    address = device.reserve_range(CacheTier.GPU_MEM, 4096)
    device.map_memory(CacheTier.GPU_MEM, address, 4096)
    order = StreamOrder(device, NUM_KEPT)
    ready = [NO_POINT] * NUM_SLOTS
    live: dict[int, int] = {}  # stream: timeline
    most_live = 0
    idle: list[int] = []  # streams that exist and that no sequence uses
    for _ in range(150):
        kind = rng.random()
        if not live or (kind < 0.25 and len(live) < 4):
            stream = idle.pop() if idle and rng.random() < 0.5 else device.create_stream()
            live[stream] = order.enter(stream)
            most_live = max(most_live, len(live))
        elif kind < 0.5:
            stream = rng.choice(list(live))
            order.leave(live.pop(stream))
            if rng.random() < 0.7:
                device.destroy_stream(stream)
            else:
                idle.append(stream)
        else:
            stream = rng.choice(list(live))
            timeline = live[stream]
            slots = rng.sample(range(NUM_SLOTS), 2)
            for slot in slots:
                order.wait(timeline, ready[slot])
                device.fill(stream, address + slot * SLOT_BYTES, SLOT_BYTES, slot)
            mark = order.mark(timeline)
            for slot in slots:
                ready[slot] = order.advance(ready[slot], timeline, mark)
        # Each of them was LIVE at the same time as the others, or one of those that are kept.
        assert order.num_timelines <= max(NUM_KEPT, most_live + 1) + 1  # and the stream of `_join`
    assert not device.races
    for timeline in live.values():
        order.leave(timeline)
    order.synchronize_all()
    order.close()
    assert device.num_open_events == 0


def test_stream_that_takes_over_waits_for_the_last_one() -> None:
    device = SimulatedDevice(0, eager=False)
    order = StreamOrder(device, 1)
    first, second = device.create_stream(), device.create_stream()
    timeline = order.enter(first)
    device.hold_stream(first)
    mark = order.mark(timeline)
    order.leave(timeline)
    again = order.enter(second)
    assert again == timeline and order.stream_of(again) == second
    order.leave(again)  # records behind all that the second stream waits for
    assert not order.is_done(mark)
    device.release_stream(first)
    point = order.mark(order.enter(second))
    order.synchronize(point)
    assert order.is_done(mark)
    order.close()


def test_stream_that_takes_over_waits_also_where_an_earlier_event_was_refused() -> None:
    """Of the refused event the host has waited for all work so far. What came later has an event of its own, and who waits for the new
    stream, as for a later point of the same timeline, is after that as well."""
    device = SimulatedDevice(0, eager=False)
    order = StreamOrder(device, 1)
    first, second, third = (device.create_stream() for _ in range(3))
    device.faults.fail("record", 1, RuntimeError("no more events"))
    timeline = order.enter(first)
    device.hold_stream(first)
    mark = order.mark(timeline)
    order.leave(timeline)
    assert order.enter(second) == timeline
    other = order.enter(third)
    order.wait(other, order.mark(timeline))
    order.wait(other, mark)
    assert not order.is_done(order.mark(other))
    device.release_stream(first)
    order.synchronize(order.mark(other))
    assert order.is_done(mark)
    order.leave(timeline)
    order.leave(other)
    order.close()


def test_stream_in_use_is_never_taken_over() -> None:
    order = StreamOrder(ExternalDevice(), 1)
    timelines = [order.enter(stream) for stream in (1, 2, 3)]
    assert len(set(timelines)) == 3
    order.leave(timelines[1])
    assert order.enter(4) == timelines[1]
    # The old handle is unknown now, and nothing is free to be taken over.
    assert order.enter(2) not in timelines


def serve_on_new_streams(manager: KVCacheManager, num_streams: int) -> None:
    for _ in range(num_streams):
        stream = manager.device.create_stream()
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume(stream) and kv_cache.resize(4)
            kv_cache.commit([1, 2, 3, 4])
        manager.device.destroy_stream(stream)


def test_short_lived_streams_keep_memory_flat() -> None:
    """`make soak` does it a million times."""
    with KVCacheManager(config_of(), device=ExternalDevice()) as manager:
        serve_on_new_streams(manager, 300)
        tracemalloc.start()
        serve_on_new_streams(manager, 100)
        before = tracemalloc.get_traced_memory()[0]
        serve_on_new_streams(manager, 2000)
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    # 64 timelines with up to 64 events each, and a tick for each, of 28 bytes and a place in a list. 2000 timelines would take a
    # megabyte without any event.
    assert grown < 64 * 64 * 2 * 36


def test_only_points_of_slow_streams_are_slow() -> None:
    device = SimulatedDevice(0)
    order = StreamOrder(device, NUM_KEPT)
    quick, slow = order.enter(device.create_stream()), order.enter_slow(device.create_stream())
    assert [order.is_slow(point) for point in (NO_POINT, order.mark(quick), order.mark(slow))] == [False, False, True]
    order.close()
