"""Streams that are created for a while: what they touched is remembered as long as some stream may not have waited for it."""

import tracemalloc

import pytest

from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.testing.race_error import RaceError
from kv_cache_manager_v2.testing.simulated_device import SimulatedDevice

GPU = CacheTier.GPU_MEM
PAGE = 4096


def make_device(seed: int = 0) -> tuple[SimulatedDevice, int]:
    device = SimulatedDevice(seed, log_length=16)
    address = device.reserve_range(GPU, PAGE)
    device.map_memory(GPU, address, PAGE)
    return device, address


@pytest.mark.parametrize("seed", range(20))
def test_a_new_stream_does_not_come_after_one_that_was_destroyed(seed: int) -> None:
    """Whatever handle it has: the old one was not waited for."""
    device, address = make_device(seed)
    old = device.create_stream()
    device.fill(old, address, 64, 1)
    device.destroy_stream(old)
    device.drain()
    new = device.create_stream()
    with pytest.raises(RaceError):
        device.fill(new, address, 64, 2)


@pytest.mark.parametrize("seed", range(20))
def test_what_the_host_has_seen_is_before_the_new_stream_only(seed: int) -> None:
    device, address = make_device(seed)
    other = device.create_stream()
    device.fill(other, address + 64, 64, 1)
    for number in range(5):
        stream = device.create_stream()
        device.fill(stream, address, 64, number)
        device.synchronize_stream(stream)
        device.destroy_stream(stream)
    last = device.create_stream()
    device.fill(last, address, 64, 6)
    # The host has not seen this one, nor `other`, of which the new streams know nothing.
    with pytest.raises(RaceError):
        device.fill(other, address, 64, 7)
    with pytest.raises(RaceError):
        device.fill(last, address + 64, 64, 7)
    event = device.record_event(last)
    device.wait_event(other, event)
    device.fill(other, address, 64, 8)


def test_memory_does_not_grow_with_streams() -> None:
    """Clocks with a place for each stream that ever was would take 8 bytes for each pair of streams: 12 MB from the 1000th to
    the 2000th."""
    device, address = make_device()

    def come_and_go(num_streams: int) -> None:
        for number in range(num_streams):
            stream = device.create_stream()
            device.fill(stream, address, 64, number % 256)
            event = device.record_event(stream)
            device.synchronize_event(event)
            device.release_event(event)
            device.destroy_stream(stream)

    tracemalloc.start()
    try:
        come_and_go(1000)
        before = tracemalloc.get_traced_memory()[0]
        come_and_go(1000)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 200_000, f"{grown} bytes more after 1000 streams"
