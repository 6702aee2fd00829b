"""Which calls of the device the order of streams costs: beside the rules in plain Python, call by call, refusals included.

A wait too many, an event that is kept too long, or a host that waits where a stream could, changes no byte and shows nowhere else.
"""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from forwarding_device import ForwardingDevice
from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2 import StorageIOError
from kv_cache_manager_v2.device.stream_order import NO_POINT, StreamOrder, timeline_of_point

EVENTS_KEPT = 32
NUM_KEPT = 4
TICK_BITS = 44


class RecordingDevice(ForwardingDevice):
    """Streams and events are numbers. Calls of `refused` numbers raise: with True as a failed read, which is said once."""

    def __init__(self, runs_at_once: bool) -> None:
        super().__init__()
        self.runs_at_once = runs_at_once
        self.calls: list[tuple[object, ...]] = []
        self.refused: dict[int, bool] = {}
        self.num_streams = 0
        self.num_events = 0
        self.done: set[int] = set()

    def _call(self, *call: object) -> None:
        self.calls.append(call)
        refusal = self.refused.get(len(self.calls))
        if refusal is not None:
            raise StorageIOError("a read failed") if refusal else RuntimeError(f"call {len(self.calls)} is refused")

    @property
    def runs_kernels_at_once(self) -> bool:
        return self.runs_at_once

    def create_stream(self) -> int:
        self._call("create stream")
        self.num_streams += 1
        return 1000 + self.num_streams

    def destroy_stream(self, stream: int) -> None:
        self._call("destroy", stream)

    def settle_stream(self, stream: int) -> None:
        self._call("settle", stream)

    def synchronize_stream(self, stream: int) -> None:
        self._call("synchronize stream", stream)

    def record_event(self, stream: int) -> int:
        self._call("record", stream)
        self.num_events += 1
        return self.num_events

    def wait_event(self, stream: int, event: int) -> None:
        self._call("wait", stream, event)

    def synchronize_event(self, event: int) -> None:
        self._call("synchronize", event)
        self.done.add(event)

    def is_event_done(self, event: int) -> bool:
        self._call("is done", event)
        return event in self.done

    def release_event(self, event: int) -> None:
        self._call("release", event)


class PlainTimeline:
    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.tick = 1
        self.num_users = 0
        self.events: list[tuple[int, int | None]] = []
        """Ticks and events; None where the host has waited instead."""
        self.seen: dict[int, tuple[int, int]] = {}
        """By timeline: up to which tick it is waited for, and since which own tick."""
        self.retired_at: int | None = None
        self.is_slow = False
        self.is_own = False


class PlainOrder:
    """What the docstrings of `StreamOrder` say. Points are pairs; (-1, 0) is none."""

    def __init__(self, device: RecordingDevice) -> None:
        self.device = device
        self.timelines: list[PlainTimeline] = []
        self.of_stream: dict[int, int] = {}
        self.num_retired = 0
        self.owed: set[int] = set()
        self.postponed: set[int] = set()
        self.joins: dict[bool, tuple[int, tuple[object, object] | None, tuple[int, int]]] = {}

    def enter(self, stream: int, is_own: bool = False, is_slow: bool = False) -> int:
        index = self.of_stream.get(stream)
        if index is None:
            retired = [(line.retired_at, number) for number, line in enumerate(self.timelines) if line.retired_at is not None]
            if len(self.timelines) >= NUM_KEPT and retired:
                index = min(retired)[1]
                self._return(index, stream)
                del self.of_stream[self.timelines[index].stream]
                self.timelines[index].stream = stream
            else:
                index = self._add(stream)
            self.of_stream[stream] = index
        elif self.timelines[index].retired_at is not None:
            self._return(index, stream)
        line = self.timelines[index]
        line.num_users += 1
        line.is_own = is_own
        line.is_slow = line.is_slow or is_slow
        if self.device.runs_at_once and not is_own:
            self.owed.add(stream)
        return index

    def _return(self, index: int, stream: int) -> None:
        event = self.timelines[index].events[-1][1]
        if event is not None:
            self.device.wait_event(stream, event)
        self.timelines[index].retired_at = None

    def _add(self, stream: int) -> int:
        if len(self.timelines) == 1 and self.timelines[0].retired_at is None:
            self._record(self.timelines[0])
        line = PlainTimeline(stream)
        self._record(line)
        self.timelines.append(line)
        return len(self.timelines) - 1

    def leave(self, index: int) -> None:
        line = self.timelines[index]
        line.num_users -= 1
        if line.num_users == 0:
            self._record(line)
            line.retired_at = self.num_retired
            self.num_retired += 1

    def mark(self, index: int) -> tuple[int, int]:
        line = self.timelines[index]
        tick = line.tick
        if len(self.timelines) > 1:
            self._record(line)
        else:
            line.tick += 1
        return index, tick

    def wait(self, index: int, point: tuple[int, int]) -> None:
        source, tick = point
        if source < 0:
            return
        line = self.timelines[index]
        if line.stream in self.postponed:
            self.owed.add(line.stream)
        if source == index or line.seen.get(source, (0, 0))[0] >= tick:
            return
        covered, event = self._event(source, tick)
        if event is not None:
            try:
                self.device.wait_event(line.stream, event)
            except Exception as error:
                self._wait_on_host(line.stream, event, error)
            if self.device.runs_at_once and not line.is_own:
                self.owed.add(line.stream)
        line.seen[source] = (covered, line.tick)

    def wait_all(self, index: int, points: list[tuple[int, int]]) -> None:
        last = (-1, 0)
        for point in points:
            if point[0] != last[0]:
                self.wait(index, last)
                last = point
            last = max(last, point)
        self.wait(index, last)

    def advance(self, point: tuple[int, int], index: int, mark: tuple[int, int]) -> tuple[int, int]:
        if point[0] == index:
            return max(point, mark)
        if point[0] < 0:
            return mark
        seen, since = self.timelines[index].seen.get(point[0], (0, 0))
        if seen >= point[1] and since <= mark[1]:
            return mark
        return self._join(point, mark)

    def _join(self, first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
        is_slow = self.timelines[first[0]].is_slow or self.timelines[second[0]].is_slow
        known = self.joins.get(is_slow)
        if known is not None and known[1] == (first, second):
            return known[2]
        if known is None:
            try:
                stream = self.device.create_stream()
            except Exception as error:
                event = self._event(*first)[1]
                if event is not None:
                    self._wait_on_host(self.timelines[first[0]].stream, event, error)
                return second
            try:
                index = self.enter(stream, True, is_slow)
            except BaseException:
                self.device.destroy_stream(stream)
                raise
            self.joins[is_slow] = (index, None, (-1, 0))
        else:
            index = known[0]
        self.wait(index, first)
        self.wait(index, second)
        result = self.mark(index)
        self.joins[is_slow] = (index, (first, second), result)
        return result

    def synchronize(self, point: tuple[int, int]) -> None:
        if point[0] >= 0:
            event = self._event(*point)[1]
            if event is not None:
                self.device.synchronize_event(event)

    def is_done(self, point: tuple[int, int]) -> bool:
        if point[0] < 0:
            return True
        event = self._event(*point)[1]
        return event is None or self.device.is_event_done(event)

    def settle(self) -> None:
        for stream in list(self.owed):
            self.device.settle_stream(stream)
            self.owed.discard(stream)
            self.postponed.discard(stream)

    def postpone(self) -> None:
        self.postponed |= self.owed
        self.owed.clear()

    def synchronize_all(self) -> None:
        for line in self.timelines:
            try:
                if line.retired_at is None:
                    self._record(line)
                event = line.events[-1][1]
                if event is not None:
                    self.device.synchronize_event(event)
            except Exception:
                pass

    def close(self) -> None:
        for line in self.timelines:
            while line.events:
                event = line.events.pop()[1]
                if event is not None:
                    self.device.release_event(event)
        for is_slow in (False, True):
            if is_slow in self.joins:
                self.device.destroy_stream(self.timelines[self.joins.pop(is_slow)[0]].stream)

    def _event(self, source: int, tick: int) -> tuple[int, int | None]:
        """The earliest that covers the tick."""
        line = self.timelines[source]
        if not line.events or line.events[-1][0] < tick:
            self._record(line)
        return min([item for item in line.events if item[0] >= tick], key=lambda item: item[0])

    def _record(self, line: PlainTimeline) -> None:
        event: int | None
        try:
            event = self.device.record_event(line.stream)
        except Exception as error:
            self._wait_on_host(line.stream, None, error)
            event = None
        line.events.append((line.tick, event))
        line.tick += 1
        if len(line.events) > 2 * EVENTS_KEPT:
            for _, old in line.events[:EVENTS_KEPT]:
                if old is not None:
                    self.device.release_event(old)
            line.events = line.events[EVENTS_KEPT:]

    def _wait_on_host(self, stream: int, event: int | None, error: Exception) -> None:
        while True:
            try:
                if event is None:
                    self.device.synchronize_stream(stream)
                else:
                    self.device.synchronize_event(event)
                return
            except StorageIOError:
                pass
            except Exception:
                raise error from None


class Pair:
    """The same calls on both; what they return or raise, and what the device is asked, must be equal."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        runs_at_once = seed % 3 == 0
        self.devices = RecordingDevice(runs_at_once), RecordingDevice(runs_at_once)
        self.order = StreamOrder(self.devices[0], NUM_KEPT)
        self.plain = PlainOrder(self.devices[1])
        self.uses: list[tuple[int, int]] = []
        self.points: list[tuple[int, int]] = [(-1, 0)]
        self.marks: list[tuple[int, tuple[int, int]]] = []
        self.kinds: Counter[str] = Counter()
        self.refuses = seed % 2 == 0
        self.most_streams = self.random.choice((1, 2, 3, 7))

    def to_point(self, point: tuple[int, int]) -> int:
        return NO_POINT if point[0] < 0 else point[0] << TICK_BITS | point[1]

    def to_pair(self, point: int) -> tuple[int, int]:
        assert point == NO_POINT or timeline_of_point(point) == point >> TICK_BITS
        return (-1, 0) if point == NO_POINT else (point >> TICK_BITS, point & ((1 << TICK_BITS) - 1))

    def refuse_some(self) -> None:
        if self.refuses and self.random.random() < 0.12:
            first = self.random.choice((1, 1, 2, 3))
            for later in range(first, first + self.random.choice((1, 2, 3))):
                is_failed_read = self.random.random() < 0.3
                for device in self.devices:
                    device.refused[len(device.calls) + later] = is_failed_read

    def act(self) -> None:
        random = self.random
        self.refuse_some()
        draw = random.random()
        points = self.points[-40:] if random.random() < 0.7 else self.points
        if not self.uses or draw < 0.08:
            stream, own, slow = random.randrange(1, self.most_streams + 1), random.random() < 0.3, random.random() < 0.15
            entered = self.same("enter", lambda: self.enter(stream, own, slow), lambda: self.plain.enter(stream, own or slow, slow))
            if isinstance(entered, int):
                self.uses.append((stream, entered))
        elif draw < 0.14:
            position = random.randrange(len(self.uses))
            index = self.uses.pop(position)[1]
            self.same("leave", lambda: self.order.leave(index), lambda: self.plain.leave(index))
        elif draw < 0.4:
            index = random.choice(self.uses)[1]
            mark = self.same("mark", lambda: self.to_pair(self.order.mark(index)), lambda: self.plain.mark(index))
            if isinstance(mark, tuple):
                self.points.append(mark)
                self.marks.append((index, mark))
        elif draw < 0.6:
            index, point = random.choice(self.uses)[1], random.choice(points)
            self.same("wait", lambda: self.order.wait(index, self.to_point(point)), lambda: self.plain.wait(index, point))
        elif draw < 0.65:
            index, some = random.choice(self.uses)[1], [random.choice(points) for _ in range(random.randrange(5))]
            slots = vec[i64](range(len(some)))
            packed = vec[i64]([self.to_point(point) for point in some])
            self.same("wait all", lambda: self.order.wait_all(index, packed, slots, len(some)), lambda: self.plain.wait_all(index, some))
        elif draw < 0.82 and self.marks:
            index, mark = random.choice(self.marks[-12:] if random.random() < 0.8 else self.marks)
            point = random.choice(points)
            found = self.same(
                "advance",
                lambda: self.to_pair(self.order.advance(self.to_point(point), index, self.to_point(mark))),
                lambda: self.plain.advance(point, index, mark),
            )
            if isinstance(found, tuple):
                self.points.append(found)
        elif draw < 0.86:
            point = random.choice(points)
            self.same("synchronize", lambda: self.order.synchronize(self.to_point(point)), lambda: self.plain.synchronize(point))
        elif draw < 0.93:
            point = random.choice(points)
            self.same("is done", lambda: self.order.is_done(self.to_point(point)), lambda: self.plain.is_done(point))
        elif draw < 0.94:
            self.same("synchronize all", self.order.synchronize_all, self.plain.synchronize_all)
        elif draw < 0.97:
            self.same("settle", self.order.settle, self.plain.settle)
        else:
            self.same("postpone", self.order.postpone, self.plain.postpone)
        self.compare()

    def enter(self, stream: int, own: bool, slow: bool) -> int:
        return int(self.order.enter_slow(stream) if slow else self.order.enter(stream, own))

    def compare(self) -> None:
        plain = self.plain
        assert self.order.num_timelines == len(plain.timelines)
        assert self.order.owes is (len(plain.owed) > 0)
        for number, line in enumerate(plain.timelines):
            assert self.order.stream_of(number) == self.order.stream_of_point(number << TICK_BITS | 1) == line.stream
            assert self.order.is_slow(number << TICK_BITS | 1) is line.is_slow
        assert not self.order.is_slow(NO_POINT) and not self.order.is_closed

    def same(self, kind: str, real: Callable[[], object], plain: Callable[[], object]) -> object:
        results: list[object] = []
        for call in (real, plain):
            try:
                results.append(call())
            except (RuntimeError, StorageIOError) as error:
                results.append(str(error))
        self.kinds[kind] += 1
        assert results[0] == results[1], kind
        assert self.devices[0].calls == self.devices[1].calls, kind
        for device in self.devices:
            device.refused.clear()
        return results[0]


@pytest.mark.parametrize("seed", range(60))
def test_no_call_of_the_device_too_many_and_none_too_few(seed: int) -> None:
    pair = Pair(seed)
    # Long ones have more events on a stream than are kept.
    for _ in range(900 if seed % 4 == 1 or seed % 4 == 2 else 220):
        pair.act()
    pair.same("synchronize all", pair.order.synchronize_all, pair.plain.synchronize_all)
    pair.same("close", pair.order.close, pair.plain.close)
    assert pair.order.is_closed and not pair.order.owes and pair.order.num_timelines == 0
    pair.order.synchronize_all()
    assert pair.devices[0].calls == pair.devices[1].calls
    assert min(pair.kinds[kind] for kind in ("enter", "leave", "mark", "wait", "wait all", "advance", "is done", "settle")) > 0


def test_failed_reads_are_waited_out_up_to_a_thousand() -> None:
    """Each failed read is said once, by whatever waits; a device that goes on saying so is taken at its word."""
    device = RecordingDevice(False)
    order = StreamOrder(device)
    first = order.enter(1)
    order.enter(2)
    num_calls = len(device.calls)
    device.refused = {num_calls + 1: False}
    device.refused.update({num_calls + 2 + number: True for number in range(1000)})
    order.mark(first)
    assert len(device.calls) == num_calls + 1 + 1000 + 1
    num_calls = len(device.calls)
    device.refused = {num_calls + 1: False}
    device.refused.update({num_calls + 2 + number: True for number in range(2000)})
    with pytest.raises(StorageIOError):
        order.mark(first)
    assert len(device.calls) == num_calls + 1 + 1001


def test_a_stream_that_cannot_be_used_to_join_points_is_destroyed() -> None:
    """It was created, then the device takes neither an event on it nor a wait of the host for it."""
    device = RecordingDevice(False)
    order = StreamOrder(device)
    first, second = order.enter(1), order.enter(2)
    point, mark = order.mark(first), order.mark(second)
    num_calls = len(device.calls)
    device.refused = {num_calls + 2: False, num_calls + 3: False}
    with pytest.raises(RuntimeError, match=f"call {num_calls + 2} is refused"):
        order.advance(point, second, mark)
    stream = 1000 + device.num_streams
    assert device.calls[num_calls:] == [("create stream",), ("record", stream), ("synchronize stream", stream), ("destroy", stream)]
    assert order.num_timelines == 2
