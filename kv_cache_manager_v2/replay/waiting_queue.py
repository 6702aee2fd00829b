"""The queue of requests: restarts first, then turns whose pause is over, then new arrivals.

Requests are pulled from their source only as they are needed. One that follows another is parked until that one has
finished and the pause is over; time is counted in steps of the engine, so a replay does not depend on clocks. A *timed* queue counts
simulated milliseconds instead, and a request comes when its time stamp says so.
"""

from bisect import insort
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final, final


from .prefix_ledger import LedgerCursor, PrefixLedger
from .served_request import ServedRequest
from .workload import Request

_UNFINISHED: Final = -1.0
_PAUSE_STEP_MS: Final = 20.0
"""A pause in steps, of a made workload, in a timed queue."""


@final
class WaitingQueue:
    """The waiting requests: `peek` at the next one, `pop` it when it was admitted or rejected."""

    __slots__ = (
        "num_pulled", "_source", "_restarts", "_ready", "_parked", "_finish_times", "_head", "_num_parked", "_is_timed", "_next_request",
        "_first_arrival_ms", "_ledger",
    )  # fmt: skip

    def __init__(self, source: Iterator[Request], is_timed: bool = False) -> None:
        self.num_pulled = 0
        self._source: Iterator[Request] | None = source
        self._restarts: Final[list[tuple[int, ServedRequest]]] = []
        self._ready: Final[list[tuple[float, int, ServedRequest]]] = []
        """A heap of (step or time from which it may start, ticket, request)."""
        self._parked: Final[dict[int, list[ServedRequest]]] = {}
        """By the id of the request that they wait for."""
        self._num_parked = 0
        self._finish_times: Final[dict[int, float]] = {}
        self._head: ServedRequest | None = None
        self._is_timed: Final = is_timed
        self._next_request: Request | None = None
        """Of a timed queue: the source's next one, whose time may not have come."""
        self._first_arrival_ms = 0.0
        self._ledger: Final = PrefixLedger()
        """All that was pulled, as if it were computed by then."""

    def peek(self, now: float) -> ServedRequest | None:
        """The next one that may start at this step, or at this time; or None. It stays the next one until it is popped."""
        if self._head is None:
            self._head = self._take_next(now)
        return self._head

    def pop(self) -> None:
        self._head = None

    def put_back(self, served: ServedRequest) -> None:
        """Return a request that lost its sequence; it restarts before later arrivals."""
        head = self._head
        if head is not None:
            insort(self._restarts, (head.ticket, head))
            self._head = None
        insort(self._restarts, (served.ticket, served))

    def finish(self, request_id: int, now: float) -> None:
        """The request is done, or rejected: the one that follows it may start after the pause."""
        self._finish_times[request_id] = now
        for served in self._parked.pop(request_id, ()):
            self._num_parked -= 1
            self._push(served, now)

    def next_ready(self) -> float | None:
        """The end of the next pause, or the next arrival of a timed queue; None without."""
        times = [self._ready[0][0]] if len(self._ready) > 0 else []
        if self._is_timed:
            request = self._look_ahead()
            if request is not None:
                times.append(request.arrival_ms - self._first_arrival_ms)
        return min(times) if len(times) > 0 else None

    @property
    def is_empty(self) -> bool:
        """Whether no request waits or will come. Call it only after `peek` has returned None."""
        return (
            self._head is None and self._source is None and self._next_request is None and self._num_parked == 0
            and len(self._restarts) == 0 and len(self._ready) == 0
        )  # fmt: skip

    def _take_next(self, now: float) -> ServedRequest | None:
        if len(self._restarts) > 0:
            return self._restarts.pop(0)[1]
        while True:
            if len(self._ready) > 0 and self._ready[0][0] <= now:
                return heappop(self._ready)[2]
            served = self._pull(now)
            if served is None:
                return None
            after = served.request.after
            if after is None:
                return served
            finished_at = self._finish_times.get(after)
            if finished_at is None:
                raise ValueError(
                    f"request {served.request.id} comes after request {after}, which has not come before it; give the "
                    f"turns of a session in their order"
                )
            if finished_at == _UNFINISHED:
                self._parked.setdefault(after, []).append(served)
                self._num_parked += 1
            else:
                self._push(served, finished_at)

    def _push(self, served: ServedRequest, finished_at: float) -> None:
        """The request before it has finished then: it may start after the pause."""
        if self._is_timed:
            request = served.request
            pause_ms = request.delay_ms + request.pause_steps * _PAUSE_STEP_MS
            # It was ready when it came, or when the pause was over.
            served.ready_ms = max(served.ready_ms, finished_at + pause_ms)
            heappush(self._ready, (served.ready_ms, served.ticket, served))
        else:
            heappush(self._ready, (finished_at + served.request.pause_steps, served.ticket, served))

    def _look_ahead(self) -> Request | None:
        if self._next_request is None and self._source is not None:
            self._next_request = next(self._source, None)
            if self._next_request is None:
                self._source = None
            elif self.num_pulled == 0:
                self._first_arrival_ms = self._next_request.arrival_ms
        return self._next_request

    def _pull(self, now: float) -> ServedRequest | None:
        request = self._look_ahead()
        if request is None or (self._is_timed and request.arrival_ms - self._first_arrival_ms > now):
            return None
        self._next_request = None
        self.num_pulled += 1
        self._finish_times[request.id] = _UNFINISHED
        served = ServedRequest(request, self.num_pulled - 1, self._ledger.match(request))
        self._ledger.publish(LedgerCursor(request), request.num_computed_tokens)
        served.ready_ms = request.arrival_ms - self._first_arrival_ms
        return served
