"""Staging slots between disk and GPU: pinned memory, used in turn, and the words of the flags.

A slot's state is what its next user has to wait for. ``job``: a disk job that reads from or writes to the slot; ``copied``: a flag
that the stream raises after the copies of its bytes to the GPU. Both None: free at once. ``is_in_doubt``: a call that used the slot was
refused or interrupted, and copies may be in progress that no flag reports; the next user waits for the whole GPU.
"""

from typing import Final, final


from .cuda_driver import CudaDriver
from .cuda_flags import CudaFlag, CudaFlags
from .cuda_host_memory import CudaHostMemory
from .disk_extent import MAX_EXTENT_BYTES
from .disk_job import DiskJob
from .host_memory import PAGE_BYTES, release_addresses, reserve_addresses

STAGING_SLOT_BYTES: Final = MAX_EXTENT_BYTES


@final
class StagingSlot:
    __slots__ = ("address", "job", "copied", "is_in_doubt")

    def __init__(self, address: int) -> None:
        self.address: Final = address
        self.job: DiskJob | None = None
        self.copied: CudaFlag | None = None
        self.is_in_doubt = False


@final
class CudaStaging:
    """The slots of a device. The caller has made the GPU's context current. Who creates it calls `close` once it is unused."""

    __slots__ = ("flags", "slots", "_host_memory", "_address", "_num_bytes", "_next")

    def __init__(self, driver: CudaDriver, host_memory: CudaHostMemory, num_slots: int, streams_may_wait: bool) -> None:
        num_bytes = num_slots * STAGING_SLOT_BYTES + PAGE_BYTES
        address = reserve_addresses(num_bytes, PAGE_BYTES)
        is_mapped = False
        try:
            host_memory.map(address, num_bytes)
            is_mapped = True
            flags = CudaFlags(driver, address + num_bytes - PAGE_BYTES, PAGE_BYTES, streams_may_wait)
        except BaseException:
            if is_mapped:
                host_memory.unmap(address, num_bytes)
            release_addresses(address, num_bytes)
            raise
        self.flags: Final[CudaFlags] = flags
        self.slots: Final[list[StagingSlot]] = [StagingSlot(address + index * STAGING_SLOT_BYTES) for index in range(num_slots)]
        self._host_memory: Final = host_memory
        self._address: Final[int] = address
        self._num_bytes: Final[int] = num_bytes
        self._next = 0

    def next_slot(self) -> StagingSlot:
        """The least recently used slot."""
        slot = self.slots[self._next]
        self._next = (self._next + 1) % len(self.slots)
        return slot

    def close(self) -> None:
        self._host_memory.unmap(self._address, self._num_bytes)
        release_addresses(self._address, self._num_bytes)
