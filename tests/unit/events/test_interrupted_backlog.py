"""A KeyboardInterrupt wherever Python serves signals in what hands events over, waits for them and drains them: no thread hangs then.

Python serves signals behind calls, at the beginning of functions and at jumps backwards. Compiled code does not, but Python code that it
calls does: the library's `threading` is watched as well.
"""

import itertools
import threading
from collections.abc import Callable

from librt.vecs import vec
from mypy_extensions import i64
from served_interrupts import Tracer

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
    tracer = Tracer(FILES)
    backlog = make_backlog()
    use_traced(backlog, tracer)
    assert len(tracer.places) > 20 or not IS_INTERPRETED
    for place in tracer.places:
        backlog = make_backlog()
        stopper = Tracer(FILES, place)
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
