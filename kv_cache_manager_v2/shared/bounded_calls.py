"""Calls into a client that may hold a thread for minutes: each connection has a thread for them, and abandons it at a deadline.

A thread that was abandoned is *stuck* until its call returns; then it releases what it has, and ends. While `most_stuck` threads are,
no connection is made: so a store that hangs costs a fixed number of threads and buffers.

    state      guaranteed                                       ways out
    IDLE       no call is under way                             call -> BUSY; close -> ENDED
    BUSY       the caller waits, until the deadline             the call returns -> IDLE; deadline, abort -> STUCK
    STUCK      what the call returns is dropped                  it returns -> ENDED
    ENDED      `release` was called, by the thread              none
"""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Final

from .shared_store import SILENT, StoreError, store_error


class StuckCount:
    """Threads that were abandoned and have not ended."""

    def __init__(self, most: int) -> None:
        self.most: Final = most
        self._lock: Final = Lock()
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    def change(self, by: int) -> None:
        with self._lock:
            self._count += by


class _Call:
    def __init__(self, function: Callable[[], Any]) -> None:
        self.function: Final = function
        self.is_answered: Final = Event()
        self.is_over = False
        self.result: Any = None
        self.error: BaseException | None = None


class BoundedCalls:
    """``release``: called once, by the thread, when no call can use the connection's buffers any more. One caller at a time."""

    def __init__(self, name: str, stuck: StuckCount, release: Callable[[], None]) -> None:
        if stuck.count >= stuck.most:
            raise store_error(SILENT, f"the store {name} holds {stuck.count} threads in calls that do not return; it gets no more of them")
        self._name: Final = name
        self._stuck: Final = stuck
        self._release: Final = release
        self._lock: Final = Lock()
        self._queue: Final[SimpleQueue[_Call | None]] = SimpleQueue()
        self._present: _Call | None = None
        self._is_abandoned = False
        self._is_closed = False
        Thread(target=self._run, name=f"kvcm shared {name}", daemon=True).start()

    def call(self, function: Callable[[], Any], seconds: float) -> Any:
        """What the function returns. `StoreError` if it does not return in time, or raises, or the thread was abandoned before."""
        call = _Call(function)
        self._present = call
        if self._is_abandoned or self._is_closed:
            raise store_error(SILENT, f"the connection to the store {self._name} was abandoned")
        self._queue.put(call)
        call.is_answered.wait(seconds)
        with self._lock:
            if not call.is_over and not self._is_abandoned:
                self._is_abandoned = True
                self._stuck.change(1)
        if not call.is_over:
            raise store_error(SILENT, f"the store {self._name} does not answer within {seconds:g} s")
        if call.error is not None:
            raise StoreError(f"the store {self._name} fails: {call.error}") from call.error
        return call.result

    def abort(self) -> None:
        """Make a call that waits in another thread raise."""
        call = self._present
        if call is not None:
            call.is_answered.set()

    def close(self) -> None:
        """End the thread once its call has returned. Twice is fine."""
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)

    def _run(self) -> None:
        while True:
            call = self._queue.get()
            if call is None:
                break
            try:
                call.result = call.function()
            except BaseException as error:
                call.error = error
            with self._lock:
                was_abandoned = self._is_abandoned
                call.is_over = not was_abandoned
            call.is_answered.set()
            if was_abandoned:
                self._stuck.change(-1)
                break
        self._release()
