"""`CallGuard`: how other threads look past the calls, and what one thread alone cannot show. (The rest: `test_call_guard_rules.py`.)"""

import threading

import pytest

from kv_cache_manager_v2.base.change_count import ChangeCount
from kv_cache_manager_v2.base.errors import BusyError, CorruptedError, LogicError
from kv_cache_manager_v2.journal.call_records import CallRecords
from kv_cache_manager_v2.sequence.call_guard import Abandoned, CallGuard, Reading, SnapshotPublisher


class Dropped(Abandoned):
    """Raises what it is given, once, when the next call closes it."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error
        self.num_closed = 0

    def close_abandoned(self) -> None:
        error = self.error
        self.error = None
        if error is not None:
            raise error
        self.num_closed += 1


class HalfDone(Abandoned):
    """Interrupted, or refused, in the middle of a change."""

    def __init__(self, changes: ChangeCount, error: BaseException) -> None:
        self.changes = changes
        self.error = error

    def close_abandoned(self) -> None:
        self.changes.num_begun += 1
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("the device's")])
def test_a_handle_that_was_closed_by_half_breaks_the_guard(error: BaseException) -> None:
    """Nothing may be done with what it has left, also not by the calls that come later."""
    changes = ChangeCount()
    guard = CallGuard(changes, CallRecords())
    guard.add_abandoned(HalfDone(changes, error))
    with pytest.raises(type(error)), guard:
        pass
    assert guard.is_broken
    for _ in range(2):
        with pytest.raises(CorruptedError, match="interrupted in the middle of a change"), guard:
            pass


class Counted(SnapshotPublisher):
    """Counts the snapshots that it was told to publish."""

    def __init__(self) -> None:
        self.number = 0

    def publish(self) -> None:
        self.number += 1


def test_a_call_waits_for_a_thread_that_looks() -> None:
    guard = CallGuard(ChangeCount(), CallRecords())
    order: list[str] = []
    begins = threading.Event()

    def call() -> None:
        begins.set()
        with guard:
            order.append("call")

    thread = threading.Thread(target=call)
    with guard.readers, Reading(guard):
        assert not guard.is_idle, "no small step goes past it"
        thread.start()
        assert begins.wait(60)
        order.append("look")
    thread.join()
    assert order == ["look", "call"] and guard.is_idle


def test_a_look_during_a_call_is_refused_and_gets_a_snapshot() -> None:
    guard = CallGuard(ChangeCount(), CallRecords())
    publisher = Counted()
    guard.publisher = publisher
    with guard:
        with pytest.raises(BusyError), guard.readers, Reading(guard):
            pass
        waiting = guard.ask_for_snapshot()
        assert waiting.locked() and publisher.number == 0
    assert not waiting.locked() and publisher.number == 1 and guard.is_idle
    with guard:
        pass
    assert publisher.number == 1, "it is made when it is asked for"


def test_no_call_begins_once_it_is_shut_down() -> None:
    """Also while a thread looks: that one ends as it would have."""
    guard = CallGuard(ChangeCount(), CallRecords())
    with guard.readers, Reading(guard):
        guard.shut_down()
    for _call in range(2):
        assert not guard.is_idle
        with pytest.raises(LogicError, match="shut down"), guard:
            raise AssertionError("a call began")
        with pytest.raises(LogicError, match="shut down"):
            guard.begin_reading()


def test_calls_inside_a_look_of_the_same_thread_are_refused() -> None:
    guard = CallGuard(ChangeCount(), CallRecords())
    with guard.readers, Reading(guard):
        with pytest.raises(LogicError), guard:
            pass
        with pytest.raises(LogicError):
            assert guard.readers
    assert guard.is_idle


def test_a_look_closes_what_was_dropped() -> None:
    """Not one that finds a call running, nor one whose closing fails; that stays for the next call."""
    guard = CallGuard(ChangeCount(), CallRecords())
    dropped = Dropped(OSError("a callback's"))
    with guard:
        guard.add_abandoned(dropped)
        with pytest.raises(BusyError), guard.readers, Reading(guard):
            pass
        assert guard.num_abandoned == 1
    with pytest.raises(OSError, match="a callback's"), guard.readers, Reading(guard):
        pass
    assert guard.num_abandoned == 1 and not guard.readers.locked()
    with guard.readers, Reading(guard):
        assert dropped.num_closed == 1 and guard.num_abandoned == 0
    with guard:
        assert dropped.num_closed == 1
    assert guard.is_idle


def test_a_call_and_a_handle_without_door_wait_for_a_look_that_closes() -> None:
    guard = CallGuard(ChangeCount(), CallRecords())
    order: list[str] = []
    is_closing, goes_on = threading.Event(), threading.Event()

    class Slow(Abandoned):
        def close_abandoned(self) -> None:
            is_closing.set()
            assert goes_on.wait(60)
            order.append("closed")

    def look() -> None:
        with guard.readers, Reading(guard):
            pass

    def ask() -> None:
        guard.require_idle()
        order.append("asked")

    guard.add_abandoned(Slow())
    threads = [threading.Thread(target=look), threading.Thread(target=ask)]
    threads[0].start()
    assert is_closing.wait(60)
    threads[1].start()
    goes_on.set()
    with guard:
        order.append("call")
    for thread in threads:
        thread.join()
    assert order[0] == "closed" and len(order) == 3
