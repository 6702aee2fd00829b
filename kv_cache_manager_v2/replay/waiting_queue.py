"""The queue of requests: restarts first, then turns whose pause is over, then new arrivals.

Requests are pulled from their source only as they are needed. One that follows another is parked until that one has
finished and the pause is over; time is counted in steps of the engine, so a replay does not depend on clocks.
"""

from bisect import insort
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final, final

from mypy_extensions import mypyc_attr

from .served_request import ServedRequest
from .workload import Request

_UNFINISHED: Final = -1


@final
@mypyc_attr(native_class=True)
class WaitingQueue:
    """The waiting requests: `peek` at the next one, `pop` it when it was admitted or rejected."""

    __slots__ = ("num_pulled", "_source", "_restarts", "_ready", "_parked", "_finish_steps", "_head", "_num_parked")

    num_pulled: int

    def __init__(self, source: Iterator[Request]) -> None:
        self.num_pulled = 0
        self._source: Iterator[Request] | None = source
        self._restarts: Final[list[tuple[int, ServedRequest]]] = []
        self._ready: Final[list[tuple[int, int, ServedRequest]]] = []
        """A heap of (step from which it may start, ticket, request)."""
        self._parked: Final[dict[int, list[ServedRequest]]] = {}
        """By the id of the request that they wait for."""
        self._num_parked = 0
        self._finish_steps: Final[dict[int, int]] = {}
        self._head: ServedRequest | None = None

    def peek(self, step: int) -> ServedRequest | None:
        """The next one that may start at this step, or None. It stays the next one until it is popped."""
        if self._head is None:
            self._head = self._take_next(step)
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

    def finish(self, request_id: int, step: int) -> None:
        """The request is done, or rejected: the one that follows it may start after the pause."""
        self._finish_steps[request_id] = step
        for served in self._parked.pop(request_id, ()):
            self._num_parked -= 1
            heappush(self._ready, (step + served.request.pause_steps, served.ticket, served))

    def next_ready_step(self) -> int | None:
        """The end of the next pause; None without pauses."""
        return self._ready[0][0] if len(self._ready) > 0 else None

    @property
    def is_empty(self) -> bool:
        """Whether no request waits or will come. Call it only after `peek` has returned None."""
        return (
            self._head is None and self._source is None and self._num_parked == 0
            and len(self._restarts) == 0 and len(self._ready) == 0
        )  # fmt: skip

    def _take_next(self, step: int) -> ServedRequest | None:
        if len(self._restarts) > 0:
            return self._restarts.pop(0)[1]
        while True:
            if len(self._ready) > 0 and self._ready[0][0] <= step:
                return heappop(self._ready)[2]
            served = self._pull()
            if served is None:
                return None
            after = served.request.after
            if after is None:
                return served
            finish_step = self._finish_steps.get(after)
            if finish_step is None:
                raise ValueError(
                    f"request {served.request.id} comes after request {after}, which has not come before it; give the "
                    f"turns of a session in their order"
                )
            if finish_step == _UNFINISHED:
                self._parked.setdefault(after, []).append(served)
                self._num_parked += 1
            else:
                heappush(self._ready, (finish_step + served.request.pause_steps, served.ticket, served))

    def _pull(self) -> ServedRequest | None:
        if self._source is None:
            return None
        request = next(self._source, None)
        if request is None:
            self._source = None
            return None
        self.num_pulled += 1
        self._finish_steps[request.id] = _UNFINISHED
        return ServedRequest(request, self.num_pulled - 1)
