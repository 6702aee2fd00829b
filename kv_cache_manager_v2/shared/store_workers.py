"""The threads of a shared level: some for look-ups, some for loads, one for stores, each with connections of its own.

A look-up never waits for a transfer, nor, while threads are left, for the look-up of another prompt. A *task* goes to the queue of its kind
and is run by one thread; what it found is in its own fields, and `is_over` is set last. An endpoint that fails is left to its breaker, and
asked for a sign of life by a thread of its own until it gives one. Where endpoints are silent one after the other, and none answers in
between, so are all. Threads are daemons: they end with the process, whatever holds them; at exit they are told to stop, and are waited for
half a second. A forked child has none of them, and starts none.
"""

import atexit
import math
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from random import uniform
from threading import Event, Thread
from time import monotonic
from typing import Final

from ..base.package_log import PackageLog
from .circuit_breaker import PROBE_SECONDS, CircuitBreaker
from .guarded_store import GuardedConnection, GuardedStore
from .shared_statistics import KINDS, SharedCounters
from .shared_store import PROGRESS_SECONDS, SILENT, SLOW, StoreError, StoreFullError, store_error

LOOKUPS: Final = 0
LOADS: Final = 1
STORES: Final = 2

_EXIT_SECONDS: Final = 0.5
_JITTER_SECONDS: Final = 0.5
"""Stores begin at some time in it after a server was started again, so that a fleet does not write the same pages all at once."""
_CLOSE_SECONDS: Final = 2.0
_FULL_SECONDS: Final = 1.0
_NUM_LOOKUP_THREADS: Final = 4
_SILENCES_OF_ALL: Final = 3
"""By silence, in a row, of whichever endpoints, after which each is left alone until it gives a sign of life."""

_logger: Final = PackageLog("kv_cache_manager_v2")


class Task(ABC):
    """Work for one thread. ``progress``: when it last moved a byte, ``deadline``: when its present call has failed, by `time.monotonic`."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self.is_running = False
        self.is_over = False
        self.deadline = math.inf
        self.endpoint = ""
        """That is asked at present; "" for none."""
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

    def enter(self, endpoint: str, deadline: float) -> None:
        """The thread is about to ask that endpoint."""
        self.endpoint = endpoint
        self.deadline = deadline

    def use(self, connection: GuardedConnection) -> None:
        """By that connection."""
        self._connection = connection

    def leave(self) -> None:
        """The endpoint was asked."""
        self._begun = monotonic()
        self._connection = None
        self.deadline = math.inf
        self.endpoint = ""

    @abstractmethod
    def run(self, calls: "EndpointCalls") -> None:
        """Do the work; an error is one of the library's own."""


class EndpointCalls:
    """The connections of one thread."""

    def __init__(self, workers: "StoreWorkers", kind: str) -> None:
        self.workers: Final = workers
        self._kind: Final = kind
        self._open: Final[dict[str, GuardedConnection]] = {}

    def call(self, task: Task, endpoint: str, function: Callable[[GuardedConnection], None], num_keys: int, num_bytes: int = 0) -> bool:
        """Let the function ask the endpoint. False if it failed, or the breaker is open; a store that is full has answered.

        It has `PROGRESS_SECONDS`, and what so many keys and bytes take at the least rate; what takes longer counts as a failure.
        """
        workers = self.workers
        if workers.is_closing or not workers.asks(endpoint):
            workers.counters.add("refusals")
            return False
        error: StoreError | None = None
        begun = monotonic()
        deadline = begun + PROGRESS_SECONDS + workers.store.seconds_of(num_keys) + num_bytes / workers.least_rate
        task.enter(endpoint, deadline)
        for _attempt in range(2):
            connection = self._open.get(endpoint)
            is_new = connection is None
            try:
                if connection is None:
                    connection = workers.store.connect(endpoint)
                    self._open[endpoint] = connection
                    workers.connections.add(connection)
                connection.set_deadline(deadline)
                task.use(connection)
                if is_new:
                    workers.note_life(endpoint, connection.server_id())
                function(connection)
                error = None
            except StoreFullError as full:
                workers.record_full(endpoint, full)
                break
            except StoreError as failure:
                error = failure
                self._drop(endpoint)
            except BaseException as failure:
                # Of a store's own code, as asyncio's and pyo3's: the thread is for the next request too.
                error = workers.store.failed(endpoint, self._kind, failure)
                self._drop(endpoint)
            # A server that was restarted has closed old connections: that alone is no failure of the one that is there now.
            if error is None or is_new or isinstance(error.__cause__, TimeoutError):
                break
        task.leave()
        ended = monotonic()
        workers.counters.add_time(self._kind, ended - begun)
        if error is None and ended > deadline:
            late = store_error(SLOW, f"the store {endpoint} took {ended - begun:.1f} s for {num_keys} keys and {num_bytes} bytes")
            workers.record_result(endpoint, late)
            return True
        workers.record_result(endpoint, error)
        return error is None

    def _drop(self, endpoint: str) -> None:
        connection = self._open.pop(endpoint, None)
        if connection is not None:
            self.workers.connections.discard(connection)
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
    """``breakers``, by endpoint: those of ``unreachable`` begin open. ``connections``: those that are open, of all threads.
    ``begun_anew``: endpoints that were started again since; the caller takes them."""

    def __init__(
        self, store: GuardedStore, counters: SharedCounters, num_load_threads: int, least_rate: float, unreachable: list[str]
    ) -> None:
        self.store = store
        self.counters: Final = counters
        self.least_rate: Final = least_rate
        self.breakers: Final = {endpoint: CircuitBreaker() for endpoint in store.endpoints}
        self._num_silences = 0
        self._probes: Final[list[Thread]] = []
        self._closing: Final = Event()
        self._lives: Final[dict[str, str]] = {}
        self.begun_anew: Final[deque[str]] = deque()
        self.connections: Final[set[GuardedConnection]] = set()
        self._full_until = 0.0
        self._stores_from = 0.0
        self._process: Final = os.getpid()
        self._pools: Final = [_Pool() for _kind in (LOOKUPS, LOADS, STORES)]
        for kind, count in ((LOOKUPS, _NUM_LOOKUP_THREADS), (LOADS, num_load_threads), (STORES, 1)):
            for number in range(count):
                pool = self._pools[kind]
                name = f"kvcm shared {('look-ups', 'loads', 'stores')[kind]} {number}"
                pool.threads.append(Thread(target=self._run, args=(pool, number), name=name, daemon=True))
        for pool in self._pools:
            for thread in pool.threads:
                thread.start()
        atexit.register(self._end_at_exit)
        self._leave_alone(unreachable)

    @property
    def is_closing(self) -> bool:
        return self._closing.is_set()

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
        return all([breaker.is_open for breaker in list(self.breakers.values())])

    def choose(self, endpoints: list[str]) -> str:
        """The first that is asked at present."""
        return next((endpoint for endpoint in endpoints if self.asks(endpoint)), endpoints[0])

    def asks(self, endpoint: str) -> bool:
        """Whether the endpoint is asked at present: it is one of the store's, and does not fail."""
        breaker = self.breakers.get(endpoint)
        return breaker is not None and not breaker.is_open

    def set_store(self, store: GuardedStore, unreachable: list[str]) -> None:
        """Other endpoints, from the next call of a thread on."""
        self.store = store
        for endpoint in [endpoint for endpoint in self.breakers if endpoint not in store.endpoints]:
            del self.breakers[endpoint]
        for endpoint in store.endpoints:
            self.breakers.setdefault(endpoint, CircuitBreaker())
        self._leave_alone(unreachable)

    def _leave_alone(self, unreachable: list[str]) -> None:
        for endpoint in unreachable:
            if self.breakers[endpoint].record_failure(opens=True):
                self._begin_probes(endpoint)

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
        self._closing.set()
        for pool in self._pools:
            for _thread in pool.threads:
                pool.queue.put(None)
        deadline = monotonic() + seconds
        threads = [*[thread for pool in self._pools for thread in pool.threads], *self._probes]
        for thread in threads:
            while thread.is_alive() and monotonic() < deadline:
                for connection in list(self.connections):
                    connection.abort()
                thread.join(0.05)
        return not any([thread.is_alive() for thread in threads])

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
                    if pool is self._pools[STORES]:
                        self._closing.wait(max(0.0, self._stores_from - monotonic()))
                    task.run(calls)
                except BaseException:
                    _logger.exception("a task of the shared level failed")
                del pool.running[number]
                pool.last_done = monotonic()
            task.is_over = True
        calls.close()

    def _open(self, endpoint: str, reason: object) -> None:
        """Its breaker opens: ask for signs of life instead."""
        _logger.warning("the shared store %s is not asked until it answers again: %s", endpoint, reason)
        self._begin_probes(endpoint)

    def _begin_probes(self, endpoint: str) -> None:
        self._probes[:] = [thread for thread in self._probes if thread.is_alive()]
        thread = Thread(target=self._probe, args=(endpoint,), name=f"kvcm shared probe {endpoint}", daemon=True)
        self._probes.append(thread)
        thread.start()

    def _probe(self, endpoint: str) -> None:
        """Ask for a sign of life and the key space until there is one; a foreign key space is none, and logged."""
        was_foreign = False
        while not self._closing.wait(PROBE_SECONDS) and endpoint in self.breakers:
            connection: GuardedConnection | None = None
            try:
                connection = self.store.connect(endpoint)
                self.connections.add(connection)
                connection.check()
                self.record_result(endpoint, None)
                return
            except StoreError as error:
                self.counters.add_failure(error.cause)
            except ValueError as error:
                if not was_foreign:
                    was_foreign = True
                    _logger.error("the shared store %s is not used: %s", endpoint, error)
            finally:
                if connection is not None:
                    self.connections.discard(connection)
                    connection.close()

    def note_life(self, endpoint: str, life: str) -> None:
        """A new connection has found the server in that life: in another one than before it may have lost everything."""
        if life not in ("", self._lives.setdefault(endpoint, life)):
            self._lives[endpoint] = life
            self._stores_from = monotonic() + uniform(0.0, _JITTER_SECONDS)
            self.begun_anew.append(endpoint)
            _logger.inform("the shared store %s was started again: what was in it is asked for anew", endpoint)

    def record_full(self, endpoint: str, error: StoreFullError) -> None:
        self.counters.add("full_stores")
        if not self.is_full:
            _logger.warning("the shared level stores nothing for a second: %s", error)
        self._full_until = monotonic() + _FULL_SECONDS

    def record_late(self, task: Task) -> None:
        """Its request was answered without it: the endpoint that holds it has failed, whatever it may say later."""
        endpoint = task.endpoint
        breaker = self.breakers.get(endpoint)
        if breaker is not None and breaker.record_failure():
            self._open(endpoint, "a call does not return")

    def record_result(self, endpoint: str, error: StoreError | None) -> None:
        breaker = self.breakers.get(endpoint)
        if breaker is None:
            return  # it was taken away meanwhile
        if error is None:
            self._num_silences = 0
            if breaker.record_success():
                _logger.inform("the shared store %s answers again", endpoint)
            return
        if self.is_closing:
            return
        self.counters.add_failure(error.cause)
        self._num_silences += error.cause in (SILENT, SLOW)
        if breaker.record_failure():
            self._open(endpoint, error)
        if self._num_silences >= _SILENCES_OF_ALL:
            for other, other_breaker in list(self.breakers.items()):
                if other_breaker.record_failure(opens=True):
                    self._open(other, "others are silent")
