"""The device port: all that the library needs of a device and of the operating system's memory.

A `Device` hands out address ranges and backs them with physical memory by the chunk; it owns streams, events and
copies. Everything above this folder is the same on every device. Calls on a stream only *enqueue*; the caller of a
copy, a fill or a launch guarantees that the addresses stay mapped until a later event on that stream is done.

What every device guarantees (`tests/contract` tests each of them):
- work on one stream runs in the order in which it was enqueued;
- `wait_event` orders a stream behind an event without blocking the host;
- an event handle belongs to the caller until `release_event`, and is recycled afterwards;
- a call that fails raises and has changed nothing. A batch of copies is refused as a whole, before any byte is written; a driver that
  takes copies only one by one may refuse a later one, which is a `PartlyCopiedError`, and leaves all destinations undefined. So does a
  fill that fails, and work that fails after it was enqueued;
- a value that can never be right (a tier that the device lacks, a size that is no positive multiple of the granularity,
  a fill byte above 255) is a `ValueError`; a call that does not fit the state (addresses that are not reserved or not
  mapped, a released handle) is a `LogicError`; no memory or no addresses is an `OutOfMemoryError`;
- work that fails after it was enqueued raises, once, from the first `is_event_done` or `synchronize_*` of work
  enqueued after it; the streams continue.

**Disk.** A range of the DISK tier is one file; its addresses are numbers like any others, but only copies may touch them.
`copy_batch` never waits for the disk: an event recorded after a copy from or to it is open until worker threads are
done. Failures of a disk:
- a full disk is an `OutOfMemoryError` of `map_memory`, never of a copy;
- a write that fails loses nothing: the bytes are kept in memory, copies from that address find them there until it is
  overwritten or unmapped, `disk_failure` of that range is set for good, and the log says so once;
- a read that fails is a `StorageIOError`, raised like any failed work; its destination is undefined.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from ..base.errors import LogicError, StorageIOError
from ..base.handle import Handle
from ..base.ids import CacheTier
from ..base.value import Value
from .copy_log import CopyLog
from .file_port import FilePort
from .slot_watch import SlotWatch
from .wakeup import Wakeup


NO_TIMER: Final = 0
"""No timer: the device has no clock, or refused one just now."""
STILL_RUNNING: Final = -1.0
NOT_MEASURED: Final = -2.0


@final
class CopyBatch(Handle):
    """Equal-sized copies between two tiers, collected and then enqueued as one call.

    ``dst_addresses[i] <- src_addresses[i]``, ``num_bytes`` each, for ``i < count``; items behind ``count`` are remains
    from before `clear`. No copy of a batch may depend on another one of the same batch.
    """

    __slots__ = ("dst_tier", "src_tier", "num_bytes", "count", "dst_addresses", "src_addresses")

    def __init__(self, dst_tier: CacheTier, src_tier: CacheTier, num_bytes: i64) -> None:
        self.dst_tier: Final[CacheTier] = dst_tier
        self.src_tier: Final[CacheTier] = src_tier
        self.num_bytes: Final[i64] = num_bytes
        self.count: i64 = 0
        self.dst_addresses: vec[i64] = vec[i64]()
        self.src_addresses: vec[i64] = vec[i64]()

    def add(self, dst_address: i64, src_address: i64) -> None:
        """Add a copy of ``num_bytes``."""
        index = self.count
        if index < len(self.dst_addresses):
            self.dst_addresses[index] = dst_address
            self.src_addresses[index] = src_address
        else:
            self.dst_addresses = append(self.dst_addresses, dst_address)
            self.src_addresses = append(self.src_addresses, src_address)
        self.count = index + 1

    def clear(self) -> None:
        """Empty the batch and keep its memory for the next one."""
        self.count = 0


@final
class MemoryAccess(Value):
    """One byte range that a kernel reads or writes."""

    __slots__ = ("address", "num_bytes", "is_write")

    def __init__(self, address: int, num_bytes: int, is_write: bool) -> None:
        self.address: Final[int] = address
        self.num_bytes: Final[int] = num_bytes
        self.is_write: Final[bool] = is_write


@mypyc_attr(allow_interpreted_subclasses=True)
class HostKernel(Handle, metaclass=ABCMeta):
    """Work that a software device runs on the host, in the order of a stream."""

    __slots__ = ()

    @abstractmethod
    def accesses(self) -> Sequence[MemoryAccess]:
        """Every byte range that `run` touches; read by devices that detect races."""
        raise NotImplementedError("HostKernel.accesses is for subclasses to define")

    @abstractmethod
    def run(self) -> None:
        """Do the work. Called exactly once; an exception reaches the caller that synchronises with the stream, or the launcher."""
        raise NotImplementedError("HostKernel.run is for subclasses to define")


@mypyc_attr(allow_interpreted_subclasses=True)
class Device(Handle, metaclass=ABCMeta):
    """One GPU, or a replacement for one. The module's docstring has the guarantees of all devices."""

    __slots__ = ()

    # -- properties ---------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def name(self) -> str:
        """For logs and reports, e.g. ``"host"`` or ``"cuda:0 NVIDIA H200"``."""
        raise NotImplementedError("Device.name is for subclasses to define")

    @property
    @abstractmethod
    def is_software(self) -> bool:
        """True if level 0 is host memory: addresses can be read by the host and `launch` takes a `HostKernel`."""
        raise NotImplementedError("Device.is_software is for subclasses to define")

    @property
    def has_memory(self) -> bool:
        """False if addresses are mere numbers: what needs them is refused."""
        return True

    @property
    def runs_kernels_at_once(self) -> bool:
        """True if kernels may be plain code of the caller's thread, which no stream holds back. A manager's calls then end with
        `settle_stream` for each stream of a sequence that they made wait."""
        return False

    # -- memory -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def granularity_bytes(self, tier: CacheTier) -> int:
        """Ranges and chunks of this tier are multiples of this many bytes (a power of two)."""
        raise NotImplementedError("Device.granularity_bytes is for subclasses to define")

    @abstractmethod
    def total_bytes(self, tier: CacheTier) -> int:
        """Physical memory of that tier in this machine, used or not: the upper bound of a range."""
        raise NotImplementedError("Device.total_bytes is for subclasses to define")

    @abstractmethod
    def reserve_range(self, tier: CacheTier, num_bytes: int) -> int:
        """Reserve addresses without memory behind them; returns the first. `OutOfMemoryError` when there are none.

        Not for DISK, whose ranges need a folder: `reserve_disk_range`.
        """
        raise NotImplementedError("Device.reserve_range is for subclasses to define")

    def reserve_disk_range(self, path: str, num_bytes: int) -> int:
        """Reserve a range of the DISK tier, like `reserve_range`: a new empty file in the folder ``path``.

        The file has no name, or loses it at once, so nothing is left over however the process ends. `map_memory` makes it
        grow. A folder that does not exist is a `ValueError`, one that cannot be written to a `StorageIOError`.
        """
        raise ValueError(f"{self.name} has no disk tier")

    def file_port(self) -> FilePort | None:
        """The files of a durable level; None if the device has none."""
        return None

    def reserve_durable_range(self, path: str, num_bytes: int, watch: SlotWatch) -> int:
        """Like `reserve_disk_range`, of the file ``path``, which keeps its bytes over processes; ``watch`` sees its slots.

        Each slot that is read is compared with its checksum: bytes that are not those that were written are a failed read, which
        says `StorageIOError.is_corrupt`.
        """
        raise ValueError(f"{self.name} has no durable disk tier")

    def disk_failure(self, address: int) -> StorageIOError | None:
        """The first write to the DISK range of this address that failed; None if none has."""
        return None

    def take_failed_reads(self) -> Sequence[StorageIOError]:
        """The failed reads of the DISK tier since the last call, raised elsewhere or not; oldest first.

        A failed read is in the list before anything after it is done. ``address`` and ``num_bytes`` are the bytes that could not be read:
        what was read beside them is there. Both are 0 if the device does not know, and then all that was read together may be lost.
        """
        return ()

    @abstractmethod
    def release_range(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        """Release a whole reserved range. Nothing in it may be mapped."""
        raise NotImplementedError("Device.release_range is for subclasses to define")

    @abstractmethod
    def map_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        """Back ``[address, address + num_bytes)`` of a reserved range with memory; contents are undefined.

        All of it or nothing; `OutOfMemoryError` says how many bytes were asked for. Host memory is pinned where the
        device can copy asynchronously only from pinned memory.
        """
        raise NotImplementedError("Device.map_memory is for subclasses to define")

    @abstractmethod
    def unmap_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        """Free the memory. The caller makes sure that no stream touches it any more."""
        raise NotImplementedError("Device.unmap_memory is for subclasses to define")

    # -- streams and events -------------------------------------------------------------------------------------------

    @abstractmethod
    def default_stream(self) -> int:
        """The stream of sequences that were not given one."""
        raise NotImplementedError("Device.default_stream is for subclasses to define")

    @abstractmethod
    def create_stream(self) -> int:
        """A new stream; `destroy_stream` ends it."""
        raise NotImplementedError("Device.create_stream is for subclasses to define")

    @abstractmethod
    def destroy_stream(self, stream: int) -> None:
        """Destroy the stream. Enqueued work still runs."""
        raise NotImplementedError("Device.destroy_stream is for subclasses to define")

    def require_stream(self, stream: int) -> None:
        """`LogicError` if this is no stream's handle, as far as the device can tell; a device that cannot tell does nothing."""
        return

    @abstractmethod
    def synchronize_stream(self, stream: int) -> None:
        """Block the host until everything enqueued so far is done."""
        raise NotImplementedError("Device.synchronize_stream is for subclasses to define")

    def settle_stream(self, stream: int) -> None:
        """Where `runs_kernels_at_once`: block the host until everything enqueued so far is done, and raise no failure of it."""

    @abstractmethod
    def record_event(self, stream: int) -> int:
        """An event that is done when all that was enqueued on ``stream`` before this call is done."""
        raise NotImplementedError("Device.record_event is for subclasses to define")

    @abstractmethod
    def wait_event(self, stream: int, event: int) -> None:
        """Order work enqueued on ``stream`` from now on after ``event``. The host does not wait."""
        raise NotImplementedError("Device.wait_event is for subclasses to define")

    @abstractmethod
    def is_event_done(self, event: int) -> bool:
        """Whether the work before the event is done; the host does not wait."""
        raise NotImplementedError("Device.is_event_done is for subclasses to define")

    @abstractmethod
    def synchronize_event(self, event: int) -> None:
        """Block the host until the event is done."""
        raise NotImplementedError("Device.synchronize_event is for subclasses to define")

    @abstractmethod
    def release_event(self, event: int) -> None:
        """Release the handle; enqueued waits for the event still hold."""
        raise NotImplementedError("Device.release_event is for subclasses to define")

    def wake_after(self, stream: int, wakeup: Wakeup) -> bool:
        """Give the wakeup when all that was enqueued on ``stream`` before this call is done, by whatever thread; perhaps more often, and
        not at all where it is done already. False if the device cannot: nothing is given then.
        """
        return False

    def forget_wakeup(self, wakeup: Wakeup) -> None:
        """Give it no more, as far as no thread is about to."""

    def expect_write(self, address: int, num_bytes: int) -> None:
        """These bytes of level 0 are going to be written before they are read: a device that checks for races reports a read that is
        enqueued earlier. Others do nothing."""

    # -- timers -------------------------------------------------------------------------------------------------------

    def start_timer(self, stream: int) -> int:
        """Time the work on ``stream`` from here to `stop_timer`: from when the stream gets here until it gets there.

        For statistics only. NO_TIMER if the device has no clock or the driver refuses. `release_timer` releases the handle.
        """
        return NO_TIMER

    def stop_timer(self, stream: int, timer: int) -> None:
        """End the timed part; on the same stream, once."""

    def read_timer(self, timer: int) -> float:
        """Seconds; STILL_RUNNING before the work is done, or NOT_MEASURED. The host does not wait, and no failure is raised here."""
        return NOT_MEASURED

    def release_timer(self, timer: int) -> None:
        """Release the handle, whether or not the timer was stopped or read."""

    # -- work ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def copy_batch(self, stream: int, batch: CopyBatch) -> None:
        """Enqueue all copies of the batch; the batch may be reused by the caller at once."""
        raise NotImplementedError("Device.copy_batch is for subclasses to define")

    def copy_beside(self, stream: int, batch: CopyBatch) -> None:
        """`copy_batch` between level 0 and host memory, where the call does not wait for the bytes: another thread copies them.

        For streams that nothing but such copies uses. A device whose copies are enqueued anyway need not define it.
        """
        self.copy_batch(stream, batch)

    def list_copies(self) -> CopyLog:
        """From now on list what is copied instead of copying it. A device that has no memory does nothing with streams then: the caller
        takes the lists, and sees to it that they are executed in order."""
        raise LogicError(f"{self.name} has memory, and lists no copies; give an ExternalDevice")

    @abstractmethod
    def fill(self, stream: int, address: int, num_bytes: int, value: int) -> None:
        """Enqueue setting ``num_bytes`` bytes of level-0 memory to ``value`` (0-255)."""
        raise NotImplementedError("Device.fill is for subclasses to define")

    @abstractmethod
    def launch(self, stream: int, kernel: HostKernel) -> None:
        """Enqueue a kernel. A device that is not `is_software` raises `LogicError`: it has launches of its own."""
        raise NotImplementedError("Device.launch is for subclasses to define")

    @abstractmethod
    def close(self) -> None:
        """Release what the device object itself created. Idempotent. Ranges still reserved are a `LogicError`."""
        raise NotImplementedError("Device.close is for subclasses to define")
