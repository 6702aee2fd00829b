"""`CallGuard` beside another thread that begins and ends its looks wherever CPython may switch threads: never inside a call.

CPython switches threads where a function is called or has returned, so a profile function stands at each of these steps of two calls in a
row; there the other thread begins or ends a look, or asks for a snapshot. All pairs of steps are tried: no sleep, no chance.
"""

import sys
from collections.abc import Callable
from threading import Event, Thread
from types import FrameType
from typing import Any

import pytest
from unit.sequence.test_call_guard import Counted, Dropped

from kv_cache_manager_v2 import BusyError, is_compiled
from kv_cache_manager_v2.base.change_count import ChangeCount
from kv_cache_manager_v2.journal.call_records import CallRecords
from kv_cache_manager_v2.sequence.call_guard import CallGuard, Reading

GUARD = CallGuard.__module__


class Look:
    """A look of a thread of its own, which ends when it is told to."""

    def __init__(self, guard: CallGuard) -> None:
        self.guard = guard
        self.is_inside = False
        self._is_decided = Event()
        self._may_end = Event()
        self._thread = Thread(target=self._run)

    def begin(self) -> None:
        """Returns once the look has begun, or was refused; or waits for the lock, which the call has at this step."""
        is_locked = self.guard.readers.locked()
        self._thread.start()
        assert is_locked or self._is_decided.wait(60)

    def _run(self) -> None:
        try:
            with self.guard.readers, Reading(self.guard):
                self.is_inside = True
                self._is_decided.set()
                assert self._may_end.wait(60)
                self.is_inside = False
        except BusyError:
            self._is_decided.set()

    def end(self) -> None:
        """One that still waits for the lock ends as soon as it has begun."""
        self._may_end.set()
        if self.is_inside:
            self._thread.join()

    def join(self) -> None:
        self.end()
        if self._thread.ident is not None:
            self._thread.join()


class Steps:
    """Two calls; ``acts`` at the steps of their door where threads may be switched, by number."""

    def __init__(
        self, guard: CallGuard, acts: dict[int, Callable[[], None]], end_looks: Callable[[], None], is_looking: Callable[[], bool]
    ) -> None:
        self.guard = guard
        self.acts = acts
        self.end_looks = end_looks
        self.is_looking = is_looking
        self.number = 0

    def profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        if frame.f_globals.get("__name__") != GUARD:
            return
        self.number += 1
        act = self.acts.get(self.number)
        if act is not None:
            act()
        if frame.f_code.co_name == "_wait_for_reader":
            # The call is about to block until the look ends, if it does not have the lock already.
            self.end_looks()

    def run(self) -> None:
        sys.setprofile(self.profile)
        try:
            for _call in range(2):
                with self.guard:
                    assert not self.is_looking(), "a call runs during a look"
        finally:
            sys.setprofile(None)


@pytest.mark.skipif(is_compiled(), reason="compiled code is not interrupted between its lines")
@pytest.mark.parametrize("before", ["nothing", "a look", "a look that ends first", "a dropped handle", "a question"])
def test_no_look_is_inside_a_call(before: str) -> None:
    """A look begins at one step and ends at a later one; or one from before the calls ends at a step, and another begins later."""

    def run(begin: int, end: int) -> int:
        guard = CallGuard(ChangeCount(), CallRecords())
        guard.publisher = Counted()
        earlier, later = Look(guard), Look(guard)
        if "look" in before:
            earlier.begin()
        elif before == "a dropped handle":
            guard.add_abandoned(Dropped(None))
        elif before == "a question":
            guard.ask_for_snapshot()

        def begin_later() -> None:
            earlier.end()
            later.begin()

        def end_all() -> None:
            earlier.end()
            later.end()

        def is_looking() -> bool:
            return earlier.is_inside or later.is_inside

        acts = {begin: begin_later, end: end_all}
        if before == "a look that ends first":
            acts = {begin: earlier.end, end: later.begin}
        steps = Steps(guard, acts, end_all, is_looking)
        try:
            steps.run()
        finally:
            earlier.join()
            later.join()
        with guard:
            pass
        assert guard.is_idle and not guard.readers.locked()
        return steps.number

    num_steps = run(0, 0)
    assert num_steps > 4
    for begin in range(1, num_steps + 1):
        for end in range(begin + 1, num_steps + 20):
            run(begin, end)
