"""The backlog between the caller's thread and the drainers' threads: log entries handed over, and undrained events.

The caller's thread hands entries over through a queue, without a lock. A drainer turns them into events under a lock, for which the
caller's thread never waits. If entries pile up undrained, the caller's thread turns them into events itself, unhashed, so that the
oldest can be dropped; it does not while a drainer holds the lock.

A thread may be interrupted anywhere (Ctrl-C) and leaves no lock behind: queues and lock are CPython's own, in C, and no signal is
served between their taking effect and the code that undoes it. `threading.Condition` is Python code, which is interrupted inside.
A batch stays in its queue until it is taken in. If that is interrupted midway, events are incomplete, and drainers are told so.
"""

import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.errors import CorruptedError
from ..base.fair_turns import FairTurns
from .event_assembler import EventAssembler
from .event_snapshot import KVCacheEventSnapshot
from .kv_cache_event import KVCacheCreatedData, KVCacheEvent, KVCacheRemovedData, KVCacheStoredData, KVCacheUpdatedData
from .log_batch import LogBatch

EVENT_TYPES: Final = ("created", "stored", "removed", "updated")
_DATA_TYPES: Final = (KVCacheCreatedData, KVCacheStoredData, KVCacheRemovedData, KVCacheUpdatedData)


@final
class EventBacklog:
    __slots__ = (
        "_batches", "_bell", "_num_pages_in", "_num_pages_out", "_assembling", "_assembler", "_max_events", "num_drained", "_turns",
    )  # fmt: skip

    def __init__(self, assembler: EventAssembler, max_events: i64) -> None:
        self._batches: Final[deque[LogBatch]] = deque()
        self._bell: Final[SimpleQueue[None]] = SimpleQueue()
        """Not empty if a batch was handed over since a waiting thread was woken."""
        self._num_pages_in: i64 = 0
        """Entries about pages in all batches so far; counted by the caller's thread."""
        self._num_pages_out: i64 = 0
        """Of these, entries that the assembler has; counted under its lock."""
        self._assembling: Final = threading.RLock()
        """Guards the assembler. Reentrant, as that kind knows whether the thread holds it."""
        self._assembler: Final = assembler
        self._max_events: Final = max_events
        self.num_drained: Final = vec[i64]([0] * len(EVENT_TYPES))
        """By type, in the order of `EVENT_TYPES`."""
        self._turns: Final = FairTurns()
        """Of drainers."""

    @property
    def num_dropped(self) -> int:
        return self._assembler.num_dropped

    def hand_over(self, batch: LogBatch) -> None:
        self._batches.append(batch)
        self._num_pages_in = batch.num_pages_so_far
        self._ring()
        if self._num_pages_in - self._num_pages_out > self._max_events:
            self._assemble_unless_held()

    def _ring(self) -> None:
        if self._bell.empty():
            self._bell.put(None)

    def _assemble_unless_held(self) -> None:
        try:
            if self._assembling.acquire(False):
                if self._assembler.is_taking:
                    self._batches.clear()  # drainers are told that events are incomplete, and get no more
                else:
                    self._assemble(False)
        finally:
            # Ask the lock itself: an interruption may come between taking it and recording that.
            try:
                self._assembling.release()
            except RuntimeError:
                pass  # another thread holds it, or none

    def _assemble(self, pauses: bool) -> None:
        if self._assembler.is_taking:
            raise CorruptedError(
                "events are incomplete since a drain was interrupted in the middle (Ctrl-C, or no memory): make the manager anew, with "
                "a new event manager"
            )
        batches = self._batches
        while len(batches) > 0:
            batch = batches[0]
            # One that was taken in already was handed over twice, or its removal was interrupted.
            if batch.number > self._assembler.num_taken:
                self._assembler.take_in(batch)
            self._num_pages_out = batch.num_pages_so_far
            batches.popleft()
            if pauses:
                self._turns.pause()

    def _silence_bell(self) -> None:
        """Clear signals for batches that were drained since."""
        try:
            while self._is_empty():
                self._bell.get(False)
        except Empty:
            pass

    def _is_empty(self) -> bool:
        return len(self._batches) == 0 and self._assembler.num_undrained == 0

    def wait(self, timeout_s: float) -> None:
        """Wait until a batch is handed over; return at once if there is one, or an undrained event."""
        self._silence_bell()
        if self._is_empty():
            try:
                self._bell.get(True, timeout_s)
            except Empty:
                return
        if not self._is_empty():
            # For the next waiting thread, whose signal this one may have taken.
            self._ring()

    def drain(self) -> list[KVCacheEvent]:
        with self._assembling:
            self._assemble(True)
            events = self._assembler.drain()
            for event in events:
                self.num_drained[_DATA_TYPES.index(type(event.data))] += 1
        return events

    def snapshot(self) -> KVCacheEventSnapshot:
        with self._assembling:
            self._assemble(True)
            snapshot = KVCacheEventSnapshot(self._assembler.next_event_id - 1, self._assembler.snapshot())
        return snapshot
