"""`CallGuard` beside its table of states: random calls, looks, dropped handles and mistakes of one thread, and what each of them leaves."""

from collections.abc import Callable
from random import Random
from threading import Lock

import pytest
from unit.sequence.test_call_guard import Counted, Dropped

from kv_cache_manager_v2 import is_compiled
from kv_cache_manager_v2.base.change_count import ChangeCount
from kv_cache_manager_v2.base.errors import CorruptedError, LogicError
from kv_cache_manager_v2.device.stream_order import StreamOrder
from kv_cache_manager_v2.journal.call_records import CallRecords
from kv_cache_manager_v2.sequence.call_guard import CallGuard, Reading, StateChecker
from kv_cache_manager_v2.testing import SimulatedDevice
from unit.device.test_stream_order_calls import RecordingDevice

MIDDLE = "a call was interrupted in the middle of a change: "


def raise_inside(error: Exception) -> None:
    """As a module of the library raises it."""
    device = SimulatedDevice(1)
    device.faults.fail("record", 1, error)
    device.record_event(device.default_stream())


class Checker(StateChecker):
    def __init__(self) -> None:
        self.number = 0
        self.fails = False

    def check(self) -> None:
        self.number += 1
        if self.fails:
            raise RuntimeError("a page is missing")


class Guarded:
    """A guard, and what the table says of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.changes = ChangeCount()
        self.guard = CallGuard(self.changes, CallRecords())
        self.publisher = Counted()
        self.checker = Checker()
        self.device = RecordingDevice(True)
        self.order = StreamOrder(self.device)
        if seed % 2 == 0:
            self.guard.order = self.order
        self.guard.publisher = self.publisher if seed % 5 else None
        self.guard.checker = self.checker if seed % 3 else None
        self.reason: str | None = None
        self.dropped: list[Dropped] = []
        self.asked: list[Lock] = []
        self.num_published = 0
        self.num_checked = 0
        self.is_read = False
        self.has_closed = False
        """A look may have closed something since the last call."""

    # -- what is done -----------------------------------------------------------------------------------------------------

    def drop(self) -> None:
        error = self.random.choice((None, None, None, RuntimeError("cannot close"), KeyboardInterrupt(), AssertionError("a callback's")))
        self.dropped.append(Dropped(error))
        self.guard.add_abandoned(self.dropped[-1])

    def ask(self) -> None:
        self.asked.append(self.guard.ask_for_snapshot())

    def call(self) -> None:
        body = self.random.choice(
            ("nothing", "change", "error", "half", "half error", "ours", "theirs", "interrupt", "half interrupt", "drop", "ask", "order")
        )
        if self.random.random() < 0.7 and body in ("half", "half error", "ours", "half interrupt"):
            body = "nothing"
        self.checker.fails = self.random.random() < 0.1
        reason = self.reason
        expected = self._enter()
        if expected is None:
            expected = self._leave(body)
        raised: BaseException | None = None
        try:
            with self.guard:
                assert reason is None and not self.guard.is_idle and self.guard.num_abandoned == 0
                self._act(body)
        except (Exception, KeyboardInterrupt) as error:
            raised = error
        assert (None if raised is None else type(raised)) is expected, (body, raised)
        if expected is CorruptedError:
            assert self.reason is not None and self.reason in str(raised)

    def _act(self, body: str) -> None:
        if "half" in body:
            self.guard.begin_change()
        elif body == "change":
            self.guard.begin_change()
            self.guard.begin_change()
            self.guard.end_change()
            self.guard.end_change()
        if body == "order":
            self.order.enter(self.random.randrange(3))
            assert self.order.owes
        elif body == "drop":
            self.drop()
        elif body == "ask":
            self.ask()
        elif "error" in body:
            raise RuntimeError("refused")
        elif "interrupt" in body:
            raise KeyboardInterrupt
        elif body == "theirs":
            raise AssertionError("a callback's")
        elif body == "ours":
            raise_inside(AssertionError("a page is lost"))

    def look(self) -> None:
        bodies = ("nothing", "nothing", "change", "error", "interrupt", "theirs", "ours", "half error", "half interrupt")
        body = self.random.choice(bodies)
        self.checker.fails = self.random.random() < 0.1
        if body in ("ours", "half error", "half interrupt") and self.random.random() < 0.8:
            body = "nothing"
        expected = self._enter()
        if expected is None:
            expected = self._end(body)
        raised: BaseException | None = None
        try:
            with self.guard.readers, Reading(self.guard):
                assert not self.guard.is_idle
                self._act(body)
        except (Exception, KeyboardInterrupt) as error:
            raised = error
        assert (None if raised is None else type(raised)) is expected, (body, raised)

    def begin_a_look_and_be_interrupted(self) -> None:
        if self.reason is None and not self.dropped:
            with self.guard.readers:
                self.guard.begin_reading()
            self.is_read = True

    # -- what it means ----------------------------------------------------------------------------------------------------

    def _enter(self) -> type[BaseException] | None:
        """What keeps a call from beginning: a broken manager, or a handle that cannot be closed."""
        return CorruptedError if self.reason is not None else self._close()

    def _close(self) -> type[BaseException] | None:
        self.is_read = False
        self.has_closed = True
        while self.dropped:
            error = self.dropped[0].error
            if error is not None:
                # Raised once; the handle is still there for the next call.
                if isinstance(error, KeyboardInterrupt):
                    self._look_after(error)
                return type(error)
            self.dropped.pop(0)
        return None

    def _leave(self, body: str) -> type[BaseException] | None:
        expected = self._end(body)
        is_published = len(self.asked) > 0 or body == "ask"
        if is_published and self.reason is None and self.guard.publisher is not None:
            self.num_published += 1
        return expected

    def _end(self, body: str) -> type[BaseException] | None:
        """What a call raises, or a look, and whether the manager is broken then."""
        expected: type[BaseException] | None = None
        if "error" in body:
            expected = RuntimeError
        elif body == "theirs":
            expected = AssertionError
        elif body == "ours":
            expected = CorruptedError
            self.reason = "a page is lost"
        elif "interrupt" in body:
            expected = KeyboardInterrupt
            if "half" not in body:
                self._look_after(KeyboardInterrupt())
        if "half" in body:
            self.reason = MIDDLE
        return expected

    def _look_after(self, error: BaseException) -> None:
        """Nothing was begun, and all is as it must be: the call was interrupted, no more."""
        if self.guard.checker is not None:
            self.num_checked += 1
            if self.checker.fails:
                self.reason = MIDDLE

    def compare(self) -> None:
        guard = self.guard
        assert guard.is_broken is (self.reason is not None)
        assert (guard.broken_reason or "").startswith(self.reason or "") and (guard.broken_reason is None) is (self.reason is None)
        assert guard.num_abandoned == len(self.dropped)
        assert self.publisher.number == self.num_published
        assert self.checker.number == self.num_checked
        assert self.changes.num_begun == 0
        self.asked = [lock for lock in self.asked if lock.locked()]
        owes = guard.order is not None and self.order.owes
        assert not owes
        if guard.is_idle is not (self.reason is None and not self.dropped and not self.asked and not self.is_read):
            # A look that has closed what was dropped leaves a closer look to the next call.
            assert not guard.is_idle and self.has_closed
        if self.reason is None:
            assert not guard.readers.locked()
        else:
            with pytest.raises(CorruptedError):
                guard.require_sound()


@pytest.mark.parametrize("seed", range(60))
def test_each_call_leaves_what_the_table_says(seed: int) -> None:
    guarded = Guarded(seed)
    actions: list[Callable[[], None]] = [
        guarded.call, guarded.call, guarded.call, guarded.call, guarded.look, guarded.look, guarded.drop, guarded.ask,
        guarded.begin_a_look_and_be_interrupted,
    ]  # fmt: skip
    for _ in range(60):
        action = guarded.random.choice(actions)
        action()
        if action == guarded.call and guarded.reason is None and not guarded.dropped:
            assert not any(lock.locked() for lock in guarded.asked), "a call that ends releases all who have asked"
        guarded.compare()
    guarded.guard.become_foreign()
    for _ in range(2):
        with pytest.raises(LogicError, match="a fork of process"), guarded.guard:
            pass
        with pytest.raises(LogicError, match="a fork of process"):
            assert guarded.guard.readers
    assert not guarded.guard.is_idle


@pytest.mark.skipif(is_compiled(), reason="compiled code is never interrupted there")
@pytest.mark.parametrize("what", ["whole", "half", "not whole"])
def test_a_call_whose_end_was_interrupted_is_over(what: str) -> None:
    """As if Ctrl-C had come at the very beginning of `__exit__`: the next call goes on, or says that the manager is broken."""
    changes = ChangeCount()
    guard = CallGuard(changes, CallRecords())
    checker = Checker()
    guard.checker = checker
    guard.__enter__()
    if what == "half":
        guard.begin_change()
    checker.fails = what == "not whole"
    if what == "whole":
        with guard:
            pass
        assert guard.is_idle and checker.number == 1
        return
    for since in (": ", " since an earlier call: "):
        with pytest.raises(CorruptedError, match=f"^the manager is broken{since}a call was interrupted"), guard:
            pass
    assert checker.number == int(what == "not whole") and changes.num_begun == 0
    assert guard.broken_reason is not None and guard.broken_reason.startswith(MIDDLE + "KeyboardInterrupt()")
