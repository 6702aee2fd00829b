"""The index writer: one thread that appends records to a durable level's log, in the order in which they were given.

A page's record comes after its bytes: before it is written, the files of the slots are synced. Callers and the workers of the disk only
put records into a queue whose calls are single C calls, so a caller may be interrupted anywhere, and waits for nothing but `flush`.
When the log has become large beside the last snapshot, a new one is made between the batches (`index_compaction`).

    state     way out
    writing   close: closed; the disk refuses: failed
    failed    close: closed. Records are discarded: what comes now is not found by the next process
    closed    -
"""

import os
import sys
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Generator
from queue import Empty, SimpleQueue
from threading import Lock, main_thread
from typing import Final, final


from ..base.errors import LogicError, OutOfMemoryError
from ..base.package_log import PackageLog
from ..device.exit_drain import Drained, drain_at_exit, forget_at_exit
from ..device.slot_watch import SlotWatch
from .cache_folder import CacheFolder
from .index_compaction import compact
from .index_snapshot import IndexSnapshot
from .live_nodes import LiveNodes
from .node_batch import NodeBatch

RECORD: Final = 0
PAGE_RECORD: Final = 1
_FLUSH: Final = 2
_CLOSE: Final = 3

_MOST_RECORDS: Final = 4096
"""In one frame."""
_WATCH_SECONDS: Final = 0.05
_DONE: Final = object()
_LEAST_LOG_BYTES: Final = 1 << 20
_MOST_SNAPSHOTS: Final = 4
"""So many times the bytes of the last snapshot a log may have before the next one."""

_logger: Final = PackageLog("kv_cache_manager_v2")


def _make_latch() -> Lock:
    """Released by the thread once everything before it is safe."""
    latch = Lock()
    latch.acquire()
    return latch


@final
class IndexWriter(Drained):
    """See the module. ``failure``: why nothing is written any more, or an empty text. ``least_log_bytes``: of a log that a new snapshot
    is made for."""

    __slots__ = (
        "failure", "least_log_bytes", "_folder", "_watches", "_snapshot", "_inbox", "_nodes", "_process", "_ended", "_is_started", "_live",
        "_compaction", "_retry_bytes",
    )  # fmt: skip

    def __init__(self, folder: CacheFolder, watches: list[SlotWatch]) -> None:
        self.failure = ""
        self.least_log_bytes: int = _LEAST_LOG_BYTES
        self._folder: Final = folder
        self._watches: Final = watches
        self._snapshot: IndexSnapshot | None = None
        """To be written first."""
        self._inbox: Final["SimpleQueue[tuple[int, bytes, Lock | None]]"] = SimpleQueue()
        self._nodes: Final[deque[NodeBatch]] = deque()
        """Written before whatever comes from the inbox next: of no use before a page is recorded, so that they need not wake the thread."""
        self._process: Final[int] = os.getpid()
        self._ended: Final[Lock] = _make_latch()
        self._is_started = False
        self._live: LiveNodes | None = None
        self._compaction: Generator[None, None, None] | None = None
        """Steps that are left."""
        self._retry_bytes = 0
        """Bytes of the log before a refused snapshot is tried again."""

    # -- on any thread ------------------------------------------------------------------------------------------------

    def put(self, kind: int, record: bytes) -> None:
        """Queue one record; ``kind``: RECORD or PAGE_RECORD, whose bytes must be on the disk before it."""
        if self._folder.is_read_only:
            return
        self._inbox.put((kind, record, None))

    def put_nodes(self, nodes: NodeBatch) -> None:
        """Queue the records of several blocks, before those of their pages."""
        if not self._folder.is_read_only:
            self._nodes.append(nodes)

    # -- on the caller's thread ---------------------------------------------------------------------------------------

    def start(self, snapshot: IndexSnapshot, live: LiveNodes) -> None:
        """Begin, with that snapshot. Of a folder that is only read there is nothing to begin."""
        if self._folder.is_read_only:
            return
        self._snapshot = snapshot
        self._live = live
        try:
            start_new_thread(self._serve, ())
        except RuntimeError as error:
            raise OutOfMemoryError(f"the system gives no thread to write the index of the durable level: {error}") from error
        self._is_started = True
        drain_at_exit(self)

    def flush(self) -> None:
        """Return once all records that were put before are safe, or cannot be."""
        if self._folder.is_read_only:
            return
        latch = _make_latch()
        self._inbox.put((_FLUSH, b"", latch))
        self._wait(latch)

    def drain_until(self, deadline: float) -> None:
        seconds = deadline - time.monotonic()
        if seconds > 0 and os.getpid() == self._process:
            latch = _make_latch()
            self._inbox.put((_FLUSH, b"", latch))
            latch.acquire(True, seconds)

    def close(self) -> None:
        """Write what is queued, and end the thread. Twice is fine."""
        forget_at_exit(self)
        if not self._is_started or sys.is_finalizing() or os.getpid() != self._process:
            return
        self._inbox.put((_CLOSE, b"", None))
        self._wait(self._ended)
        self._is_started = False

    def _wait(self, latch: Lock) -> None:
        while not latch.acquire(True, _WATCH_SECONDS):
            main_thread()  # as in `DiskWorkers`: compiled code hears of no signal by itself
            if sys.is_finalizing() or os.getpid() != self._process:
                raise LogicError(
                    "the index of the durable level is not written, and the thread that writes it is gone: Python is ending, or this "
                    "process is a fork of the one that has it"
                )

    # -- on the thread ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        snapshot = self._snapshot
        self._snapshot = None
        is_open = True
        if snapshot is not None:
            try:
                for _step in self._folder.write_snapshot(snapshot):
                    pass
            except Exception as error:
                # The old snapshot and logs are still there, so the state can be read as before.
                _logger.warning("the durable level in %s keeps its old index: %s", self._folder.path, error)
        snapshot = None
        while is_open:
            is_open = self._serve_batch()
        # What is older says the same: the next process makes the snapshot.
        self._end_compaction()
        self._ended.release()

    def _serve_batch(self) -> bool:
        records: list[bytes] = []
        latches: list[Lock] = []
        has_pages = False
        is_open = True
        try:
            message = self._inbox.get(self._compaction is None)
        except Empty:
            self._compact()
            return True
        while True:
            while self._nodes:
                records.append(self._nodes.popleft().encode())
            kind = message[0]
            if kind == RECORD or kind == PAGE_RECORD:
                records.append(message[1])
                has_pages = has_pages or kind == PAGE_RECORD
            elif kind == _FLUSH and message[2] is not None:
                latches.append(message[2])
            elif kind == _CLOSE:
                is_open = False
            if not is_open or len(records) >= _MOST_RECORDS:
                break
            try:
                message = self._inbox.get(False)
            except Empty:
                break
        if records and not self.failure:
            self._write(records, has_pages)
        for latch in latches:
            latch.release()
        self._compact()
        return is_open

    def _compact(self) -> None:
        """One step of a new snapshot, if it is time for one."""
        compaction = self._compaction
        try:
            if self.failure:
                self._end_compaction()
            elif compaction is not None:
                if next(compaction, _DONE) is _DONE:
                    self._compaction = None
                    self._retry_bytes = 0
            elif self._live is not None and self._folder.log_bytes >= self._count_log_bytes():
                self._folder.begin_log()
                # Only now: all whose record is in an older log had its number before.
                self._compaction = compact(self._folder, self._live.copy_numbers())
        except Exception as error:
            self._end_compaction()
            self._retry_bytes = 2 * max(self._folder.log_bytes, self._count_log_bytes())
            _logger.warning(
                "the durable level in %s keeps its old index, which grows: %s. The next try: when its log has %d bytes; serving goes on",
                self._folder.path,
                error,
                self._retry_bytes,
            )

    def _count_log_bytes(self) -> int:
        """The size at which a log is too large."""
        return max(self.least_log_bytes, _MOST_SNAPSHOTS * self._folder.snapshot_bytes, self._retry_bytes)

    def _end_compaction(self) -> None:
        compaction = self._compaction
        self._compaction = None
        if compaction is not None:
            try:
                compaction.close()
            except OSError as error:
                _logger.warning("closing a file in %s: %s", self._folder.path, error)

    def _write(self, records: list[bytes], has_pages: bool) -> None:
        try:
            if has_pages:
                for watch in self._watches:
                    watch.sync()
            self._folder.append(b"".join(records))
            if has_pages:
                self._folder.require_files([os.path.basename(watch.path) for watch in self._watches])
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            _logger.error(
                "the durable level in %s records nothing more: %s. The next process finds what is there by now; serving goes on",
                self._folder.path,
                error,
            )
