"""Operations in a stream's queue, and events between streams.

An operation has copied everything it needs when it is enqueued; it decides itself whether it may run now (`is_ready`),
but a stream offers only its oldest one.
"""

import ctypes
from abc import ABCMeta, abstractmethod
from typing import Final, final

from mypy_extensions import mypyc_attr

from ..base.errors import StorageIOError
from ..device.port import HostKernel
from .happens_before import VectorClock
from .simulated_disks import SimulatedDisks, copy_error

FAILED_READ_POISON: Final = 0xE7
"""The contents of a failed read's destination."""


@final
@mypyc_attr(native_class=True)
class SimulatedEvent:
    """A point on a stream: ``position`` operations of that stream are done when the event is."""

    __slots__ = ("handle", "stream", "position", "clock", "is_done", "is_held", "is_seen")

    handle: Final[int]
    stream: Final[int]  # index of the queue in the scheduler, not a handle: those are recycled
    position: Final[int]
    clock: Final[VectorClock]
    is_done: bool
    is_held: bool
    is_seen: bool  # the host has seen that it is done

    def __init__(self, handle: int, stream: int, position: int, clock: VectorClock) -> None:
        self.handle = handle
        self.stream = stream
        self.position = position
        self.clock = clock
        self.is_done = False
        self.is_held = False
        self.is_seen = False


@mypyc_attr(native_class=True)
class Operation(metaclass=ABCMeta):
    __slots__ = ("tick",)

    tick: Final[int]

    def __init__(self, tick: int) -> None:
        self.tick = tick

    def is_ready(self) -> bool:
        """Whether it may run, if it is the oldest of its stream."""
        return True

    @abstractmethod
    def run(self) -> None: ...


@final
@mypyc_attr(native_class=True)
class CopyOperation(Operation):
    """``read_error`` fails the first copy, whose destination is poisoned. ``write_error`` is recorded as the failure of the
    disk range; the bytes are copied, as on a device that keeps them in memory.
    """

    __slots__ = ("dst_addresses", "src_addresses", "num_bytes", "read_error", "write_error", "disks", "disk_range")

    dst_addresses: Final[list[int]]
    src_addresses: Final[list[int]]
    num_bytes: Final[int]
    read_error: StorageIOError | None
    write_error: StorageIOError | None
    disks: SimulatedDisks | None
    disk_range: int

    def __init__(self, tick: int, dst_addresses: list[int], src_addresses: list[int], num_bytes: int) -> None:
        super().__init__(tick)
        self.dst_addresses = dst_addresses
        self.src_addresses = src_addresses
        self.num_bytes = num_bytes
        self.read_error = None
        self.write_error = None
        self.disks = None
        self.disk_range = 0

    def run(self) -> None:
        for position in range(len(self.dst_addresses)):
            if position == 0 and self.read_error is not None:
                ctypes.memset(self.dst_addresses[0], FAILED_READ_POISON, self.num_bytes)
            else:
                ctypes.memmove(self.dst_addresses[position], self.src_addresses[position], self.num_bytes)
        if self.disks is not None and self.write_error is not None:
            self.disks.record_failure(self.disk_range, self.write_error)
        if self.read_error is not None:
            if self.disks is not None:
                # Another object: the raised one has a traceback, which would keep its frames until this one is taken.
                self.disks.failed_reads.append(copy_error(self.read_error))
            raise self.read_error


@final
@mypyc_attr(native_class=True)
class FillOperation(Operation):
    __slots__ = ("_address", "_num_bytes", "_value")

    _address: Final[int]
    _num_bytes: Final[int]
    _value: Final[int]

    def __init__(self, tick: int, address: int, num_bytes: int, value: int) -> None:
        super().__init__(tick)
        self._address = address
        self._num_bytes = num_bytes
        self._value = value

    def run(self) -> None:
        ctypes.memset(self._address, self._value, self._num_bytes)


@final
@mypyc_attr(native_class=True)
class KernelOperation(Operation):
    __slots__ = ("_kernel",)

    _kernel: Final[HostKernel]

    def __init__(self, tick: int, kernel: HostKernel) -> None:
        super().__init__(tick)
        self._kernel = kernel

    def run(self) -> None:
        self._kernel.run()


@final
@mypyc_attr(native_class=True)
class RecordOperation(Operation):
    __slots__ = ("_event",)

    _event: Final[SimulatedEvent]

    def __init__(self, tick: int, event: SimulatedEvent) -> None:
        super().__init__(tick)
        self._event = event

    def is_ready(self) -> bool:
        return not self._event.is_held

    def run(self) -> None:
        self._event.is_done = True


@final
@mypyc_attr(native_class=True)
class WaitOperation(Operation):
    __slots__ = ("event",)

    event: Final[SimulatedEvent]

    def __init__(self, tick: int, event: SimulatedEvent) -> None:
        super().__init__(tick)
        self.event = event

    def is_ready(self) -> bool:
        return self.event.is_done

    def run(self) -> None:
        pass
