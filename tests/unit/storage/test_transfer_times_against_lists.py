"""`TransferTimes` over a device whose timers a test sets: which are read, released and counted, and in which histogram they end."""

from contextlib import closing
from random import Random

import pytest
from forwarding_device import ForwardingDevice

from kv_cache_manager_v2.device.port import NO_TIMER, NOT_MEASURED, STILL_RUNNING
from kv_cache_manager_v2.stats.time_histogram import TimeHistogram
from kv_cache_manager_v2.storage.transfer_times import BOUNDS, MAX_PENDING, TransferTimes

Way = tuple[int, int]


class TimedDevice(ForwardingDevice):
    """``seconds``: by timer that runs or was stopped; ``started``: the stream of each that was not released."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[int, float] = {}
        self.started: dict[int, int] = {}
        self.stopped: list[tuple[int, int]] = []
        self.refuses = False
        self.next_timer = NO_TIMER

    def start_timer(self, stream: int) -> int:
        if self.refuses:
            return NO_TIMER
        self.next_timer += 1
        self.started[self.next_timer] = stream
        self.seconds[self.next_timer] = STILL_RUNNING
        return self.next_timer

    def stop_timer(self, stream: int, timer: int) -> None:
        assert self.started[timer] == stream
        self.stopped.append((stream, timer))

    def read_timer(self, timer: int) -> float:
        assert timer in self.started
        return self.seconds[timer]

    def release_timer(self, timer: int) -> None:
        del self.started[timer]


class PlainTimes:
    def __init__(self, num_levels: int, device: TimedDevice) -> None:
        self.device = device
        self.timers: dict[Way, list[int]] = {(source, target): [] for source in range(num_levels) for target in range(num_levels)}
        self.measured: dict[Way, list[float]] = {way: [] for way in self.timers}
        self.num_not_timed = 0

    def collect(self, way: Way) -> None:
        while self.timers[way] and self.device.seconds[self.timers[way][0]] != STILL_RUNNING:
            seconds = self.device.seconds[self.timers[way].pop(0)]
            if seconds == NOT_MEASURED:
                self.num_not_timed += 1
            else:
                self.measured[way].append(seconds)

    def histogram(self, way: Way) -> TimeHistogram:
        counts = [0] * (len(BOUNDS) + 1)
        for seconds in self.measured[way]:
            counts[sum(bound < seconds for bound in BOUNDS)] += 1
        return TimeHistogram(BOUNDS, counts, sum(self.measured[way]))


@pytest.mark.parametrize("seed", range(6))
def test_against_lists(seed: int) -> None:
    choices = Random(seed)
    num_levels = choices.choice((2, 3))
    with closing(TimedDevice()) as device:
        times, plain = TransferTimes(device, num_levels), PlainTimes(num_levels, device)
        assert times.num_not_timed == 0
        busy = choices.choice(list(plain.timers))
        for step in range(700):
            kind = choices.random()
            way = busy if choices.random() < 0.7 else choices.choice(list(plain.timers))
            device.refuses = choices.random() < 0.05
            if kind < 0.75:
                stream = choices.randrange(1, 5)
                plain.collect(way)
                timer = times.start(stream, *way)
                is_timed = len(plain.timers[way]) < MAX_PENDING and not device.refuses
                assert timer == (device.next_timer if is_timed else NO_TIMER)
                plain.num_not_timed += not is_timed
                if is_timed and choices.random() < 0.9:
                    times.stop(stream, timer, *way)
                    plain.timers[way].append(timer)
                    assert device.stopped.pop() == (stream, timer)
                elif is_timed:
                    times.cancel(timer)
                    plain.num_not_timed += 1
            elif kind < 0.95:
                # Ends of transfers: the oldest, but for some that end before those in front of them.
                running = [timer for timer in plain.timers[way] if device.seconds[timer] == STILL_RUNNING]
                # Sums of these are exact.
                ends = choices.choice((0.0, 0.25, 1.0, 2.0**-20, 16.0, NOT_MEASURED))
                for timer in running[: choices.choice((1, 1, 2, MAX_PENDING if step % 3 == 0 else 1))]:
                    device.seconds[timer] = ends
                if choices.random() < 0.2:
                    for timer in running[-2:]:
                        device.seconds[timer] = 0.5
            else:
                times.collect()
                for each in plain.timers:
                    plain.collect(each)
            assert times.num_not_timed == plain.num_not_timed, step
            for each in plain.timers:
                assert times.histogram(*each) == plain.histogram(each)
            assert sorted(device.started) == sorted(timer for timers in plain.timers.values() for timer in timers)
        assert plain.num_not_timed and any(plain.timers.values())
        times.close()
        for each, timers in plain.timers.items():
            plain.collect(each)
            plain.num_not_timed += len(timers)
            assert times.histogram(*each) == plain.histogram(each)
        assert (times.num_not_timed, device.started) == (plain.num_not_timed, {})


def test_one_more_than_may_run_is_not_timed() -> None:
    with closing(TimedDevice()) as device:
        times = TransferTimes(device, 2)
        for _ in range(MAX_PENDING):
            times.stop(1, times.start(1, 1, 0), 1, 0)
        assert (times.start(1, 1, 0), times.num_not_timed) == (NO_TIMER, 1)
        assert times.start(1, 0, 1) != NO_TIMER


@pytest.mark.parametrize("way", [(-1, 0), (0, -1), (2, 0), (0, 2), (-1, 2)])
def test_levels_that_there_are_not_have_no_histogram(way: Way) -> None:
    with closing(TimedDevice()) as device, pytest.raises(ValueError, match="there are 2 cache levels"):
        TransferTimes(device, 2).histogram(*way)
