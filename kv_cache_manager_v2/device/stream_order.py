"""Order between streams: points on streams, stored per slot, turned into events only where two streams meet.

A *timeline* is a stream as the library knows it; a *point* ``(timeline, tick)`` packed into one i64 means "all work enqueued
on that stream before tick". A slot has the point after which its bytes may be touched; a new user of the slot calls
`wait(timeline, point)`.

States of a timeline:
- LIVE: some active sequence (or the library itself) uses the stream, so that an event may be recorded on it at any time;
- RETIRED: no sequence does, the engine may destroy the stream; an event recorded on leaving covers every tick so far. If the same
  handle returns, it first waits for that event: the handle may by now name another stream.

Timelines are recycled, for engines with short-lived streams: with `_TIMELINES_KEPT` of them, a new stream takes over
the one that retired first. It waits for that event too and continues the ticks, so the points in slots keep their
meaning; later work of the timeline may just be on another stream. Slots need not be visited.
While there is a single timeline, `mark` is a counter and no event exists: work on one stream is in order anyway. From the
second timeline on, `mark` records, so that a later wait never waits for more than it must. No decision depends on any of
this: events order bytes, they never choose slots.

Where kernels are plain code of the caller's thread (`Device.runs_kernels_at_once`), no stream holds them back. There a call that has
made a sequence's stream wait ends with `settle`, at the door (`CallGuard`): outside the change, so that an interrupt breaks nothing.
Calls that no kernel follows `postpone` it: the stream is settled by the next call that orders anything on it.

A device may refuse an event, or a wait for one, in the middle of a change that cannot be undone. Then the host waits instead, and the
log says so. Only if that fails as well, the device's error is raised.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.errors import StorageIOError
from ..base.package_log import PackageLog
from .port import Device

NO_POINT: Final = 0
"""The point of a slot whose bytes may be touched at once."""

_logger: Final = PackageLog("kv_cache_manager_v2")

_TICK_BITS: Final = 44
_TICK_MASK: Final = (1 << 44) - 1
_EVENTS_KEPT: Final = 32
_NO_TIMELINE: Final = -1
_DONE: Final = -1
"""In place of an event that the device refused: the host has waited instead."""
_MAX_FAILED_READS: Final = 1000
_TIMELINES_KEPT: Final = 64
"""More than an engine has streams at one time; each retired one costs some hundred bytes and its events."""


def timeline_of_point(point: i64) -> i64:
    return point >> _TICK_BITS


@final
class Timeline:
    """One stream after another: the tick counter and the recorded events, oldest first."""

    __slots__ = (
        "stream", "index", "tick", "num_users", "event_ticks", "events", "seen", "seen_since", "retired_event", "retired_at",
        "is_slow", "is_own",
    )  # fmt: skip

    def __init__(self, stream: int, index: i64) -> None:
        self.stream = stream  # the present one, or the last
        self.index: Final = index
        self.tick: i64 = 1
        self.num_users: i64 = 0
        self.event_ticks = vec[i64]()
        self.events: list[int] = []
        self.seen = vec[i64]()  # by timeline index: the latest tick that this stream already waits for
        self.seen_since = vec[i64]()
        """By timeline index: this stream's own tick when it began to wait for that; earlier marks do not cover it."""
        self.retired_event = False  # RETIRED: events[-1] covers every tick
        self.retired_at: i64 = 0  # how many had retired before, the last time
        self.is_slow = False  # its work may wait for a lower tier
        self.is_own = False  # the library's: no kernel of the engine's runs on it


@final
class _Join:
    """A stream of our own that waits for two points, and the last pair of them."""

    __slots__ = ("index", "a", "b", "result")

    def __init__(self) -> None:
        self.index: i64 = _NO_TIMELINE
        self.a: i64 = NO_POINT
        self.b: i64 = NO_POINT
        self.result: i64 = NO_POINT


@final
class StreamOrder:
    """All timelines of a manager. Conservation: every event recorded here is in one timeline's list until released.

    ``num_kept``: the number of timelines from which on they are recycled.
    """

    __slots__ = (
        "settles", "_owed", "_postponed", "_device", "_num_kept", "_num_retired", "_timelines", "_by_stream", "_join", "_slow_join",
        "is_closed",
    )  # fmt: skip

    def __init__(self, device: Device, num_kept: i64 = _TIMELINES_KEPT) -> None:
        self.settles: Final[bool] = device.runs_kernels_at_once
        """Whether the host waits, in `settle`, for what streams of sequences wait for."""
        self._owed: Final[set[int]] = set()
        """Streams of sequences on which something was ordered since the last `settle`."""
        self._postponed: Final[set[int]] = set()
        self._device: Final = device
        self._num_kept: Final = num_kept
        self._num_retired: i64 = 0  # so far
        self.is_closed = False
        """Nothing is ordered any more: all streams are synchronised, and some events are released."""
        self._timelines: Final[list[Timeline]] = []
        self._by_stream: Final[dict[int, Timeline]] = {}
        self._join: Final = _Join()
        self._slow_join: Final = _Join()
        """For points of slow timelines, so that unrelated work never waits for them."""

    # -- timelines ----------------------------------------------------------------------------------------------------

    def enter(self, stream: int, is_own: bool = False) -> i64:
        """Begin a use of ``stream``; returns the timeline's index. Pairs with `leave`. ``is_own``: it is no sequence's.

        If the device rejects the handle, its error is raised here, and nothing has changed.
        """
        timeline = self._by_stream.get(stream)
        if timeline is None:
            timeline = self._take_over(stream)
            if timeline is None:
                timeline = self._add_timeline(stream)
        elif timeline.retired_event:
            # The handle may name a stream that was created after the one we knew was destroyed.
            if timeline.events[-1] != _DONE:
                self._device.wait_event(stream, timeline.events[-1])
            timeline.retired_event = False
        timeline.num_users += 1
        timeline.is_own = is_own
        if self.settles and not is_own:
            self._owed.add(timeline.stream)
        return timeline.index

    def leave(self, index: i64) -> None:
        """End a use of the stream; after the last one the engine may destroy the stream."""
        timeline = self._timelines[index]
        assert timeline.num_users > 0, "a stream was left more often than entered"
        timeline.num_users -= 1
        if timeline.num_users == 0:
            self._record(timeline)
            timeline.retired_event = True
            timeline.retired_at = self._num_retired
            self._num_retired += 1

    @property
    def num_timelines(self) -> int:
        return len(self._timelines)

    def enter_slow(self, stream: int) -> i64:
        """`enter` a stream whose work may wait for a lower tier, even a disk: `is_slow` is true for its points."""
        index = self.enter(stream, True)
        self._timelines[index].is_slow = True
        return index

    def is_slow(self, point: i64) -> bool:
        """Whether reaching the point may take as long as a transfer from a lower tier."""
        return point != NO_POINT and self._timelines[point >> _TICK_BITS].is_slow

    def stream_of(self, index: i64) -> int:
        return self._timelines[index].stream

    def stream_of_point(self, point: i64) -> int:
        return self._timelines[point >> _TICK_BITS].stream

    def _take_over(self, stream: int) -> Timeline | None:
        """The timeline that retired first, for a new stream; None while there are few, or none is retired."""
        if len(self._timelines) < self._num_kept:
            return None
        oldest: Timeline | None = None
        for timeline in self._timelines:
            if timeline.retired_event and (oldest is None or timeline.retired_at < oldest.retired_at):
                oldest = timeline
        if oldest is None:
            return None
        # Wait for all the timeline's points; a device that checks its handles raises here if this is no stream.
        if oldest.events[-1] != _DONE:
            self._device.wait_event(stream, oldest.events[-1])
        del self._by_stream[oldest.stream]
        oldest.stream = stream
        oldest.retired_event = False
        self._by_stream[stream] = oldest
        return oldest

    def _add_timeline(self, stream: int) -> Timeline:
        if len(self._timelines) == 1:
            # Until now marks were bare counters; record an event of the first stream that covers them.
            first = self._timelines[0]
            if not first.retired_event:
                self._record(first)
        timeline = Timeline(stream, len(self._timelines))
        # The event itself is not needed; a device that checks its handles raises here if this is no stream.
        self._record(timeline)
        self._timelines.append(timeline)
        self._by_stream[stream] = timeline
        return timeline

    # -- points -------------------------------------------------------------------------------------------------------

    def mark(self, index: i64) -> i64:
        """The point after all work enqueued on the timeline so far."""
        timeline = self._timelines[index]
        tick = timeline.tick
        point = (index << _TICK_BITS) | tick
        if len(self._timelines) > 1:
            self._record(timeline)
        else:
            timeline.tick = tick + 1
        return point

    def wait(self, index: i64, point: i64) -> None:
        """Order work enqueued on the timeline from now on after ``point``; free on the same stream."""
        if point == NO_POINT:
            return
        if len(self._postponed) > 0 and self._timelines[index].stream in self._postponed:
            self._owed.add(self._timelines[index].stream)
        source_index = point >> _TICK_BITS
        if source_index == index:
            return
        tick = point & _TICK_MASK
        timeline = self._timelines[index]
        if source_index < len(timeline.seen) and timeline.seen[source_index] >= tick:
            return
        source = self._timelines[source_index]
        position = self._event_position(source, tick)
        event = source.events[position]
        if event != _DONE:
            try:
                self._device.wait_event(timeline.stream, event)
            except Exception as error:
                self._wait_on_host(timeline.stream, event, error)
            if self.settles and not timeline.is_own:
                self._owed.add(timeline.stream)
        seen = timeline.seen
        since = timeline.seen_since
        while len(seen) <= source_index:
            seen = append(seen, 0)
            since = append(since, 0)
        event_tick = source.event_ticks[position]
        # In this order: cut off in between, it counts as not waited for.
        since[source_index] = timeline.tick
        timeline.seen_since = since
        seen[source_index] = event_tick
        timeline.seen = seen

    def wait_all(self, index: i64, points: vec[i64], slots: vec[i64], count: i64) -> None:
        """`wait` for the points of the first ``count`` slots: of neighbours on one timeline for the last one, which is after the others."""
        last: i64 = NO_POINT
        for position in range(count):
            point = points[slots[position]]
            if point >> _TICK_BITS != last >> _TICK_BITS:
                self.wait(index, last)
                last = point
            elif point > last:
                last = point
        self.wait(index, last)

    def advance(self, point: i64, index: i64, mark: i64) -> i64:
        """The point after both ``point`` and ``mark``, where ``mark`` is a mark of timeline ``index``.

        A mark made before the timeline began to wait for ``point`` does not include ``point``: then the two are joined.
        """
        source_index = point >> _TICK_BITS
        if source_index == index:
            # The mark may be the older one: a call makes it once, and may have copied afterwards.
            return mark if mark > point else point
        if point == NO_POINT:
            return mark
        timeline = self._timelines[index]
        seen = timeline.seen
        if source_index < len(seen) and seen[source_index] >= (point & _TICK_MASK):
            since = timeline.seen_since
            if since[source_index] <= (mark & _TICK_MASK):
                return mark
        return self._join_points(point, mark)

    def synchronize(self, point: i64) -> None:
        """Block the host until the point is reached."""
        if point == NO_POINT:
            return
        source = self._timelines[point >> _TICK_BITS]
        event = source.events[self._event_position(source, point & _TICK_MASK)]
        if event != _DONE:
            self._device.synchronize_event(event)

    def is_done(self, point: i64) -> bool:
        """Whether the point is reached; for display and for `ready`, never for a decision."""
        if point == NO_POINT:
            return True
        source = self._timelines[point >> _TICK_BITS]
        event = source.events[self._event_position(source, point & _TICK_MASK)]
        return event == _DONE or self._device.is_event_done(event)

    @property
    def owes(self) -> bool:
        """Whether `settle` has something to do."""
        return len(self._owed) > 0

    def settle(self) -> None:
        """Block the host until streams of sequences have what they wait for. May be called again after an interruption."""
        for stream in list(self._owed):
            self._device.settle_stream(stream)
            self._owed.discard(stream)
            self._postponed.discard(stream)

    def postpone(self) -> None:
        """The call ends, and no kernel comes before the next one that orders something on these streams."""
        self._postponed.update(self._owed)
        self._owed.clear()

    def close(self) -> None:
        """Release every event and our own streams. The caller has synchronised. May be called again after an interruption."""
        self.is_closed = True
        self._owed.clear()
        self._postponed.clear()
        for timeline in self._timelines:
            while len(timeline.events) > 0:
                event = timeline.events.pop()
                if event != _DONE:
                    self._device.release_event(event)
            timeline.event_ticks = vec[i64]()
        for join in (self._join, self._slow_join):
            if join.index != _NO_TIMELINE:
                stream = self._timelines[join.index].stream
                join.index = _NO_TIMELINE
                self._device.destroy_stream(stream)
        self._timelines.clear()
        self._by_stream.clear()

    def synchronize_all(self) -> None:
        """Block the host until all points in slots are reached.

        For an orderly shutdown: errors of the device (a destroyed stream, a sticky error) are logged, and the others are waited for.
        """
        if self.is_closed:
            return
        for timeline in self._timelines:
            try:
                if not timeline.retired_event:
                    self._record(timeline)
                if timeline.events[-1] != _DONE:
                    self._device.synchronize_event(timeline.events[-1])
            except Exception:
                _logger.exception("waiting for stream %s failed", timeline.stream)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _join_points(self, a: i64, b: i64) -> i64:
        """A point after both. Neither stream waits for the other; one of our own waits for both."""
        is_slow = self.is_slow(a) or self.is_slow(b)
        join = self._slow_join if is_slow else self._join
        if a == join.a and b == join.b:
            return join.result
        if join.index == _NO_TIMELINE:
            try:
                stream = self._device.create_stream()
            except Exception as error:
                source = self._timelines[a >> _TICK_BITS]
                event = source.events[self._event_position(source, a & _TICK_MASK)]
                if event != _DONE:
                    self._wait_on_host(source.stream, event, error)
                return b
            try:
                join.index = self.enter_slow(stream) if is_slow else self.enter(stream, True)
            except BaseException:
                self._device.destroy_stream(stream)
                raise
        self.wait(join.index, a)
        self.wait(join.index, b)
        # First the call that the device may refuse: only then is the pair stored.
        result = self.mark(join.index)
        join.result = result  # the first: it is after the old pair, too
        join.a = a
        join.b = b
        return result

    def _event_position(self, source: Timeline, tick: i64) -> i64:
        """Position of the earliest event recorded at or after ``tick``; records one if there is none."""
        count: i64 = len(source.events)
        if count == 0 or source.event_ticks[count - 1] < tick:
            self._record(source)
            return len(source.events) - 1
        position = count - 1
        while position > 0 and source.event_ticks[position - 1] >= tick:
            position -= 1
        return position

    def _record(self, timeline: Timeline) -> None:
        try:
            event = self._device.record_event(timeline.stream)
        except Exception as error:
            self._wait_on_host(timeline.stream, _DONE, error)
            event = _DONE
        ticks = append(timeline.event_ticks, timeline.tick)
        # In this order: cut off in between, later events stand for older points, which they cover.
        timeline.tick += 1
        timeline.event_ticks = ticks
        timeline.events.append(event)
        if len(timeline.events) > 2 * _EVENTS_KEPT:
            # A later event then covers an older point: correct, and done long ago.
            old = timeline.events[:_EVENTS_KEPT]
            timeline.events = timeline.events[_EVENTS_KEPT:]
            timeline.event_ticks = timeline.event_ticks[_EVENTS_KEPT:]
            self._release(old)

    def _release(self, events: list[int]) -> None:
        for event in events:
            if event != _DONE:
                self._device.release_event(event)

    # -- refusals of the device ---------------------------------------------------------------------------------------

    def _wait_on_host(self, stream: int, event: int, error: Exception) -> None:
        """The device has refused an event on ``stream``, or a wait for ``event`` (of another stream): block the host instead.

        Work enqueued from now on is then after everything that either call would have ordered.
        """
        if isinstance(error, AssertionError):
            raise error
        # Text, not the error: log records that are kept would keep its traceback, and so the frames and handles of callers.
        _logger.warning("the device refused to put streams in order, the host waits instead: %s", str(error))
        attempt: i64 = 0
        while True:
            try:
                if event == _DONE:
                    self._device.synchronize_stream(stream)
                else:
                    self._device.synchronize_event(event)
                return
            except StorageIOError:
                # An error of a read before it; each is raised once, and `take_failed_reads` has them all.
                attempt += 1
                if attempt > _MAX_FAILED_READS:
                    raise
            except Exception:
                raise error from None
