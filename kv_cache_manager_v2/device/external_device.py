"""A device without memory: addresses are numbers, copies are listed for the engine's workers or do nothing, fills do nothing.

For memory that an engine owns (`ExternalCacheTierConfig`), and for replays that check no bytes: the manager makes the same decisions
as on a real device, on tiers of any size, and no time is spent on copies that are never read. No kernels can be launched on it.
"""

from typing import Final, final


from ..base.errors import LogicError
from ..base.ids import CacheTier
from .copy_log import CopyLog
from .port import CopyBatch, Device, HostKernel

_FIRST_ADDRESS: Final = 1 << 40
_GRANULARITY_BYTES: Final = 2 << 20
_TOTAL_BYTES: Final = 1 << 60
_MOST_BETWEEN: Final = 1 << 50
"""The distance of two ranges' addresses, so that those of some thousands fit in 63 bits. Larger ranges overlap, which is harmless."""


@final
class ExternalDevice(Device):
    """See the module. Streams are running numbers; all work is done when it is enqueued, listed copies when their list is executed."""

    __slots__ = ("_next_address", "_next_handle", "_num_ranges", "_log")

    def __init__(self) -> None:
        self._next_address: int = _FIRST_ADDRESS
        self._next_handle = 1
        self._num_ranges = 0
        self._log: CopyLog | None = None

    def list_copies(self) -> CopyLog:
        log = self._log = CopyLog()
        return log

    @property
    def name(self) -> str:
        return "external, without memory"

    @property
    def has_memory(self) -> bool:
        return False

    @property
    def is_software(self) -> bool:
        # There is no memory for the host to read.
        return False

    def granularity_bytes(self, tier: CacheTier) -> int:
        return _GRANULARITY_BYTES

    def total_bytes(self, tier: CacheTier) -> int:
        return _TOTAL_BYTES

    def reserve_range(self, tier: CacheTier, num_bytes: int) -> int:
        address = self._next_address
        self._next_address += min(num_bytes, _MOST_BETWEEN)
        self._num_ranges += 1
        return address

    def reserve_disk_range(self, path: str, num_bytes: int) -> int:
        return self.reserve_range(CacheTier.DISK, num_bytes)

    def release_range(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self._num_ranges -= 1

    def map_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        pass

    def unmap_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        pass

    def default_stream(self) -> int:
        return 0

    def create_stream(self) -> int:
        self._next_handle += 1
        return self._next_handle

    def destroy_stream(self, stream: int) -> None:
        pass

    def synchronize_stream(self, stream: int) -> None:
        pass

    def record_event(self, stream: int) -> int:
        """With lists, the number of the one that has what was enqueued so far."""
        return 0 if self._log is None else int(self._log.num_taken) + 1

    def wait_event(self, stream: int, event: int) -> None:
        pass

    def is_event_done(self, event: int) -> bool:
        return self._log is None or event <= self._log.num_done

    def synchronize_event(self, event: int) -> None:
        pass

    def release_event(self, event: int) -> None:
        pass

    def copy_batch(self, stream: int, batch: CopyBatch) -> None:
        if self._log is not None:
            self._log.add(batch.dst_addresses, batch.src_addresses, batch.count)

    def fill(self, stream: int, address: int, num_bytes: int, value: int) -> None:
        pass

    def launch(self, stream: int, kernel: HostKernel) -> None:
        raise LogicError("an ExternalDevice runs no kernels; use the host or a GPU to verify bytes")

    def close(self) -> None:
        if self._num_ranges > 0:
            raise LogicError(f"{self._num_ranges} address ranges are still reserved; shut their manager down first")
