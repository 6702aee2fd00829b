"""The threads of a shared level: one for look-ups, some for loads, one for stores, each with connections of its own.

A look-up never waits for a transfer. A *task* goes to the queue of its kind and is run by one thread; what it found is in its own fields,
and `is_over` is set last. An endpoint that fails is left to its breaker. Threads are daemons: they end with the process, whatever holds
them; at exit they are told to stop, and are waited for half a second. A forked child has none of them, and starts none.
"""

import atexit
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Final

from ..base.package_log import PackageLog
from .circuit_breaker import CircuitBreaker
from .guarded_store import GuardedConnection, GuardedStore
from .shared_statistics import KINDS, SharedCounters
from .shared_store import REFUSED, StoreError, StoreFullError, store_error

LOOKUPS: Final = 0
LOADS: Final = 1
STORES: Final = 2

_EXIT_SECONDS: Final = 0.5
_CLOSE_SECONDS: Final = 2.0
_FULL_SECONDS: Final = 1.0

_logger: Final = PackageLog("kv_cache_manager_v2")


class Task(ABC):
    """Work for one thread. ``progress``: when it last moved a byte, by `time.monotonic`."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self.is_running = False
        self.is_over = False
        self._begun = monotonic()
        self._connection: GuardedConnection | None = None

    @property
    def progress(self) -> float:
        connection = self._connection
        return self._begun if connection is None else max(self._begun, connection.last_progress)

    def begin(self) -> None:
        """A thread has it."""
        self._begun = monotonic()
        self.is_running = True

    def use(self, connection: GuardedConnection | None) -> None:
        """The thread is about to ask that connection."""
        self._connection = connection

    @abstractmethod
    def run(self, calls: "EndpointCalls") -> None:
        """Do the work; an error is one of the library's own."""


class EndpointCalls:
    """The connections of one thread."""

    def __init__(self, workers: "StoreWorkers", kind: str) -> None:
        self._workers: Final = workers
        self._kind: Final = kind
        self._open: Final[dict[str, GuardedConnection]] = {}

    def call(self, task: Task, endpoint: str, function: Callable[[GuardedConnection], None]) -> bool:
        """Let the function ask the endpoint. False if it failed, or the breaker is open; a store that is full has answered."""
        workers = self._workers
        breaker = workers.breakers[endpoint]
        if workers.is_closing or not breaker.allows(monotonic()):
            workers.counters.add("refusals")
            return False
        error: StoreError | None = None
        begun = monotonic()
        for _attempt in range(2):
            connection = self._open.get(endpoint)
            is_new = connection is None
            try:
                if connection is None:
                    connection = workers.store.connect(endpoint)
                    self._open[endpoint] = connection
                    workers.connections.add(connection)
                    workers.check_late(endpoint, connection)
                task.use(connection)
                function(connection)
                error = None
            except StoreFullError as full:
                workers.record_full(endpoint, full)
                task.use(None)
                break
            except StoreError as failure:
                error = failure
                self._drop(endpoint)
            except BaseException as failure:
                # Of a store's own code, as asyncio's and pyo3's: the thread is for the next request too.
                error = workers.store.failed(endpoint, self._kind, failure)
                self._drop(endpoint)
            task.use(None)
            # A server that was restarted has closed old connections: that alone is no failure of the one that is there now.
            if error is None or is_new or isinstance(error.__cause__, TimeoutError):
                break
        workers.counters.add_time(self._kind, monotonic() - begun)
        workers.record_result(endpoint, breaker, error)
        return error is None

    def _drop(self, endpoint: str) -> None:
        connection = self._open.pop(endpoint, None)
        if connection is not None:
            self._workers.connections.discard(connection)
            connection.close()

    def close(self) -> None:
        for endpoint in list(self._open):
            self._drop(endpoint)


class _Pool:
    """The threads of one kind of tasks."""

    def __init__(self) -> None:
        self.queue: Final[SimpleQueue[Task | None]] = SimpleQueue()
        self.running: Final[dict[int, Task]] = {}
        self.last_done = 0.0
        self.threads: Final[list[Thread]] = []

    def progress(self) -> float:
        return max([self.last_done, *[task.progress for task in list(self.running.values())]])


class StoreWorkers:
    """``breakers``, by endpoint: those of ``unreachable`` begin open. ``connections``: those that are open, of all threads."""

    def __init__(self, store: GuardedStore, counters: SharedCounters, num_load_threads: int, unreachable: list[str]) -> None:
        self.store: Final = store
        self.counters: Final = counters
        self.breakers: Final = {endpoint: CircuitBreaker() for endpoint in store.endpoints}
        self._unchecked: Final = set(unreachable)
        for endpoint in unreachable:
            self.breakers[endpoint].open(monotonic())
        self.connections: Final[set[GuardedConnection]] = set()
        self._foreign: Final[set[str]] = set()
        self.is_closing = False
        self._full_until = 0.0
        self._process: Final = os.getpid()
        self._pools: Final = [_Pool() for _kind in (LOOKUPS, LOADS, STORES)]
        for kind, count in ((LOOKUPS, 1), (LOADS, num_load_threads), (STORES, 1)):
            for number in range(count):
                pool = self._pools[kind]
                name = f"kvcm shared {('look-ups', 'loads', 'stores')[kind]} {number}"
                pool.threads.append(Thread(target=self._run, args=(pool, number), name=name, daemon=True))
        for pool in self._pools:
            for thread in pool.threads:
                thread.start()
        atexit.register(self._end_at_exit)

    @property
    def is_foreign(self) -> bool:
        """Whether this is a forked child, which has no such threads."""
        return os.getpid() != self._process

    @property
    def is_full(self) -> bool:
        """Whether the store has had no room just now."""
        return monotonic() < self._full_until

    @property
    def is_deaf(self) -> bool:
        """Whether no endpoint would be asked just now."""
        now = monotonic()
        return all([breaker.refuses(now) for breaker in self.breakers.values()])

    def submit(self, kind: int, task: Task) -> None:
        self._pools[kind].queue.put(task)

    def last_progress(self, kind: int, task: Task) -> float:
        """When the task, or the ones before it in the queue, last moved a byte."""
        return task.progress if task.is_running else max(task.progress, self._pools[kind].progress())

    def close(self) -> bool:
        """Stop all threads, cutting off what they do. Whether all of them have ended; a store's own call may hold one for longer."""
        atexit.unregister(self._end_at_exit)
        if self.is_foreign:
            return False
        return self._end(_CLOSE_SECONDS)

    def _end_at_exit(self) -> None:
        if not self.is_foreign:
            self._end(_EXIT_SECONDS)

    def _end(self, seconds: float) -> bool:
        self.is_closing = True
        for pool in self._pools:
            for _thread in pool.threads:
                pool.queue.put(None)
        deadline = monotonic() + seconds
        for pool in self._pools:
            for thread in pool.threads:
                while thread.is_alive() and monotonic() < deadline:
                    for connection in list(self.connections):
                        connection.abort()
                    thread.join(0.05)
        return not any([thread.is_alive() for pool in self._pools for thread in pool.threads])

    # -- on the threads -----------------------------------------------------------------------------------------------

    def _run(self, pool: _Pool, number: int) -> None:
        calls = EndpointCalls(self, KINDS[self._pools.index(pool)])
        while True:
            task = pool.queue.get()
            if task is None:
                break
            if not task.is_cancelled and not self.is_closing:
                task.begin()
                pool.running[number] = task
                try:
                    task.run(calls)
                except BaseException:
                    _logger.exception("a task of the shared level failed")
                del pool.running[number]
                pool.last_done = monotonic()
            task.is_over = True
        calls.close()

    def check_late(self, endpoint: str, connection: GuardedConnection) -> None:
        """Ask a server that did not answer at the start for its key space, before anything else: `StoreError` if it is a foreign one."""
        if endpoint not in self._unchecked:
            return
        try:
            connection.check()
        except ValueError as error:
            if endpoint not in self._foreign:
                self._foreign.add(endpoint)
                _logger.error("the shared store %s is not used: %s", endpoint, error)
            raise store_error(REFUSED, str(error)) from error
        self._unchecked.discard(endpoint)

    def record_full(self, endpoint: str, error: StoreFullError) -> None:
        self.counters.add("full_stores")
        if not self.is_full:
            _logger.warning("the shared level stores nothing for a second: %s", error)
        self._full_until = monotonic() + _FULL_SECONDS

    def record_result(self, endpoint: str, breaker: CircuitBreaker, error: StoreError | None) -> None:
        if error is None:
            if breaker.record_success():
                _logger.inform("the shared store %s answers again", endpoint)
            return
        if self.is_closing:
            return
        self.counters.add_failure(error.cause)
        if breaker.record_failure(monotonic()):
            _logger.warning("the shared store %s is not asked until it answers again: %s", endpoint, error)
