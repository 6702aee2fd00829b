"""A user's clock is read in the middle of calls: whatever it raises or returns costs times, and nothing else."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from small_models import run_prompt
from tiered_models import Bench, tiered_config

from kv_cache_manager_v2 import CorruptedError, HostDevice, KVCacheManager, StatisticsClock, is_compiled


def fail(error: BaseException) -> float:
    raise error


ANSWERS: dict[str, Callable[[], Any]] = {
    "error": lambda: fail(RuntimeError("no clock")),
    "assertion": lambda: fail(AssertionError("no clock")),
    "exit": lambda: fail(SystemExit(3)),
    "no memory": lambda: fail(MemoryError()),
    "nothing": lambda: None,
    "text": lambda: "12",
    "nan": lambda: float("nan"),
    "infinite": lambda: float("inf"),
    "huge": lambda: 10**400,
    "backwards": lambda: 0.5,
}


class Failing(StatisticsClock):
    """Every other reading is the next second, between them is ``answer``."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer
        self.num_read = 0

    def seconds(self) -> float:
        self.num_read += 1
        if self.num_read % 2 == 0:
            return float(self.num_read)
        answer: float = self.answer()
        return answer


def serve(manager: KVCacheManager) -> None:
    for turn in range(24):
        run_prompt(manager, list(range(100 * (turn % 7), 100 * (turn % 7) + 12))).close()
    manager.check_invariants()


@pytest.mark.parametrize("name", ANSWERS)
def test_a_clock_of_blocks_may_fail(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with Bench(tiered_config(8, [("host", 8)], block_times_sampling=1.0), HostDevice()) as bench:
        clock = Failing(ANSWERS[name])
        times = bench.manager.record_block_times(clock)
        assert times is not None
        serve(bench.manager)
        assert clock.num_read > 20 and sum(times.lifetimes.counts) > 0 and times.lifetimes.total_seconds >= 0
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING and "Failing" in record.getMessage()]
    assert len(warnings) == (name not in ("text", "backwards"))


@pytest.mark.parametrize("name", ANSWERS)
def test_a_clock_of_transfers_may_fail(name: str) -> None:
    clock = Failing(ANSWERS[name])
    with Bench(tiered_config(8, [("host", 8)]), HostDevice(clock=clock)) as bench:
        times = bench.manager.time_transfers()
        serve(bench.manager)
        times.collect()
        assert clock.num_read > 2 and sum(times.histogram(0, 1).counts) > 0


def test_ctrl_c_in_a_clock_comes_afterwards() -> None:
    manager = KVCacheManager(tiered_config(8, [("host", 8)], block_times_sampling=1.0), device=HostDevice())
    clock = Failing(lambda: 7.0)
    manager.record_block_times(clock)
    serve(manager)
    clock.answer = lambda: fail(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        serve(manager)
    clock.answer = lambda: 7.0
    try:
        for kv_cache in manager.open_kv_caches:
            kv_cache.close()
        serve(manager)
    except CorruptedError:
        # Interpreted, Python looks for signals in the middle of the change.
        assert not is_compiled()
    manager.shutdown()
