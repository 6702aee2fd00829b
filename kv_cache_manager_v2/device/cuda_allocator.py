"""Allocator of a GPU's physical memory by handle: its kind, and which devices and processes may access it.

- *GPUDirect RDMA*: network cards read and write the memory. Used if the GPU can, unless the caller disables it.
- *Peers*: other GPUs of this process that may access the memory at the same addresses.
- *Exportable* memory can be mapped by other processes, as a file descriptor or, across machines, as a fabric handle.

What the caller asked for is granted or an error; GPUDirect RDMA that the caller did not ask for is left out if the driver refuses it,
with a log message.
"""

from collections.abc import Sequence
from typing import Any, Final, final


from ..base.errors import CudaError, KVCacheManagerError, LogicError
from ..base.given import Given
from ..base.package_log import PackageLog
from .cuda_driver import CudaDriver

_logger: Final = PackageLog(__name__)

FILE_DESCRIPTOR: Final = "file_descriptor"
FABRIC: Final = "fabric"

_HANDLE_TYPES: Final = {FILE_DESCRIPTOR: "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR", FABRIC: "CU_MEM_HANDLE_TYPE_FABRIC"}
_HANDLE_ATTRIBUTES: Final = {
    FILE_DESCRIPTOR: "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    FABRIC: "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED",
}
_RDMA_ATTRIBUTE: Final = "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED"


@final
class CudaAllocator:
    """Creates memory handles and keeps none: who creates one releases it. None of its calls needs a current context.

    ``gpu_direct_rdma``: None: if the GPU can. ``exportable_as``: FILE_DESCRIPTOR, FABRIC or None.
    """

    __slots__ = ("granularity_bytes", "_driver", "_ordinal", "_properties", "_accesses", "_handle_type", "_may_drop_rdma")

    def __init__(
        self,
        driver: CudaDriver,
        ordinal: int,
        device: Any,
        gpu_direct_rdma: Given[bool | None] = None,
        peers: Sequence[int] = (),
        exportable_as: str | None = None,
    ) -> None:
        module = driver.module
        properties = module.CUmemAllocationProp()
        properties.type = module.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = module.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = ordinal
        self._driver: Final = driver
        self._ordinal: Final = ordinal
        self._handle_type: Final[Any] = _choose_handle_type(driver, ordinal, device, exportable_as)  # None: not exportable
        if self._handle_type is not None:
            properties.requestedHandleTypes = self._handle_type
        has_rdma = _choose_rdma(driver, ordinal, device, gpu_direct_rdma)
        if has_rdma:
            properties.allocFlags.gpuDirectRDMACapable = 1
        self._may_drop_rdma: bool = has_rdma and gpu_direct_rdma is None
        self._accesses: Final[list[Any]] = [_make_access(module, ordinal)]  # the GPU's own first
        for peer in peers:
            _require_peer(driver, ordinal, device, peer)
            self._accesses.append(_make_access(module, peer))
        self._properties: Final[Any] = properties
        option = module.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granularity_bytes: Final[int] = driver.call("cuMemGetAllocationGranularity", properties, option)
        """The driver's granularity: sizes and addresses are multiples of it."""

    @property
    def has_rdma(self) -> bool:
        """Whether network cards may read and write memory that is created from now on."""
        return int(self._properties.allocFlags.gpuDirectRDMACapable) != 0

    def create(self, num_bytes: int) -> Any:
        """A new handle; `OutOfMemoryError` if the GPU has no memory left."""
        try:
            return self._driver.call("cuMemCreate", num_bytes, self._properties, 0)
        except CudaError as error:
            if not self._may_drop_rdma:
                raise self._explain(error) from error
            return self._create_without_rdma(num_bytes, error)

    def allow_access(self, address: int, num_bytes: int) -> None:
        """Let the GPU and its peers read and write these bytes, which are whole mappings."""
        self._driver.call("cuMemSetAccess", address, num_bytes, self._accesses, len(self._accesses))

    def export(self, handle: Any) -> int | bytes:
        """A file descriptor, which the caller closes, or the bytes of a fabric handle."""
        if self._handle_type is None:
            raise LogicError(
                f"the memory of cuda:{self._ordinal} is not exportable; make the device with"
                f" exportable_as={FILE_DESCRIPTOR!r} or {FABRIC!r}"
            )
        exported = self._driver.call("cuMemExportToShareableHandle", handle, self._handle_type, 0)
        return int(exported) if isinstance(exported, int) else bytes(exported.data)

    def _create_without_rdma(self, num_bytes: int, error: CudaError) -> Any:
        self._properties.allocFlags.gpuDirectRDMACapable = 0
        try:
            handle = self._driver.call("cuMemCreate", num_bytes, self._properties, 0)
        except KVCacheManagerError:
            # The flag was not the reason.
            self._properties.allocFlags.gpuDirectRDMACapable = 1
            raise
        self._may_drop_rdma = False
        _logger.warning(
            "memory of cuda:%d cannot be allocated with GPUDirect RDMA, network cards will not reach it: %s", self._ordinal, error
        )
        return handle

    def _explain(self, error: CudaError) -> CudaError:
        """The error with the options that the driver may have refused."""
        wishes: list[str] = []
        if self.has_rdma:
            wishes.append("gpu_direct_rdma=True")
        if self._handle_type is not None:
            wishes.append(f"exportable_as ({self._handle_type!s}; a fabric handle needs an IMEX channel)")
        if not wishes:
            return error
        return CudaError(f"{error}; the memory was asked for with {' and '.join(wishes)}: try without")


def _make_access(module: Any, ordinal: int) -> Any:
    access = module.CUmemAccessDesc()
    access.location.type = module.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = ordinal
    access.flags = module.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return access


def _choose_rdma(driver: CudaDriver, ordinal: int, device: Any, is_wanted: Given[bool | None]) -> bool:
    if is_wanted is not None and not isinstance(is_wanted, bool):
        raise TypeError(f"gpu_direct_rdma must be None, True or False, not {type(is_wanted).__name__}")
    if is_wanted is False:
        return False
    is_supported = driver.device_attribute(_RDMA_ATTRIBUTE, device) != 0
    if is_wanted is True and not is_supported:
        raise LogicError(
            f"gpu_direct_rdma=True, but cuda:{ordinal} or its driver has no GPUDirect RDMA for memory that is mapped page by"
            " page; leave gpu_direct_rdma out to use it only where it is available"
        )
    return is_supported


def _choose_handle_type(driver: CudaDriver, ordinal: int, device: Any, exportable_as: str | None) -> Any:
    if exportable_as is None:
        return None
    name = _HANDLE_TYPES.get(exportable_as)
    if name is None:
        raise ValueError(f"exportable_as is {exportable_as!r}: it must be None, {' or '.join(map(repr, _HANDLE_TYPES))}")
    if driver.device_attribute(_HANDLE_ATTRIBUTES[exportable_as], device) == 0:
        raise LogicError(f"exportable_as={exportable_as!r}, but cuda:{ordinal} or its driver has no such handles; choose another, or None")
    return getattr(driver.module.CUmemAllocationHandleType, name)


def _require_peer(driver: CudaDriver, ordinal: int, device: Any, peer: int) -> None:
    num_devices: int = driver.call("cuDeviceGetCount")
    if peer < 0 or peer >= num_devices or peer == ordinal:
        raise ValueError(
            f"peers has {peer}: a peer of cuda:{ordinal} is another of the {num_devices} GPUs that the driver sees, counted from 0"
        )
    if not driver.call("cuDeviceCanAccessPeer", driver.call("cuDeviceGet", peer), device):
        raise LogicError(f"peers has {peer}, but cuda:{peer} cannot access the memory of cuda:{ordinal}; leave it out")
