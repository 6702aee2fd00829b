"""The scheduler of a simulated device: streams as queues, and the choice of what runs next.

The scheduler may run any stream's oldest ready operation, whenever it is asked to (`run_some`), in an order
drawn from its random numbers; `run_through` runs what a waiting host must see done, and perhaps more. The streams'
delays are drawn as well: a pace for the whole device, and one for each stream.

An operation that raises is done; the error is kept until a call synchronises with that operation (`raise_failure`).
"""

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Final, final


from ..base.errors import LogicError
from .happens_before import VectorClock
from .stream_operation import Operation, WaitOperation


@final
class StreamQueue:
    """One stream. ``num_run + len(operations)`` operations were enqueued so far, those of ``predecessor`` included.

    ``predecessor``: a destroyed stream, all of whose accesses the host has seen done. The new one has its index and its component,
    and continues its ticks: an access after the new one's accesses is after the old one's too.
    """

    __slots__ = (
        "handle",
        "place",
        "index",
        "component",
        "clock",
        "operations",
        "num_run",
        "last_access",
        "haste",
        "is_held",
        "is_destroyed",
        "host_version",
    )

    def __init__(self, handle: int, index: int, haste: float, predecessor: "StreamQueue | None") -> None:
        component = index + 1  # 0 is the host
        self.handle: Final = handle
        self.place: Final[str] = f"stream {handle}"
        self.index: Final = index
        self.component: Final[int] = component
        self.clock: Final = VectorClock([0] * (component + 1))
        self.operations: Final[deque[Operation]] = deque()
        self.num_run = 0
        self.last_access = 0  # tick
        if predecessor is not None:
            self.clock.ticks[component] = predecessor.last_tick()
            self.num_run = predecessor.num_run
        self.haste: Final = haste
        self.is_held = False
        self.is_destroyed = False
        self.host_version: int = -1  # of the host's clock, when it was joined last

    def num_enqueued(self) -> int:
        return self.num_run + len(self.operations)

    def last_tick(self) -> int:
        """The tick of its last operation."""
        return self.clock.ticks[self.component]

    def record_access(self) -> None:
        """The operation that has begun touches memory, which events and waits do not do."""
        self.last_access = self.clock.ticks[self.component]

    def is_ready(self) -> bool:
        return bool(self.operations) and not self.is_held and self.operations[0].is_ready()


@final
class _Failure:
    __slots__ = ("component", "tick", "error")

    def __init__(self, component: int, tick: int, error: Exception) -> None:
        self.component: Final = component
        self.tick: Final = tick
        self.error: Final = error


_PACES: Final = ((0.0, 1), (0.1, 1), (0.1, 20), (0.5, 2), (0.5, 8), (0.9, 3))
"""(how likely a call runs anything, how many operations it then runs at most)"""

_HASTES: Final[Sequence[float]] = (0.05, 0.4, 1.0)


@final
class StreamScheduler:
    """Conservation: every enqueued operation is in one queue until it has run, once."""

    __slots__ = ("_random", "_streams", "_live", "_gone", "_failures", "_likelihood", "_burst", "is_eager")

    def __init__(self, random: Random, eager: bool | None) -> None:
        self._random: Final = random
        self._streams: Final[list[StreamQueue]] = []  # by index
        self._live: Final[list[StreamQueue]] = []  # streams that have, or may yet get, an operation
        self._gone: Final[list[StreamQueue]] = []  # destroyed streams whose work has run and whose place is free
        self._failures: Final[list[_Failure]] = []
        pace = _PACES[int(random.random() * len(_PACES))]
        self.is_eager: Final[bool] = eager is True
        self._likelihood: Final[float] = 0.0 if eager is False else pace[0]
        self._burst: Final[int] = pace[1]

    def add_stream(self, handle: int, host_clock: VectorClock) -> StreamQueue:
        """Add a stream, in the place of a destroyed one if the host has seen its work done; so clocks do not grow with every stream."""
        haste = _HASTES[int(self._random.random() * len(_HASTES))]
        predecessor: StreamQueue | None = None
        for gone in self._gone:
            if host_clock.includes(gone.component, gone.last_access):
                predecessor = gone
                break
        if predecessor is None:
            stream = StreamQueue(handle, len(self._streams), haste, None)
            self._streams.append(stream)
        else:
            self._gone.remove(predecessor)
            stream = StreamQueue(handle, predecessor.index, haste, predecessor)
            self._streams[predecessor.index] = stream
        self._live.append(stream)
        return stream

    def destroy_stream(self, stream: StreamQueue) -> None:
        """Enqueue nothing more; enqueued work still runs."""
        stream.is_destroyed = True
        if not stream.operations:
            self._bury(stream)

    def _bury(self, stream: StreamQueue) -> None:
        self._live.remove(stream)
        self._gone.append(stream)

    @property
    def num_pending(self) -> int:
        return sum([len(stream.operations) for stream in self._live])

    # -- running ------------------------------------------------------------------------------------------------------

    def run_some(self) -> None:
        """Run as much as the seed says, perhaps nothing. Every public call calls this."""
        if self.is_eager:
            self.run_steps(-1)
        elif self._likelihood > 0.0 and self._random.random() < self._likelihood:
            count = 1 + int(self._random.random() * self._burst)
            while count > 0:
                count -= 1
                ready = [stream for stream in self._live if stream.is_ready()]
                if not ready:
                    return
                stream = ready[int(self._random.random() * len(ready))]
                if self._random.random() < stream.haste:
                    self._run_oldest(stream)

    def run_steps(self, max_steps: int) -> int:
        """Run up to ``max_steps`` legal operations (all, if negative) in a drawn order; returns how many were run."""
        steps = 0
        while steps != max_steps:
            ready = [stream for stream in self._live if stream.is_ready()]
            if not ready:
                return steps
            self._run_oldest(ready[int(self._random.random() * len(ready))])
            steps += 1
        return steps

    def run_through(self, stream_index: int, position: int) -> None:
        """Run until ``position`` operations of the stream are done, and all that these wait for; more runs by chance.

        `LogicError` if that would take for ever because a stream or an event is held.
        """
        goals: list[tuple[int, int]] = [(stream_index, position)]
        while goals:
            stream = self._streams[goals[-1][0]]
            if stream.num_run >= goals[-1][1]:
                goals.pop()
                continue
            if not self.is_eager and self._random.random() < self._likelihood:
                self.run_some()
                continue
            operation = stream.operations[0]
            if isinstance(operation, WaitOperation) and not operation.event.is_done:
                goals.append((operation.event.stream, operation.event.position))
            elif not stream.is_ready():
                raise LogicError(
                    f"the host would wait for ever: stream {stream.handle} is held with {len(stream.operations)}"
                    f" operations queued; release the stream or the event first"
                )
            else:
                self._run_oldest(stream)

    def _run_oldest(self, stream: StreamQueue) -> None:
        operation = stream.operations.popleft()
        stream.num_run += 1
        if stream.is_destroyed and not stream.operations:
            self._bury(stream)
        try:
            operation.run()
        except Exception as error:
            self._failures.append(_Failure(stream.component, operation.tick, error))

    # -- failures -----------------------------------------------------------------------------------------------------

    def raise_failure(self, clock: VectorClock) -> None:
        """Raise the first kept error of an operation that happened before ``clock``, and forget it."""
        position = 0
        while position < len(self._failures):
            failure = self._failures[position]
            if clock.includes(failure.component, failure.tick):
                del self._failures[position]
                raise failure.error
            position += 1

    def raise_any_failure(self) -> None:
        if self._failures:
            failure = self._failures.pop(0)
            raise failure.error
