"""From the caller's thread to the drainers': notes that are handed over, and the events that nobody has drained yet.

Notes are handed over under a lock that is never held for long. Who drains turns them into events, under another lock that the
caller's thread never waits for. Only if notes pile up because nobody drains does the caller's thread turn them into events itself,
unnamed, so that the oldest can be dropped; and not even then while a drainer is at it anyway.
"""

import threading
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from .event_assembler import EventAssembler
from .event_snapshot import KVCacheEventSnapshot
from .kv_cache_event import KVCacheCreatedData, KVCacheEvent, KVCacheEventData, KVCacheRemovedData, KVCacheStoredData
from .log_batch import LogBatch

EVENT_TYPES: Final = ("created", "stored", "removed", "updated")


@final
@mypyc_attr(native_class=True)
class EventBacklog:
    __slots__ = ("_handed_over", "_batches", "_num_pages", "_assembling", "_assembler", "_max_events", "num_drained")

    _handed_over: Final[threading.Condition]
    """Guards the batches."""
    _batches: list[LogBatch]
    _num_pages: i64
    """Notes about pages in the batches."""
    _assembling: Final[threading.Lock]
    """Guards the assembler. Who holds it may take the other one; never the other way round."""
    _assembler: Final[EventAssembler]
    _max_events: Final[i64]
    num_drained: Final[vec[i64]]
    """By type, as `EVENT_TYPES` has them."""

    def __init__(self, assembler: EventAssembler, max_events: i64) -> None:
        self._handed_over = threading.Condition()
        self._batches = []
        self._num_pages = 0
        self._assembling = threading.Lock()
        self._assembler = assembler
        self._max_events = max_events
        self.num_drained = vec[i64]([0] * len(EVENT_TYPES))

    @property
    def num_dropped(self) -> int:
        return self._assembler.num_dropped

    def hand_over(self, batch: LogBatch) -> None:
        with self._handed_over:
            self._batches.append(batch)
            self._num_pages += batch.num_pages
            self._handed_over.notify_all()
        if self._num_pages > self._max_events and self._assembling.acquire(False):
            try:
                self._assemble()
            finally:
                self._assembling.release()

    def _assemble(self) -> None:
        with self._handed_over:
            batches = self._batches
            self._batches = []
            self._num_pages = 0
        for batch in batches:
            self._assembler.take_in(batch)

    def wait(self, timeout_s: float) -> None:
        """Until something is handed over, unless something is there."""
        with self._handed_over:
            if len(self._batches) == 0 and self._assembler.num_undrained == 0:
                self._handed_over.wait(timeout_s)

    def drain(self) -> list[KVCacheEvent]:
        with self._assembling:
            self._assemble()
            events = self._assembler.drain()
            for event in events:
                self.num_drained[_find_type(event.data)] += 1
            return events

    def snapshot(self) -> KVCacheEventSnapshot:
        with self._assembling:
            self._assemble()
            return KVCacheEventSnapshot(self._assembler.next_event_id - 1, self._assembler.snapshot())


def _find_type(data: KVCacheEventData) -> i64:
    if isinstance(data, KVCacheStoredData):
        return 1
    if isinstance(data, KVCacheRemovedData):
        return 2
    return 0 if isinstance(data, KVCacheCreatedData) else 3
