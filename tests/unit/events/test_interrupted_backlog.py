"""A KeyboardInterrupt wherever Python serves signals in what hands events over, waits for them and drains them: no thread hangs then, and
no entry is lost or told twice; where a drain was cut off while it took entries in, every later one says so.

Python serves signals behind calls, at the beginning of functions and at jumps backwards. Compiled code does not, but Python code that it
calls does: the library's `threading` is watched as well.
"""

import itertools
import threading
from collections.abc import Callable

import pytest
from librt.vecs import vec
from mypy_extensions import i64
from served_interrupts import Tracer

from kv_cache_manager_v2 import CorruptedError, KVCacheCreatedData
from kv_cache_manager_v2.events import event_backlog
from kv_cache_manager_v2.events.event_assembler import EventAssembler
from kv_cache_manager_v2.events.event_backlog import EventBacklog
from kv_cache_manager_v2.events.event_log import EventLog
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
    number = next(COUNT)
    backlog.hand_over(LogBatch(vec[i64]([LEVELS_RESIZED]), [[(number,)]], number, number * (1 + MAX_EVENTS // 2)))


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


NUM_ENTRIES = 12
MODULES_OF_TAKING = ("event_log", "event_backlog", "event_assembler")


class Told:
    """What a log of so many entries has told, each a number; entries come from calls that are not interrupted."""

    def __init__(self, max_events: int) -> None:
        groups = [LayerGroupFacts("full_attention", None, (0,))]
        self.backlog = EventBacklog(EventAssembler(groups, 0, "sha256", None, max_events), max_events)
        self.log = EventLog(self.backlog, 0, 1)
        self.numbers: list[int] = []
        self.is_refused = False
        self.begun = 0

    def record(self) -> None:
        self.begun += 1
        self.log.on_levels_resized([(self.begun,)])

    def drain(self) -> None:
        try:
            events = self.backlog.drain()
        except CorruptedError as error:
            assert "interrupted in the middle" in str(error)
            self.is_refused = True
        else:
            for event in events:
                assert isinstance(event.data, KVCacheCreatedData)
                self.numbers += event.data.num_blocks_per_cache_level


def tell(told: Told, tracer: Tracer, modules_drained: bool) -> None:
    """Entries, each handed over, the latter of two after an interrupt; drained by the interrupted thread too if so asked."""

    def work() -> None:
        while told.begun < NUM_ENTRIES:
            told.record()
            try:
                with tracer.at_work():
                    told.log.hand_over()
                    if modules_drained and told.begun % 3 == 0:
                        told.backlog.snapshot()
            except KeyboardInterrupt:
                pass
            except CorruptedError:
                told.is_refused = True

    in_another_thread(work)
    in_another_thread(told.log.hand_over)
    in_another_thread(told.drain)


@pytest.mark.parametrize("drains", [False, True])
def test_no_entry_is_lost_or_told_twice(drains: bool) -> None:
    """``drains``: the interrupted thread takes entries in as well."""
    modules = MODULES_OF_TAKING if drains else ("event_log", "event_backlog")
    tracer = Tracer(modules)
    tell(Told(1000), tracer, drains)
    assert len(tracer.places) > (30 if drains else 5) or not IS_INTERPRETED
    refused = 0
    for place in tracer.places:
        told = Told(1000)
        stopper = Tracer(modules, place)
        tell(told, stopper, drains)
        assert stopper.has_raised, place
        refused += told.is_refused
        assert told.is_refused or told.numbers == list(range(NUM_ENTRIES + 1)), (place, told.numbers)
        assert drains or not told.is_refused
    assert refused < len(tracer.places) or not IS_INTERPRETED


@pytest.mark.skipif(not IS_INTERPRETED, reason="compiled code serves no signals there")
def test_a_log_that_no_drain_can_use_does_not_grow() -> None:
    """After an interrupted taking-in, entries that are handed over are dropped, and every drain says why."""
    tracer = Tracer(("event_assembler",))
    tell(Told(4), tracer, True)
    told = Told(4)
    tell(told, Tracer(("event_assembler",), [*tracer.places][-1]), True)
    assert told.is_refused
    for _ in range(100):
        told.record()
        told.log.hand_over()
    assert len(told.backlog._batches) <= 5
    told.is_refused = False
    told.drain()
    assert told.is_refused
