"""Memory of a GPU, mapped granule by granule into reserved addresses (CUDA's virtual memory management).

Each granule is an allocation of its own, so a range can shrink by any number of them. Order of the driver's calls:
reserve, then per granule create and map, then one set-access over the whole; back: unmap all granules, then release
them. A handle is released only when its granule is unmapped, so a failure in the middle can be undone with contents
kept.

Knows handles only; `RangeTable` knows what is reserved and mapped. None of these calls needs a current context.
"""

import logging
from typing import Any, Final, final

from mypy_extensions import mypyc_attr

from ..base.errors import KVCacheManagerError, OutOfMemoryError
from .cuda_driver import CudaDriver

_logger: Final = logging.getLogger(__name__)


@final
@mypyc_attr(native_class=True)
class CudaMemory:
    """Law: a handle is in ``_handles`` while its granule is mapped, in ``_unreleased`` if giving it back failed."""

    __slots__ = ("_driver", "granularity_bytes", "_properties", "_access", "_handles", "_unreleased")

    _driver: Final[CudaDriver]
    granularity_bytes: Final[int]
    _properties: Final[Any]
    _access: Final[Any]
    _handles: Final[dict[int, Any]]  # by the granule's address
    _unreleased: Final[list[Any]]

    def __init__(self, driver: CudaDriver, ordinal: int, min_granularity_bytes: int) -> None:
        module = driver.module
        properties = module.CUmemAllocationProp()
        properties.type = module.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = module.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = ordinal
        access = module.CUmemAccessDesc()
        access.location.type = module.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = ordinal
        access.flags = module.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        option = module.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        driver_granularity_bytes: int = driver.call("cuMemGetAllocationGranularity", properties, option)
        self._driver = driver
        self._properties = properties
        self._access = access
        self._handles = {}
        self._unreleased = []
        self.granularity_bytes = max(driver_granularity_bytes, min_granularity_bytes)

    def reserve(self, num_bytes: int) -> int:
        try:
            address = self._driver.call("cuMemAddressReserve", num_bytes, self.granularity_bytes, 0, 0)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(f"cannot reserve {num_bytes} bytes of GPU addresses: {error}") from error
        return int(address)

    def release(self, address: int, num_bytes: int) -> None:
        self._driver.call("cuMemAddressFree", address, num_bytes)

    def map(self, address: int, num_bytes: int) -> None:
        """All of it or nothing."""
        granularity_bytes = self.granularity_bytes
        handles: list[Any] = []
        num_mapped = 0
        try:
            for granule in range(address, address + num_bytes, granularity_bytes):
                handle = self._driver.call("cuMemCreate", granularity_bytes, self._properties, 0)
                handles.append(handle)
                self._driver.call("cuMemMap", granule, granularity_bytes, 0, handle, 0)
                num_mapped += 1
            self._set_access(address, num_bytes)
        except KVCacheManagerError as error:
            for index in range(num_mapped):
                self._try_call("cuMemUnmap", address + index * granularity_bytes, granularity_bytes)
            self._release_handles(handles)
            if isinstance(error, OutOfMemoryError):
                raise OutOfMemoryError(
                    f"no room for {num_bytes} bytes of GPU memory: {error}, after {len(handles)} of"
                    f" {num_bytes // granularity_bytes} granules; lower the quota of the GPU tier"
                ) from error
            raise
        for index in range(len(handles)):
            self._handles[address + index * granularity_bytes] = handles[index]

    def unmap(self, address: int, num_bytes: int) -> None:
        """All of it or nothing. Memory that the driver then refuses to take back is offered again later."""
        granularity_bytes = self.granularity_bytes
        granule = address
        try:
            while granule < address + num_bytes:
                self._driver.call("cuMemUnmap", granule, granularity_bytes)
                granule += granularity_bytes
        except KVCacheManagerError:
            self._map_again(address, granule)
            raise
        handles: list[Any] = []
        for granule in range(address, address + num_bytes, granularity_bytes):
            handles.append(self._handles.pop(granule))
        self._release_handles(handles)

    def close(self) -> None:
        """Nothing is mapped any more. Raises if the driver still refuses memory; may be called again."""
        assert len(self._handles) == 0
        while self._unreleased:
            self._driver.call("cuMemRelease", self._unreleased[-1])
            self._unreleased.pop()

    def _set_access(self, address: int, num_bytes: int) -> None:
        self._driver.call("cuMemSetAccess", address, num_bytes, [self._access], 1)

    def _map_again(self, address: int, end: int) -> None:
        granularity_bytes = self.granularity_bytes
        for granule in range(address, end, granularity_bytes):
            self._try_call("cuMemMap", granule, granularity_bytes, 0, self._handles[granule], 0)
        if end > address:
            self._try_call("cuMemSetAccess", address, end - address, [self._access], 1)

    def _release_handles(self, handles: list[Any]) -> None:
        handles = self._unreleased + handles
        self._unreleased.clear()
        for handle in handles:
            if not self._try_call("cuMemRelease", handle):
                self._unreleased.append(handle)

    def _try_call(self, name: str, *args: Any) -> bool:
        """For calls that undo or give back: there is no better answer to their failure than to say so."""
        try:
            self._driver.call(name, *args)
        except KVCacheManagerError as error:
            _logger.error("GPU memory may be lost until the process ends: %s", error)
            return False
        return True
