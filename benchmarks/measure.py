"""How time is taken: CPU time of this thread over a whole loop, on one core, beside the cost of a few primitives.

CPU time, because other processes' turns on the core are nobody's cost here; single calls (tails) are timed by the wall
clock. The primitives are measured in the same process just before and just after, so that figures from two machines,
or from a noisy hour, can be compared as ratios.
"""

import os
import statistics
import time
from collections.abc import Callable
from operator import index
from types import TracebackType
from typing import ClassVar, Final

KEY_BYTES: Final = 128
_NUM_KEYS: Final = 4096
_COPY_BYTES: Final = 128 * 1024


def pin_to_core(core: int | None) -> int:
    """Stay on one core (the last one that we may use, if none is named); which."""
    if not hasattr(os, "sched_setaffinity"):
        return -1
    cores = sorted(os.sched_getaffinity(0))
    chosen = cores[-1] if core is None else core
    os.sched_setaffinity(0, {chosen})
    return chosen


class Stopwatch:
    """``with watch:`` adds the CPU time of the block to ``ns``, less what reading the clock costs (a system call).

    For blocks of many microseconds: a reading varies by some 100 ns.
    """

    _own_ns: ClassVar[int] = 0

    def __init__(self) -> None:
        self.ns = 0
        self._begin = 0

    def __enter__(self) -> "Stopwatch":
        self._begin = time.thread_time_ns()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.ns += time.thread_time_ns() - self._begin - Stopwatch._own_ns

    @classmethod
    def calibrate(cls) -> None:
        """Find out what an empty block costs; once per process, on its core."""
        cls._own_ns = 0
        costs = []
        for _ in range(500):
            watch = cls()
            with watch:
                pass
            costs.append(watch.ns)
        cls._own_ns = int(statistics.median(costs))


def measure_primitives() -> dict[str, float]:
    """ns each: a dict look-up of a fresh 128-byte key, a call of a native function, 128 bytes of a large memcpy."""
    return {
        "dict_lookup_ns": _best_of(_time_dict_lookup),
        "native_call_ns": _best_of(_time_native_call),
        "memcpy_128_ns": _best_of(_time_memcpy),
    }


def merge_primitives(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: (before[name] + after[name]) / 2 for name in before}


def _best_of(measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(5))


def _time_dict_lookup() -> float:
    text = os.urandom(KEY_BYTES * _NUM_KEYS)
    table = {text[at : at + KEY_BYTES]: at for at in range(0, len(text), KEY_BYTES)}
    # Fresh objects: a key that was looked up before has its hash in it.
    keys = [text[at : at + KEY_BYTES] for at in range(0, len(text), KEY_BYTES)]
    begin = time.thread_time_ns()
    for key in keys:
        table[key]
    with_lookup = time.thread_time_ns() - begin
    begin = time.thread_time_ns()
    for key in keys:
        pass
    return (with_lookup - (time.thread_time_ns() - begin)) / _NUM_KEYS


def _time_native_call() -> float:
    function = index
    rounds = range(20_000)
    begin = time.thread_time_ns()
    for number in rounds:
        function(number)
    with_call = time.thread_time_ns() - begin
    begin = time.thread_time_ns()
    for number in rounds:
        pass
    return (with_call - (time.thread_time_ns() - begin)) / len(rounds)


def _time_memcpy() -> float:
    source = bytes(_COPY_BYTES)
    target = memoryview(bytearray(_COPY_BYTES))
    target[:] = source
    begin = time.thread_time_ns()
    for _ in range(500):
        target[:] = source
    return (time.thread_time_ns() - begin) / 500 / (_COPY_BYTES / KEY_BYTES)
