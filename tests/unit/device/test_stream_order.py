"""A stream that waits for a point is after everything the point stands for, whatever was marked, waited for and joined before.

The simulated device judges: work writes a byte of its own, and who has waited reads all bytes that the point stands for.
"""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2 import CacheTier
from kv_cache_manager_v2.device.port import HostKernel, MemoryAccess
from kv_cache_manager_v2.device.stream_order import StreamOrder
from kv_cache_manager_v2.testing import SimulatedDevice

_NUM_STREAMS = 3
_NUM_BYTES = 4096
_KINDS = ("record", "wait", "create_stream")

Step = tuple[str, int, int]


class _Touch(HostKernel):
    """Writes or reads single bytes."""

    def __init__(self, addresses: Sequence[int], is_write: bool) -> None:
        self._addresses = addresses
        self._is_write = is_write

    def accesses(self) -> Sequence[MemoryAccess]:
        return [MemoryAccess(address, 1, self._is_write) for address in self._addresses]

    def run(self) -> None:
        pass


class _Streams:
    """Streams with work on them, and for each point the bytes of all work that it stands for, by the plain meaning of the calls."""

    def __init__(self) -> None:
        self._device = SimulatedDevice(seed=0)
        self._base = self._device.reserve_range(CacheTier.GPU_MEM, _NUM_BYTES)
        self._device.map_memory(CacheTier.GPU_MEM, self._base, _NUM_BYTES)
        self._order = StreamOrder(self._device)
        self._streams = [self._device.create_stream() for _ in range(_NUM_STREAMS)]
        self._indices = [self._order.enter(stream) for stream in self._streams]
        self._num_works = 0
        self._after = [frozenset[int]() for _ in range(_NUM_STREAMS)]
        self._marks: list[tuple[int, int, frozenset[int]]] = []
        self._points: list[tuple[int, frozenset[int]]] = []

    def perform(self, step: Step) -> None:
        what, one, other = step
        if what == "refuse":
            self._device.faults.fail(_KINDS[one], 1 + other, RuntimeError("not now"))
        elif what == "work":
            address = self._base + self._num_works
            self._num_works += 1
            self._device.launch(self._streams[one], _Touch([address], True))
            self._after[one] |= {address}
        elif what == "mark":
            mark = int(self._order.mark(self._indices[one]))
            self._marks.append((one, mark, self._after[one]))
            self._points.append((mark, self._after[one]))
        elif what == "wait" and self._points:
            point, needed = self._points[other % len(self._points)]
            self._order.wait(self._indices[one], point)
            self._device.launch(self._streams[one], _Touch(sorted(needed), False))
            self._after[one] |= needed
        elif what == "wait_all" and self._points:
            # The last points, the newest one first or last: as those of the slots of pages that go together.
            waited = self._points[-(1 + other // 2) :]
            slots = [int(slot) for slot in range(len(waited))]
            slots = slots if other % 2 == 0 else slots[::-1]
            self._order.wait_all(self._indices[one], vec[i64]([point for point, _ in waited]), vec[i64](slots), len(slots))
            needed = frozenset[int]().union(*[bytes_before for _, bytes_before in waited])
            self._device.launch(self._streams[one], _Touch(sorted(needed), False))
            self._after[one] |= needed
        elif what == "advance" and self._points:
            point, needed = self._points[other % len(self._points)]
            stream, mark, marked = self._marks[one % len(self._marks)]
            self._points.append((int(self._order.advance(point, self._indices[stream], mark)), needed | marked))


_stream = st.integers(0, _NUM_STREAMS - 1)
_steps = st.one_of(
    st.tuples(st.just("work"), _stream, st.just(0)),
    st.tuples(st.just("mark"), _stream, st.just(0)),
    st.tuples(st.just("wait"), _stream, st.integers(0, 20)),
    st.tuples(st.just("wait_all"), _stream, st.integers(0, 9)),
    st.tuples(st.just("advance"), st.integers(0, 20), st.integers(0, 20)),
)
_steps_and_refusals = st.one_of(_steps, st.tuples(st.just("refuse"), _stream, st.integers(0, 5)))


# Stream 1 marks, waits for stream 0, and gives the bytes of both back with that mark, which is too early for those of stream 0.
@example([("work", 0, 0), ("mark", 0, 0), ("mark", 1, 0), ("wait", 1, 0), ("advance", 1, 0), ("wait", 2, 2)])
# A mark that is older than the point, of the same stream.
@example([("mark", 0, 0), ("work", 0, 0), ("mark", 0, 0), ("advance", 0, 1), ("wait", 1, 2)])
@given(st.lists(_steps, max_size=60))
def test_waiting_is_being_after(steps: list[Step]) -> None:
    streams = _Streams()
    for step in steps:
        streams.perform(step)


@given(st.lists(_steps_and_refusals, max_size=60))
def test_so_it_is_when_the_device_refuses_events_waits_and_streams(steps: list[Step]) -> None:
    streams = _Streams()
    for step in steps:
        streams.perform(step)


def test_what_can_neither_be_ordered_nor_waited_for_is_said() -> None:
    device = SimulatedDevice(seed=0)
    order = StreamOrder(device)
    first, second = (order.enter(device.create_stream()) for _ in range(2))
    mark = order.mark(first)
    device.faults.fail("wait", 1, RuntimeError("no wait today"))
    device.faults.fail("synchronize", 1, RuntimeError("nor on the host"))
    with pytest.raises(RuntimeError, match="no wait today"):
        order.wait(second, mark)
    order.wait(second, mark)
    device.faults.fail("record", 1, RuntimeError("no event today"))
    device.faults.fail("synchronize", 1, RuntimeError("nor on the host"))
    with pytest.raises(RuntimeError, match="no event today"):
        order.mark(first)
    num_waits = device.num_host_waits
    device.faults.fail("record", 1, RuntimeError("no event today"))
    mark = order.mark(first)
    assert device.num_host_waits == num_waits + 1 and order.is_done(mark)
    order.wait(second, mark)
    order.synchronize(mark)
    order.leave(first)
    order.close()


def test_without_a_stream_to_join_two_points_the_host_waits_for_one() -> None:
    """So the other one is after both."""
    device = SimulatedDevice(0, eager=False)
    order = StreamOrder(device)
    first, second = (order.enter(device.create_stream()) for _ in range(2))
    before, mark = order.mark(first), order.mark(second)
    num_waits = device.num_host_waits
    device.faults.fail("create_stream", 1, RuntimeError("no more streams"))
    assert order.advance(before, second, mark) == mark
    assert device.num_host_waits == num_waits + 1 and order.is_done(before)
    order.leave(first)
    order.leave(second)
    order.close()


def test_a_point_is_reached_whatever_comes_later_on_its_stream() -> None:
    """`ready` would else be false until the whole step is over."""
    device = SimulatedDevice(0, eager=False)
    order = StreamOrder(device)
    first, second = (order.enter(device.create_stream()) for _ in range(2))
    early = order.mark(first)
    order.wait(second, early)
    device.synchronize_stream(order.stream_of(first))
    device.hold_stream(order.stream_of(first))
    late = order.mark(first)
    order.wait(second, late)
    assert order.is_done(early) and not order.is_done(late)
    device.release_stream(order.stream_of(first))
    order.synchronize(late)
    order.leave(first)
    order.leave(second)
    order.close()
