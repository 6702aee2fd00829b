"""Streams run late and in any legal order; what waits for what is kept; a seed decides the rest."""

import pytest

from kv_cache_manager_v2.base.errors import LogicError
from kv_cache_manager_v2.device.port import HostKernel
from kv_cache_manager_v2.testing.simulated_device import SimulatedDevice


class Note(HostKernel):
    """Appends to a list when it runs."""

    def __init__(self, notes, note):
        self.notes = notes
        self.note = note

    def accesses(self):
        return []

    def run(self):
        self.notes.append(self.note)


class Failure(HostKernel):
    def accesses(self):
        return []

    def run(self):
        raise ZeroDivisionError("this kernel fails")


def launch_some(device, num_streams=3, per_stream=4):
    streams = [device.create_stream() for _ in range(num_streams)]
    notes = []
    for number in range(per_stream):
        for stream in streams:
            device.launch(stream, Note(notes, (stream, number)))
    return streams, notes


def test_one_seed_gives_one_order():
    def order(seed):
        device = SimulatedDevice(seed)
        _streams, notes = launch_some(device)
        device.drain()
        return notes

    orders = [order(seed) for seed in range(30)]
    assert orders == [order(seed) for seed in range(30)]
    assert len({tuple(notes) for notes in orders}) > 20


def test_lateness_is_drawn_and_can_be_set():
    def num_run(seed, eager=None):
        _streams, notes = launch_some(SimulatedDevice(seed, eager=eager))
        return len(notes)

    drawn = {num_run(seed) for seed in range(40)}
    assert 0 in drawn and len(drawn) > 4
    assert {num_run(seed, eager=False) for seed in range(20)} == {0}
    assert {num_run(seed, eager=True) for seed in range(20)} == {12}


def test_synchronize_event_need_not_run_more():
    device = SimulatedDevice(0, eager=False)
    stream, notes = device.create_stream(), []
    device.launch(stream, Note(notes, 0))
    event = device.record_event(stream)
    device.launch(stream, Note(notes, 1))
    device.synchronize_event(event)
    assert notes == [0]
    assert device.num_pending == 1
    assert device.num_host_waits == 1


def test_step_and_drain():
    device = SimulatedDevice(5, eager=False)
    _streams, notes = launch_some(device)
    assert device.step() == 1 and len(notes) == 1
    assert device.step(4) == 4 and len(notes) == 5
    assert device.drain() == 7 and len(notes) == 12
    assert device.drain() == 0 and device.step() == 0


def test_held_event_stays_open():
    for seed in range(20):
        device = SimulatedDevice(seed, eager=False)
        a, b = device.create_stream(), device.create_stream()
        notes = []
        device.launch(a, Note(notes, "a"))
        event = device.record_event(a)
        device.hold(event)
        device.wait_event(b, event)
        device.launch(b, Note(notes, "b"))
        device.drain()
        assert notes == ["a"]
        assert not any(device.is_event_done(event) for _ in range(50))
        with pytest.raises(LogicError):
            device.synchronize_stream(b)
        device.release(event)
        device.synchronize_stream(b)
        assert notes == ["a", "b"]
        assert device.is_event_done(event)
        with pytest.raises(LogicError):
            device.hold(event)
        with pytest.raises(LogicError):
            device.release(event)


def test_held_stream_runs_nothing():
    device = SimulatedDevice(1)
    a = device.create_stream()
    notes = []
    device.hold_stream(a)
    device.launch(a, Note(notes, "a"))
    device.drain()
    with pytest.raises(LogicError):
        device.synchronize_stream(a)
    assert notes == []
    device.release_stream(a)
    device.synchronize_stream(a)
    assert notes == ["a"]


def test_unseen_failing_kernel_is_raised_at_close():
    device = SimulatedDevice(0, eager=False)
    device.launch(device.default_stream(), Failure())
    with pytest.raises(ZeroDivisionError):
        device.close()
    device.close()
    with pytest.raises(LogicError):
        device.create_stream()
