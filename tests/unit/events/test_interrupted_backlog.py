"""A KeyboardInterrupt wherever Python serves signals in what hands events over, waits for them and drains them: no thread hangs then.

Python serves signals behind calls, at the beginning of functions and at jumps backwards. Compiled code does not, but Python code that it
calls does: the library's `threading` is watched as well.
"""

import dis
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2.events import event_backlog
from kv_cache_manager_v2.events.event_assembler import EventAssembler
from kv_cache_manager_v2.events.event_backlog import EventBacklog
from kv_cache_manager_v2.events.layer_group_facts import LayerGroupFacts
from kv_cache_manager_v2.events.log_batch import LEVELS_RESIZED, LogBatch

FILES = ("event_backlog", "threading")
IS_INTERPRETED = event_backlog.__file__.endswith(".py")
MAX_EVENTS = 3
COUNT = itertools.count(1)
SECONDS = 20.0
"""Longer than anything here takes."""

Place = tuple[CodeType, int]


def is_served_behind(name: str) -> bool:
    return name.startswith(("CALL", "RESUME", "JUMP_BACKWARD"))


class Tracer:
    """Notes each place of `FILES`, on this thread, where signals are served; raises at the given one."""

    def __init__(self, stop: Place | None = None) -> None:
        self.places: dict[Place, None] = {}
        self.stop = stop
        self.has_raised = False
        self._operations: dict[CodeType, dict[int, str]] = {}
        self._latest: dict[FrameType, str] = {}

    def begin(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename.rsplit("/", 1)[-1].removesuffix(".py") not in FILES:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self.step

    def step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            code, at = frame.f_code, frame.f_lasti
            if code not in self._operations:
                self._operations[code] = {one.offset: one.opname for one in dis.get_instructions(code)}
            latest = self._latest.get(frame, "")
            self._latest[frame] = self._operations[code].get(at, "")
            if is_served_behind(latest):
                self.places[(code, at)] = None
                if (code, at) == self.stop and not self.has_raised:
                    self.has_raised = True
                    raise KeyboardInterrupt
        return self.step

    @contextmanager
    def at_work(self) -> Iterator[None]:
        sys.settrace(self.begin)
        try:
            yield
        finally:
            sys.settrace(None)


def make_backlog() -> EventBacklog:
    groups = [LayerGroupFacts("full_attention", None, (0,))]
    return EventBacklog(EventAssembler(groups, 0, "sha256", None, MAX_EVENTS), MAX_EVENTS)


def hand_over(backlog: EventBacklog) -> None:
    """One event; it counts for many, so that from the second one on the caller's thread makes events itself."""
    backlog.hand_over(LogBatch(vec[i64]([LEVELS_RESIZED]), [[(next(COUNT),)]], 1 + MAX_EVENTS // 2))


def use(backlog: EventBacklog) -> None:
    for _ in range(4):
        hand_over(backlog)
    backlog.wait(SECONDS)
    backlog.drain()
    hand_over(backlog)
    backlog.snapshot()
    backlog.drain()
    backlog.wait(0.001)


def in_another_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), "a drainer waits for a lock that no thread will release"


def use_traced(backlog: EventBacklog, tracer: Tracer) -> None:
    """In a thread of its own: an interrupt at the very end of an `except` clause leaves its exception the thread's current one."""

    def work() -> None:
        try:
            with tracer.at_work():
                use(backlog)
        except KeyboardInterrupt:
            pass

    in_another_thread(work)


def check(backlog: EventBacklog) -> None:
    """Others drain, and are woken; the caller's thread hands over."""
    in_another_thread(backlog.drain)
    in_another_thread(lambda: hand_over(backlog))
    drained: list[object] = []

    def wait_and_drain() -> None:
        backlog.wait(SECONDS)
        drained.extend(backlog.drain())

    in_another_thread(wait_and_drain)
    assert drained
    waiting = threading.Thread(target=wait_and_drain, daemon=True)
    drained.clear()
    waiting.start()
    in_another_thread(lambda: hand_over(backlog))
    waiting.join(SECONDS)
    assert not waiting.is_alive() and drained


def test_wherever_signals_are_served() -> None:
    tracer = Tracer()
    backlog = make_backlog()
    use_traced(backlog, tracer)
    assert len(tracer.places) > 20 or not IS_INTERPRETED
    for place in tracer.places:
        backlog = make_backlog()
        stopper = Tracer(place)
        use_traced(backlog, stopper)
        assert stopper.has_raised, place
        check(backlog)


def test_all_threads_that_wait_are_woken() -> None:
    backlog = make_backlog()
    threads = [threading.Thread(target=backlog.wait, args=(10 * SECONDS,), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    hand_over(backlog)
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
