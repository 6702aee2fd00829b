"""How long transfers between tiers take is measured on the device, if asked for; no call waits for it and nothing else changes."""

from pathlib import Path
from typing import Any

import pytest
from refused_work import Refused, RefusingHostDevice
from small_models import manager_of
from tiered_models import Bench, tiered_config

from kv_cache_manager_v2 import HostDevice, LogicError, PageMoveError, StatisticsClock
from kv_cache_manager_v2.testing import SimulatedDevice


class SecondsClock(StatisticsClock):
    """A second goes by from each look to the next."""

    def __init__(self) -> None:
        self.now = 0.0

    def seconds(self) -> float:
        self.now += 1
        return self.now


def count(times: Any, source: int, target: int) -> int:
    return sum(times.histogram(source, target).counts)


def take_turns(bench: Bench) -> list[dict[str, object]]:
    """Three sequences of 6 blocks in 8 slots, each of which drives pages of the others down; what there is after each turn."""
    states: list[dict[str, object]] = []
    sequences = [bench.suspended(number, 24) for number in range(3)]
    for _ in range(2):
        for sequence in sequences:
            assert sequence.resume()
            bench.check(sequence)
            sequence.suspend()
            states.append(bench.manager.describe())
    for sequence in sequences:
        sequence.close()
    return states


def test_each_way_has_its_seconds() -> None:
    with Bench(tiered_config(8, [("host", 20)]), HostDevice(clock=SecondsClock())) as bench:
        times = bench.manager.time_transfers()
        take_turns(bench)
        times.collect()
        for source, target in ((0, 1), (1, 0)):
            transfers = count(times, source, target)
            # Some pages go together, and each transfer is between two looks at the clock.
            assert 1 <= transfers <= bench.num_copied(source, target)
            assert times.histogram(source, target).total_seconds == transfers
        assert count(times, 0, 0) == count(times, 1, 1) == times.num_not_timed == 0
        assert bench.manager.time_transfers() is times
        with pytest.raises(ValueError):
            times.histogram(0, 2)


def test_through_all_tiers(tmp_path: Path) -> None:
    with Bench(tiered_config(8, [("host", 4), ("disk", 20)], str(tmp_path)), HostDevice()) as bench:
        times = bench.manager.time_transfers()
        take_turns(bench)
        bench.engine.synchronize()
        times.collect()
        for source, target in ((0, 1), (1, 2), (2, 0)):
            assert count(times, source, target) >= 1 and times.histogram(source, target).total_seconds >= 0
    # Timers that were never read are read when the manager ends.
    assert times.num_not_timed == 0


@pytest.mark.parametrize("seed", range(5))
def test_nothing_else_changes(seed: int, tmp_path: Path) -> None:
    states = []
    for is_timed in (False, True):
        with Bench(tiered_config(8, [("host", 4), ("disk", 20)], str(tmp_path)), HostDevice()) as bench:
            if is_timed:
                bench.manager.time_transfers()
            states.append(take_turns(bench))
    assert states[0] == states[1]
    # A device without a clock has no seconds; the transfers are counted.
    with Bench(tiered_config(8, [("host", 20)]), SimulatedDevice(seed)) as simulated:
        times = simulated.manager.time_transfers()
        take_turns(simulated)
        times.collect()
        assert count(times, 0, 1) == 0 and times.num_not_timed >= 2


class TimingDevice(RefusingHostDevice):
    """Knows which timers are in use."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: set[int] = set()

    def start_timer(self, stream: int) -> int:
        timer = super().start_timer(stream)
        self.timers.add(timer)
        return timer

    def release_timer(self, timer: int) -> None:
        self.timers.remove(timer)
        super().release_timer(timer)


@pytest.mark.parametrize("nth", [1, 2])
def test_a_refused_transfer_is_not_timed_and_keeps_no_timer(nth: int) -> None:
    device = TimingDevice()
    with Bench(tiered_config(8, [("host", 20)]), device) as bench:
        times = bench.manager.time_transfers()
        first = bench.suspended(0, 24)
        second = bench.suspended(1, 24)
        times.collect()
        measured = count(times, 0, 1)
        assert (times.num_not_timed, device.timers) == (0, set())
        device.faults.fail("copy", nth, Refused("no"))
        with pytest.raises(PageMoveError):
            first.resume()
        assert device.faults.num_fired == 1
        times.collect()
        assert (times.num_not_timed, device.timers) == (1, set())
        # A transfer before the refused one took place.
        assert count(times, 0, 1) + count(times, 1, 0) == measured + nth - 1
        assert first.resume()
        bench.check(first)
        first.close()
        second.close()


def test_without_statistics_there_are_none() -> None:
    with manager_of(enable_stats=False) as manager, pytest.raises(LogicError):
        manager.time_transfers()
