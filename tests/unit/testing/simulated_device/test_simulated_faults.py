"""The n-th call of a kind fails, once, and has changed nothing."""

import pytest

from kv_cache_manager_v2.base.errors import OutOfMemoryError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.port import CopyBatch, HostKernel
from kv_cache_manager_v2.testing.simulated_device import SimulatedDevice

GPU = CacheTier.GPU_MEM
PAGE = 4096


class Nothing(HostKernel):
    def accesses(self):
        return []

    def run(self):
        pass


class Planned(Exception):
    pass


def calls_of(device):
    """One call of each kind; each can be made any number of times."""
    address = device.reserve_range(GPU, 64 * PAGE)
    device.map_memory(GPU, address, PAGE)
    stream = device.default_stream()
    device.fill(stream, address, PAGE, 0)
    event = device.record_event(stream)
    batch = CopyBatch(GPU, GPU, 16)
    batch.add(address, address + 16)
    mapped = iter(range(1, 64))
    return {
        "reserve": lambda: device.reserve_range(GPU, PAGE),
        "map": lambda: device.map_memory(GPU, address + next(mapped) * PAGE, PAGE),
        "copy": lambda: device.copy_batch(stream, batch),
        "fill": lambda: device.fill(stream, address, 16, 1),
        "launch": lambda: device.launch(stream, Nothing()),
        "record": lambda: device.record_event(stream),
        "wait": lambda: device.wait_event(stream, event),
        "create_stream": lambda: device.create_stream(),
        "synchronize": lambda: device.synchronize_event(event),
    }


@pytest.mark.parametrize("kind", ["reserve", "map", "copy", "fill", "launch", "record", "wait", "create_stream", "synchronize"])
def test_nth_call_fails_once(kind):
    device = SimulatedDevice(7, eager=False)
    calls = calls_of(device)
    device.faults.fail(kind, 3, Planned())
    before = (device.num_pending, device.num_open_events, device.num_open_streams, device.mapped_bytes(GPU))
    calls[kind]()
    calls[kind]()
    after = (device.num_pending, device.num_open_events, device.num_open_streams, device.mapped_bytes(GPU))
    assert device.faults.num_pending == 1
    with pytest.raises(Planned):
        calls[kind]()
    assert after == (device.num_pending, device.num_open_events, device.num_open_streams, device.mapped_bytes(GPU))
    assert kind == "reserve" or before != after  # the numbers would have shown a change
    assert (device.faults.num_pending, device.faults.num_fired) == (0, 1)
    calls[kind]()


def test_other_kinds_do_not_count():
    device = SimulatedDevice(0)
    calls = calls_of(device)
    device.faults.fail("copy", 1, Planned())
    calls["fill"]()
    with pytest.raises(Planned):
        calls["copy"]()


def test_several_faults():
    device = SimulatedDevice(0)
    calls = calls_of(device)
    device.faults.fail("fill", 1, Planned())
    device.faults.fail("fill", 2, OutOfMemoryError("planned too"))
    device.faults.fail("fill", 9, Planned())
    with pytest.raises(Planned):
        calls["fill"]()
    with pytest.raises(OutOfMemoryError):
        calls["fill"]()
    device.faults.clear()
    for _ in range(10):
        calls["fill"]()
    assert device.faults.num_fired == 2


def test_bad_plans():
    device = SimulatedDevice(0)
    with pytest.raises(ValueError):
        device.faults.fail("coffee", 1, Planned())
    with pytest.raises(ValueError):
        device.faults.fail("map", 0, Planned())
