"""Operations in a stream's queue, and events between streams.

An operation has copied everything it needs when it is enqueued; it decides itself whether it may run now (`is_ready`),
but a stream offers only its oldest one.
"""

import ctypes
from abc import ABCMeta, abstractmethod
from typing import Final, final


from ..base.errors import StorageIOError
from ..device.port import HostKernel
from .happens_before import VectorClock
from .simulated_disks import SimulatedDisks, copy_error

FAILED_READ_POISON: Final = 0xE7
"""The contents of a failed read's destination."""


@final
class SimulatedEvent:
    """A point on a stream: ``position`` operations of that stream are done when the event is."""

    __slots__ = ("handle", "stream", "position", "clock", "is_done", "is_held", "is_seen")

    def __init__(self, handle: int, stream: int, position: int, clock: VectorClock) -> None:
        self.handle: Final = handle
        self.stream: Final = stream  # index of the queue in the scheduler, not a handle: those are recycled
        self.position: Final = position
        self.clock: Final = clock
        self.is_done = False
        self.is_held = False
        self.is_seen = False  # the host has seen that it is done


class Operation(metaclass=ABCMeta):
    __slots__ = ("tick",)

    def __init__(self, tick: int) -> None:
        self.tick: Final = tick

    def is_ready(self) -> bool:
        """Whether it may run, if it is the oldest of its stream."""
        return True

    @abstractmethod
    def run(self) -> None: ...


@final
class CopyOperation(Operation):
    """``read_error`` fails the first copy, whose destination is poisoned. ``write_error`` is recorded as the failure of the
    disk range; the bytes are copied, as on a device that keeps them in memory.
    """

    __slots__ = ("dst_addresses", "src_addresses", "num_bytes", "read_error", "write_error", "disks", "disk_range")

    def __init__(self, tick: int, dst_addresses: list[int], src_addresses: list[int], num_bytes: int) -> None:
        super().__init__(tick)
        self.dst_addresses: Final = dst_addresses
        self.src_addresses: Final = src_addresses
        self.num_bytes: Final = num_bytes
        self.read_error: StorageIOError | None = None
        self.write_error: StorageIOError | None = None
        self.disks: SimulatedDisks | None = None
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
class FillOperation(Operation):
    __slots__ = ("_address", "_num_bytes", "_value")

    def __init__(self, tick: int, address: int, num_bytes: int, value: int) -> None:
        super().__init__(tick)
        self._address: Final = address
        self._num_bytes: Final = num_bytes
        self._value: Final = value

    def run(self) -> None:
        ctypes.memset(self._address, self._value, self._num_bytes)


@final
class KernelOperation(Operation):
    __slots__ = ("_kernel",)

    def __init__(self, tick: int, kernel: HostKernel) -> None:
        super().__init__(tick)
        self._kernel: Final = kernel

    def run(self) -> None:
        self._kernel.run()


@final
class RecordOperation(Operation):
    __slots__ = ("_event",)

    def __init__(self, tick: int, event: SimulatedEvent) -> None:
        super().__init__(tick)
        self._event: Final = event

    def is_ready(self) -> bool:
        return not self._event.is_held

    def run(self) -> None:
        self._event.is_done = True


@final
class WaitOperation(Operation):
    __slots__ = ("event",)

    def __init__(self, tick: int, event: SimulatedEvent) -> None:
        super().__init__(tick)
        self.event: Final = event

    def is_ready(self) -> bool:
        return self.event.is_done

    def run(self) -> None:
        pass
